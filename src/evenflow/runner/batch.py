"""A step plan as flat arrays: the only place where requests become numbers for a kernel.

Every runner starts from the same arrays, so a mistake in slots or positions cannot be made twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evenflow.runner.extras import SamplingExtras, build_extras

if TYPE_CHECKING:
    from evenflow.schedule.request import Request
    from evenflow.types import StepPlan

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """One entry per row of logits, [rows] each.

    `positions` is the index, in the whole sequence, of the token being drawn; together with
    `seeds` it keys the random number. `banned_ids` holds token ids that may not be drawn, row r
    owning `banned_ids[banned_offsets[r]:banned_offsets[r + 1]]`. `extras` is there only where some
    row needs more.
    """

    temperatures: F32
    top_ks: I32
    top_ps: F32
    min_ps: F32
    seeds: U64
    positions: I64
    banned_ids: I32
    banned_offsets: I32
    extras: SamplingExtras | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A packed step of T tokens in S spans, with R rows of logits.

    token_ids, positions  [T] int32
    slots                 [T] int64: where the key and value go, block * block_size + offset; -1
                          writes nothing (the position is already in a shared block)
    span_offsets          [S + 1] int32: span s owns tokens span_offsets[s]:span_offsets[s + 1]
    context_lens          [S] int32: positions that exist once the span is computed
    block_tables          [sum] int32 and block_offsets [S + 1] int32: the blocks of each span
    logit_rows            [R] int32: indices of the tokens whose logits are wanted
    row_spans             [R] int32: the span each row belongs to
    """

    token_ids: I32
    positions: I32
    slots: I64
    span_offsets: I32
    context_lens: I32
    block_tables: I32
    block_offsets: I32
    logit_rows: I32
    row_spans: I32
    sampling: SamplingBatch


def build_batch(plan: StepPlan, block_size: int, memory: SamplingMemory | None = None) -> Batch:
    """Flatten a plan; `block_size` is in slots, and `memory` that of the steps before.

    Lists first and one array of each at the end: for a step of decodes an array operation costs more
    than the few numbers in it.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    offsets = [0]
    context_lens: list[int] = []
    tables: list[int] = []
    block_offsets = [0]
    rows: list[int] = []
    row_spans: list[int] = []
    for i, (request, start, length, num_logits) in enumerate(plan.spans):
        end = start + length
        last = len(token_ids)
        blocks = request.block_ids[: -(-end // block_size)]
        if length == 1:
            token_ids.append(request.token_ids[start])
            positions.append(start)
            cached = start < request.num_cached_tokens
            slots.append(-1 if cached else blocks[-1] * block_size + start % block_size)
        else:
            token_ids += request.token_ids[start:end]
            token_ids += request.draft_ids  # empty but for a decode that verifies some
            positions += range(start, end)
            slots += _slots(blocks, start, end, request.num_cached_tokens, block_size)
        tables += blocks
        block_offsets.append(len(tables))
        context_lens.append(end)
        last += length
        offsets.append(last)
        if num_logits == 1:
            rows.append(last - 1)
            row_spans.append(i)
        else:
            rows += range(last - num_logits, last)
            row_spans += [i] * num_logits
    requests = [plan.spans[i].request for i in row_spans]
    ends = [positions[row] for row in rows]
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int64),
        span_offsets=np.array(offsets, np.int32),
        context_lens=np.array(context_lens, np.int32),
        block_tables=np.array(tables, np.int32),
        block_offsets=np.array(block_offsets, np.int32),
        logit_rows=np.array(rows, np.int32),
        row_spans=np.array(row_spans, np.int32),
        sampling=(memory or SamplingMemory()).sampling(requests, ends),
    )


class SamplingMemory:
    """Keeps how the rows of the last step draw: while the same plain streams decode, it stays."""

    __slots__ = ("_last", "_requests")

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._last: SamplingBatch | None = None

    def sampling(self, requests: list[Request], ends: list[int]) -> SamplingBatch:
        """How these rows draw; `ends` are the positions of their last known tokens."""
        last = self._last
        if last is not None and requests == self._requests:
            return SamplingBatch(
                last.temperatures,
                last.top_ks,
                last.top_ps,
                last.min_ps,
                last.seeds,
                np.array(ends, np.int64) + 1,
                last.banned_ids,
                last.banned_offsets,
            )
        plain = all(r.is_plain for r in requests)
        sampling = _sampling(requests, ends, plain=plain)
        self._requests, self._last = (requests, sampling) if plain else ([], None)
        return sampling


def _slots(blocks: list[int], start: int, end: int, cached: int, block_size: int) -> list[int]:
    """Where positions [start, end) are written; -1 for those that are cached already."""
    first = min(max(start, cached), end)
    slots = [-1] * (first - start)
    while first < end:
        index, within = divmod(first, block_size)
        count = min(block_size - within, end - first)
        slot = blocks[index] * block_size + within
        slots += range(slot, slot + count)
        first += count
    return slots


def _sampling(requests: list[Request], ends: list[int], *, plain: bool) -> SamplingBatch:
    params = [r.params for r in requests]
    count = len(params)
    banned: list[int] = []
    offsets = np.zeros(count + 1, np.int32)
    extras = None
    if not plain:
        for i, request in enumerate(requests):
            banned += _banned(request, ends[i] + 1)
            offsets[i + 1] = len(banned)
        extras = build_extras(requests, ends)
    return SamplingBatch(
        temperatures=np.array([p.temperature for p in params], np.float32),
        top_ks=np.array([p.top_k for p in params], np.int32),
        top_ps=np.array([p.top_p for p in params], np.float32),
        min_ps=np.array([p.min_p for p in params], np.float32),
        seeds=np.array([p.seed or 0 for p in params], np.uint64),
        positions=np.array([end + 1 for end in ends], np.int64),
        banned_ids=np.array(banned, np.int32),
        banned_offsets=offsets,
        extras=extras,
    )


def _banned(request: Request, position: int) -> list[int]:
    """The ids that may not be drawn at a position: ends that come too soon, ends of bad words."""
    start, known = request.num_prompt_tokens, request.token_ids
    if request.draft_ids and request.bad_words:
        known = known + request.draft_ids
    banned = sorted(request.stop_ids) if position - start < request.params.min_tokens else []
    for word in request.bad_words:
        begin = position - len(word) + 1
        if begin >= start and known[begin:position] == list(word[:-1]):
            banned.append(word[-1])
    return banned
