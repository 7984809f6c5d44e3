"""Where each request's prefill must have been, from the outside.

A client sees when a request was sent and when its first token came. In between the request waits,
then its prompt is computed. Engines take prompts in the order in which they came, so the wait for
those before it can be taken off: what is left is the request's window. How much of the window was
really prefill follows from the rate at which the run's prompts were computed.

In: requests. Out: arrays, one entry per window. Knows nothing of stalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.records import RequestRecord

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

RATE_QUANTILE = 0.25  # the quick windows, by their tokens: the others also hold waits
TOGETHER = 0.25  # of a usual gap: first tokens this close came out of one step


@dataclass(frozen=True, slots=True)
class Prefills:
    """Windows in the order of their ends.

    Attributes:
        start_s, end_s: the window.
        tokens: prompt tokens; where unknown, what the window's length suggests.
        cost_ms: what that many tokens should take at the run's rate, at most the window.
        known: whether the prompt's length is known.
        request: index into the requests that they were made from.
        ms_per_token: the run's rate; None when no prompt's length is known.
    """

    start_s: Floats
    end_s: Floats
    tokens: Floats
    cost_ms: Floats
    known: NDArray[np.bool_]
    request: Ints
    ms_per_token: float | None

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def density(self) -> Floats:
        """How much of each window's time its prefill took, from 0 to 1."""
        found: Floats = self.cost_ms / np.maximum((self.end_s - self.start_s) * 1e3, 1e-9)
        return found

    def shared_s(self, start_s: float, end_s: float) -> Floats:
        """Seconds that each window shares with a stretch of time."""
        shared = np.minimum(self.end_s, end_s) - np.maximum(self.start_s, start_s)
        return np.maximum(shared, 0.0)


def prefills_of(requests: Sequence[RequestRecord], pace_ms: float) -> Prefills:
    """The windows of all requests that were sent.

    A request that failed before its first token has a window too, up to its end: the server may
    well have worked on it.
    """
    rows = []
    for number, r in enumerate(requests):
        end_s = r.first_token_s if r.first_token_s is not None else r.end_s
        if r.send_s is not None and end_s is not None and end_s > r.send_s:
            rows.append((end_s, r.send_s, number, r.prompt_tokens))
    rows.sort()
    ends = np.array([row[0] for row in rows])
    sends = np.array([row[1] for row in rows])
    index = np.array([row[2] for row in rows], np.int64)
    known = np.array([row[3] is not None and row[3] > 0 for row in rows], np.bool_)
    tokens = np.array([float(row[3] or 0) for row in rows])
    starts = _after_those_before(sends, ends, TOGETHER * pace_ms / 1e3)
    lengths = (ends - starts) * 1e3
    rate = _rate(starts, ends, tokens, known, TOGETHER * pace_ms / 1e3)
    if rate is not None:
        # a window cut too short: the step that ended the wait already held a first chunk
        starts = np.maximum(sends, np.minimum(starts, ends - tokens * rate / 1e3))
        lengths = (ends - starts) * 1e3
    tokens = np.where(known, tokens, lengths / rate if rate else 1.0)
    # every prompt costs a step of its own at most, however short it is
    cost = np.minimum(lengths, pace_ms + tokens * rate) if rate else lengths
    return Prefills(starts, ends, tokens, np.where(known, cost, lengths), known, index, rate)


def _after_those_before(sends: Floats, ends: Floats, together_s: float) -> Floats:
    """The start of each window: sending, or the first token of the last one that was ahead."""
    starts = sends.copy()
    for i in range(len(sends)):
        low = int(np.searchsorted(ends, sends[i], side="right"))
        high = int(np.searchsorted(ends, ends[i] - together_s, side="left"))
        for j in range(high - 1, low - 1, -1):
            if sends[j] <= sends[i]:
                starts[i] = max(starts[i], ends[j])
                break
    return starts


def _rate(
    starts: Floats, ends: Floats, tokens: Floats, known: NDArray[np.bool_], together_s: float
) -> float | None:
    """Milliseconds per prompt token, from the quick windows; those that end together count as one."""
    rates: list[tuple[float, float]] = []
    i = 0
    while i < len(ends):
        j = i
        while j < len(ends) and ends[j] - ends[i] <= together_s:
            j += 1
        total = float(tokens[i:j][known[i:j]].sum())
        if total > 0:
            # those behind the first of a group waited for nobody but it
            length_ms = float(ends[i:j].max() - starts[i:j].min()) * 1e3
            rates.append((length_ms / total, total))
        i = j
    if not rates:
        return None
    rates.sort()
    weights = np.cumsum([weight for _, weight in rates])
    at = int(np.searchsorted(weights, RATE_QUANTILE * weights[-1]))
    return rates[at][0]
