"""When each request's prompt must have been computed, from the outside.

A client sees when a request was sent and when its first token came. In between the request waits,
then its prompt is computed. Engines take prompts in the order in which they came, so the wait for
those before it can be taken off (`backlog.py`). What is left may still hold a wait for a place; how long the
prompt itself takes follows from prompts of about the same length, and from how much of their
windows the streams of the same engine were slow. The work is at the window's end.

In: requests and gaps. Out: arrays, one entry per prompt. Knows nothing of stalls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.backlog import Rate, backlog_of, rates_of, turns_of
from evenflow.bench.blame.chunks import Chunks
from evenflow.bench.blame.witness import Witnesses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.find import Found
    from evenflow.bench.records import RequestRecord

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUICK = 0.25  # the quantile of the rates, by their tokens: the slower windows also hold waits
TOGETHER = 0.25  # of a usual gap: first tokens this close came out of one step
ALIKE = 1.5  # prompts whose lengths differ by less than this factor cost about the same per token
STEP, DEAR = 2.0, 1.5  # usual gaps, and times the run's rate, that bound a short prompt's cost
MOSTLY = 0.75  # of a window is work: then all of it is taken for work


@dataclass(frozen=True, slots=True)
class Prefills:
    """Windows in which prompts were computed, in the order of their ends.

    Attributes:
        start_s, end_s: the window; within it the prompt was being computed. It ends with the first
            token, or before it, where the step that brought that was mostly another prompt's.
        tokens: prompt tokens; where unknown, what the window's length suggests.
        known: whether the prompt's length is known.
        work_ms: how long it took; less than the window, where something else fell into that.
        request: index into the requests that they were made from.
        ms_per_token: the run's rate; None when no prompt's length is known.
        chunks: what a single gap can have held of each prompt.
    """

    start_s: Floats
    end_s: Floats
    tokens: Floats
    known: NDArray[np.bool_]
    work_ms: Floats
    request: Ints
    ms_per_token: float | None
    chunks: Chunks

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def cost_ms(self) -> Floats:
        """How long each took."""
        return np.asarray((self.end_s - self.start_s) * 1e3, np.float64)

    @property
    def work_start_s(self) -> Floats:
        """Where each would have begun without pauses: what a pause did to a window ties the two."""
        return np.maximum(self.start_s, self.end_s - self.work_ms / 1e3)

    def shared_s(self, start_s: float, end_s: float) -> Floats:
        """Seconds that each window shares with a stretch of time."""
        shared = np.minimum(self.end_s, end_s) - np.maximum(self.start_s, start_s)
        return np.asarray(np.maximum(shared, 0.0), np.float64)


def prefills_of(requests: Sequence[RequestRecord], found: Found) -> Prefills:
    """The windows of all requests that were sent.

    A request that failed before its first token has a window too, up to its end: the server may
    well have worked on it.
    """
    rows = []
    for number, r in enumerate(requests):
        end_s = r.first_token_s if r.first_token_s is not None else r.end_s
        if r.send_s is not None and end_s is not None and end_s > r.send_s:
            rows.append((end_s, r.send_s, number, _computed(r)))
    rows.sort()
    ends = np.array([row[0] for row in rows])
    sends = np.array([row[1] for row in rows])
    index = np.array([row[2] for row in rows], np.int64)
    known = np.array([row[3] is not None and row[3] > 0 for row in rows], np.bool_)
    tokens = np.array([float(row[3] or 0) for row in rows])
    pace_ms = found.pace_ms or 0.0
    together_s = TOGETHER * pace_ms / 1e3
    backlog = backlog_of(sends, ends, together_s)
    starts = backlog.free_s
    witnesses = Witnesses(found)
    rates = rates_of(backlog, np.where(known, tokens, 0.0), witnesses)
    if not rates:
        chunks = Chunks(starts, ends, (ends - starts) * 1e3, witnesses)
        lengths_ms = (ends - starts) * 1e3
        return Prefills(starts, ends, tokens, known, lengths_ms, index, None, chunks)
    overall = _quick(rates)
    lengths_ms = (ends - starts) * 1e3
    # a prompt takes a step, however short it is
    cost_ms = np.maximum(pace_ms, tokens * _local(rates, tokens))
    # a short one is no dearer per token than all, but for its step: its rate may come from few
    short_ms = STEP * pace_ms + DEAR * tokens * overall
    cost_ms = np.where(tokens < _middle(tokens), np.minimum(cost_ms, short_ms), cost_ms)
    # the step that ended the wait may have held a first chunk already
    seen_from = np.maximum(sends, starts - together_s)
    chunks = Chunks(seen_from, ends, np.where(known, cost_ms, lengths_ms), witnesses)
    early = np.minimum(starts, ends - cost_ms / 1e3)
    latest = np.array(
        [chunks.start_s(i, s, ends[i], starts[i]) for i, s in enumerate(sends)], np.float64
    )
    mostly = cost_ms >= MOSTLY * lengths_ms
    starts = np.where(known, np.maximum(sends, np.where(mostly, early, latest)), starts)
    least_ms = np.where(known, np.minimum(cost_ms, tokens * overall), 0.0)
    starts, done = turns_of(backlog, starts, least_ms, witnesses)
    whole_ms = (done - starts) * 1e3
    work_ms = np.where(known & ~mostly, np.minimum(cost_ms, whole_ms), whole_ms)
    tokens = np.where(known, tokens, lengths_ms / max(overall, 1e-9))
    return Prefills(starts, done, tokens, known, work_ms, index, overall, chunks)


def _computed(request: RequestRecord) -> int | None:
    """Prompt tokens that the server had to compute: at least one, and not what its cache held."""
    if request.prompt_tokens is None:
        return None
    return max(1, request.prompt_tokens - (request.cached_tokens or 0))


def _quick(rates: Sequence[Rate]) -> float:
    ordered = sorted(rates)
    weights = np.cumsum([rate.tokens for rate in ordered])
    return ordered[int(np.searchsorted(weights, QUICK * weights[-1]))].ms_per_token


def _local(rates: Sequence[Rate], tokens: Floats) -> Floats:
    """For each prompt the rate of those of about its length, since long ones cost more per token."""
    buckets: dict[int, list[Rate]] = {}
    for rate in rates:
        buckets.setdefault(_bucket(rate.longest), []).append(rate)
    overall = _quick(rates)
    known: dict[int, float] = {}
    for bucket in {_bucket(float(t)) for t in tokens}:
        near = [r for b in (bucket - 1, bucket, bucket + 1) for r in buckets.get(b, ())]
        known[bucket] = _quick(near) if near else overall
    return np.array([known[_bucket(float(t))] for t in tokens])


def _middle(tokens: Floats) -> float:
    """The length of prompt that holds the middle one of all prompt tokens."""
    ordered = np.sort(tokens)
    return float(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])


def _bucket(tokens: float) -> int:
    return math.floor(math.log(max(tokens, 1.0)) / math.log(ALIKE))
