"""Finds the stalls of a run and puts those together that happened at the same moment.

In: requests with their messages. Out: episodes whose cause is still open. Knows nothing of
prefills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.bench.blame.model import Episode, Stall
from evenflow.bench.gaps import gap_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.model import BlameOptions
    from evenflow.bench.gaps import GapTable, Window
    from evenflow.bench.records import RequestRecord

    Floats = NDArray[np.float64]

BURST = 0.2  # of the median: a gap this short is a message that came together with the last
LATE = 2.0  # of the expected: up to here a gap is a stream's usual way
GOING_ON = 0.25  # of another stream's stall: a gap shorter than this is no share in it
STOOD = 0.75  # of another stream's stall in long gaps: it stood still as well
SATURATED = 3.0  # a median this many times the run's quick gaps is itself a stalled one


@dataclass(frozen=True, slots=True)
class Found:
    """All gaps of the run, and the episodes in them, in the order of time.

    `plain_ms` is, per gap, what it takes without any prefill, and `pace_ms` the usual of the run.
    """

    gaps: GapTable
    plain_ms: Floats
    episodes: list[Episode]
    pace_ms: float | None


def find_episodes(
    requests: Sequence[RequestRecord], options: BlameOptions, window: Window
) -> Found:
    """Find every stall that lies in a window, and group the simultaneous ones."""
    gaps = gap_table(requests).within(window)
    if not gaps:
        return Found(gaps, np.zeros(0), [], None)
    normal = _normal_ms(gaps)
    expected = normal * np.maximum(1.0, gaps.tokens / _usual_tokens(gaps))
    if options.limit_ms is None:
        stalled = (gaps.ms > options.factor * normal) & (gaps.ms > normal + options.min_excess_ms)
    else:
        stalled = gaps.ms > options.limit_ms
    at = np.flatnonzero(stalled)
    stalls = [
        Stall(
            requests[int(gaps.request[i])].id,
            float(gaps.start_s[i]),
            float(gaps.end_s[i]),
            float(normal[i]),
            float(expected[i]),
            int(gaps.tokens[i]),
        )
        for i in at
    ]
    groups = _together(stalls)
    plain = np.minimum(expected, _quick_ms(gaps) or np.inf)
    streams = _streams(gaps, expected, requests)
    episodes = [_episode(group, streams) for group in groups]
    return Found(gaps, plain, episodes, float(np.median(normal)))


def _normal_ms(gaps: GapTable) -> Floats:
    """The usual gap of each gap's stream.

    That is the stream's median, unless the run was so full of prefills that the median gap is
    itself a stalled one; then it is bounded by the quick gaps of the whole run.
    """
    quick = _quick_ms(gaps)
    if quick is None:
        return np.maximum(gaps.normal_ms, 1e-6)
    return np.where(gaps.normal_ms > SATURATED * quick, quick, gaps.normal_ms).clip(1e-6)


def _quick_ms(gaps: GapTable) -> float | None:
    """The quick gaps of the whole run, leaving out messages that came together."""
    lengths = gaps.ms
    plain = lengths[lengths > BURST * gaps.normal_ms]
    return float(np.percentile(plain, 10)) if len(plain) else None


def _usual_tokens(gaps: GapTable) -> Floats:
    """The median number of tokens in a message of each gap's stream."""
    usual = np.ones(int(gaps.request.max()) + 1)
    order = np.argsort(gaps.request, kind="stable")
    owners, starts = np.unique(gaps.request[order], return_index=True)
    for owner, tokens in zip(owners, np.split(gaps.tokens[order], starts[1:]), strict=True):
        usual[owner] = max(1.0, float(np.median(tokens)))
    found: Floats = usual[gaps.request]
    return found


def _together(stalls: list[Stall]) -> list[list[Stall]]:
    """Stalls that began together and ended together, within about a usual gap.

    Streams of one engine move in lockstep, so a step that holds them up ends for all at once; with
    several tokens in a message they are out of phase by up to a usual gap. A stream that joined
    midway has a stall of its own, which may have another cause.
    """
    groups: list[list[Stall]] = []
    recent: list[list[Stall]] = []
    for stall in sorted(stalls, key=lambda stall: stall.end_s):
        recent = [g for g in recent if stall.end_s - g[0].end_s <= _slack_s(g[0])]
        for group in recent:
            slack_s = min(_slack_s(stall), _slack_s(group[0]))
            near = abs(stall.start_s - group[0].start_s) <= max(slack_s, 0.2 * stall.gap_ms / 1e3)
            if near and stall.end_s - group[0].end_s <= slack_s:
                group.append(stall)
                break
        else:
            recent.append([stall])
            groups.append(recent[-1])
    return groups


def _slack_s(stall: Stall) -> float:
    return min(1.25 * stall.normal_ms, 0.5 * stall.gap_ms) / 1e3


class _Stream(NamedTuple):
    """When a stream's messages came, and the most that each gap may be to count as going on."""

    request_id: str
    times_s: Floats
    usual_s: Floats

    def went_on(self, start_s: float, end_s: float) -> bool:
        """Whether it got messages in a stretch, and spent little of it in long gaps of its own.

        A message inside alone says little: with several tokens in each, streams are out of phase,
        and one's stall begins where another's ends.
        """
        length_s = end_s - start_s
        margin = 0.1 * length_s
        low, high = np.searchsorted(self.times_s, [start_s + margin, end_s - margin])
        if high <= low:
            return False
        first = max(int(low) - 1, 0)
        times = self.times_s[first : high + 1]
        long = np.diff(times) > np.maximum(self.usual_s[first:high], GOING_ON * length_s)
        clipped = np.diff(np.clip(times, start_s, end_s))
        return bool(clipped[long].sum() <= STOOD * length_s)


def _streams(
    gaps: GapTable, expected_ms: Floats, requests: Sequence[RequestRecord]
) -> list[_Stream]:
    found = []
    owners, starts = np.unique(gaps.request, return_index=True)
    ends = np.append(starts[1:], len(gaps.request))
    for owner, low, high in zip(owners, starts, ends, strict=True):
        times = np.append(gaps.start_s[low:high], gaps.end_s[high - 1])
        usual = LATE * expected_ms[low:high] / 1e3
        found.append(_Stream(requests[int(owner)].id, times, usual))
    return found


def _episode(stalls: list[Stall], streams: list[_Stream]) -> Episode:
    start_s = max(stall.start_s for stall in stalls)
    end_s = min(stall.end_s for stall in stalls)
    if end_s <= start_s:  # out of phase: take the middle ones
        middle = sorted(stalls, key=lambda stall: stall.start_s)[len(stalls) // 2]
        start_s, end_s = middle.start_s, middle.end_s
    members = {stall.request_id for stall in stalls}
    decoding = progressing = 0
    for stream in streams:
        if stream.times_s[0] > start_s or stream.times_s[-1] < end_s:
            continue
        decoding += 1
        if stream.request_id not in members:
            progressing += stream.went_on(start_s, end_s)
    return Episode(start_s, end_s, stalls, max(decoding, len(members)), progressing)
