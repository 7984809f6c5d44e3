"""All gaps of a run in one table, and which of them are stalls.

In: records. Out: arrays, one entry per gap between two messages of a stream. The wait for the
first message is no gap, nor is what lies between messages that came together, and requests that
failed have none here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.records import Message, RequestRecord

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

STALL_FACTOR = 4.0
TOGETHER_S = 0.0002  # messages less than this apart were sent in one go: no engine steps so fast
MIN_GAPS = 4  # below this a stream's own median means little, and its class's is used


class Window(NamedTuple):
    """A stretch of time, in seconds of the run's clock."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return max(0.0, self.end_s - self.start_s)

    def holds(self, time_s: float | None) -> bool:
        """Whether a moment lies in it."""
        return time_s is not None and self.start_s <= time_s <= self.end_s


@dataclass(frozen=True, slots=True)
class GapTable:
    """One entry per gap, in the order of the requests and, in each, of time.

    `tokens` is what the message that ended the gap carried; `request` is an index into the list
    that the table was made from; `normal_ms` is the stream's own median gap.
    """

    start_s: Floats
    end_s: Floats
    tokens: Ints
    request: Ints
    normal_ms: Floats

    @property
    def ms(self) -> Floats:
        """How long each gap is."""
        return (self.end_s - self.start_s) * 1e3

    def __bool__(self) -> bool:
        return len(self.start_s) > 0

    def only(self, chosen: Bools) -> GapTable:
        """The chosen ones."""
        return GapTable(
            self.start_s[chosen],
            self.end_s[chosen],
            self.tokens[chosen],
            self.request[chosen],
            self.normal_ms[chosen],
        )

    def within(self, window: Window) -> GapTable:
        """Those that begin and end in a window."""
        return self.only((self.start_s >= window.start_s) & (self.end_s <= window.end_s))

    def overlaps(self, windows: Sequence[Window]) -> Bools:
        """For each gap whether it shares more than an instant with any of the windows."""
        hit = np.zeros(len(self.start_s), np.bool_)
        for window in windows:
            hit |= (self.start_s < window.end_s) & (self.end_s > window.start_s)
        return hit

    def excess_ms(self) -> Floats:
        """How much longer than the stream's usual each gap is; never negative."""
        return np.maximum(self.ms - self.normal_ms, 0.0)


@dataclass(frozen=True, slots=True)
class Stalls:
    """How often streams stood still, by one definition of standing still.

    `rate` is the share of the gaps; `stalled_ms` the time beyond the stream's usual gap, summed
    over streams; `time_share` that time as a share of all time spent between tokens.
    """

    count: int
    rate: float
    stalled_ms: float
    time_share: float
    worst_ms: float


def deliveries(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with those that came together made one, which has the tokens of all.

    A server that drafts, or a proxy that gathers, sends several messages at once. No time passed
    between them: taken one by one most gaps of such a stream would be 0 and each of the others
    would look like a stall.
    """
    times = np.array([m.time_s for m in messages])
    if len(times) < 2 or float(np.diff(times).min()) >= TOGETHER_S:
        return messages
    found = [messages[0]]
    for message in messages[1:]:
        last = found[-1]
        if message.time_s - last.time_s < TOGETHER_S:
            found[-1] = last._replace(
                tokens=last.tokens + message.tokens, chars=last.chars + message.chars
            )
        else:
            found.append(message)
    return found


def gap_table(requests: Sequence[RequestRecord], *, with_tokens: bool = False) -> GapTable:
    """The gaps of all requests that ended well.

    Args:
        requests: as recorded.
        with_tokens: only messages that carry a token end a gap. A server that counts each message
            may send text that adds none to its count, such as what it held back.
    """
    starts: list[Floats] = []
    ends: list[Floats] = []
    tokens: list[int] = []
    owner: list[int] = []
    medians: dict[int, float] = {}
    short: list[int] = []
    by_class: dict[str, list[Floats]] = {}
    for index, request in enumerate(requests):
        arrived = deliveries(request.messages)
        if with_tokens:
            arrived = [m for m in arrived if m.tokens]
        if not request.ok or len(arrived) < 2:
            continue
        times = np.array([m.time_s for m in arrived])
        lengths = np.diff(times) * 1e3
        starts.append(times[:-1])
        ends.append(times[1:])
        tokens += [m.tokens for m in arrived[1:]]
        owner += [index] * len(lengths)
        by_class.setdefault(request.class_name, []).append(lengths)
        medians[index] = float(np.median(lengths))
        if len(lengths) < MIN_GAPS:
            short.append(index)
    class_medians = {name: float(np.median(np.concatenate(g))) for name, g in by_class.items()}
    for index in short:
        medians[index] = class_medians[requests[index].class_name]
    empty = np.zeros(0)
    return GapTable(
        np.concatenate(starts) if starts else empty,
        np.concatenate(ends) if ends else empty,
        np.array(tokens, np.int64),
        np.array(owner, np.int64),
        np.array([medians[i] for i in owner], np.float64),
    )


def stalls_by_factor(gaps: GapTable, factor: float = STALL_FACTOR) -> Stalls:
    """Stalls are gaps of more than `factor` times the stream's own median."""
    return _stalls(gaps, gaps.ms > factor * gaps.normal_ms)


def stalls_by_limit(gaps: GapTable, limit_ms: float) -> Stalls:
    """Stalls are gaps of more than a limit."""
    return _stalls(gaps, gaps.ms > limit_ms)


def _stalls(gaps: GapTable, stalled: Bools) -> Stalls:
    if not gaps:
        return Stalls(0, 0.0, 0.0, 0.0, 0.0)
    time_ms = float(gaps.excess_ms()[stalled].sum())
    return Stalls(
        int(stalled.sum()),
        float(stalled.mean()),
        time_ms,
        time_ms / max(float(gaps.ms.sum()), 1e-9),
        float(gaps.ms[stalled].max()) if stalled.any() else 0.0,
    )
