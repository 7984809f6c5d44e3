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


def build_batch(plan: StepPlan, block_size: int) -> Batch:
    """Flatten a plan; `block_size` is in slots."""
    spans = plan.spans
    lengths = np.fromiter((s.length for s in spans), np.int32, len(spans))
    starts = np.fromiter((s.start for s in spans), np.int32, len(spans))
    offsets = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    num_tokens = int(offsets[-1])

    token_ids: list[int] = []
    tables: list[int] = []
    table_lens = np.zeros(len(spans) + 1, np.int32)
    context_lens = starts + lengths
    for i, span in enumerate(spans):
        token_ids += span.request.token_ids[span.start : span.start + span.length]
        token_ids += span.request.draft_ids  # empty but for a decode that verifies some
        used = -(-int(context_lens[i]) // block_size)
        tables += span.request.block_ids[:used]
        table_lens[i + 1] = used
    block_tables = np.array(tables, np.int32)
    block_offsets = np.cumsum(table_lens, dtype=np.int32)

    # positions run from `start` inside each span
    row_start = np.repeat(starts - offsets[:-1], lengths)
    positions = (np.arange(num_tokens, dtype=np.int32) + row_start).astype(np.int32)
    first_block = np.repeat(block_offsets[:-1], lengths)
    blocks = block_tables[first_block + positions // block_size].astype(np.int64)
    slots = blocks * block_size + positions % block_size
    cached = np.fromiter((s.request.num_cached_tokens for s in spans), np.int32, len(spans))
    slots[positions < np.repeat(cached, lengths)] = -1

    rows: list[int] = []
    row_spans: list[int] = []
    for i, span in enumerate(spans):
        if span.num_logits:
            end = int(offsets[i + 1])
            rows += range(end - span.num_logits, end)
            row_spans += [i] * span.num_logits
    logit_rows = np.array(rows, np.int32)
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=positions,
        slots=slots,
        span_offsets=offsets,
        context_lens=context_lens,
        block_tables=block_tables,
        block_offsets=block_offsets,
        logit_rows=logit_rows,
        row_spans=np.array(row_spans, np.int32),
        sampling=_sampling([spans[i].request for i in row_spans], positions[logit_rows]),
    )


def _sampling(requests: list[Request], row_positions: I32) -> SamplingBatch:
    params = [r.params for r in requests]
    count = len(params)
    banned: list[int] = []
    offsets = np.zeros(count + 1, np.int32)
    extras = None
    if not all(r.is_plain for r in requests):
        ends = row_positions.tolist()
        for i, request in enumerate(requests):
            banned += _banned(request, ends[i] + 1)
            offsets[i + 1] = len(banned)
        extras = build_extras(requests, ends)
    return SamplingBatch(
        temperatures=np.fromiter((p.temperature for p in params), np.float32, count),
        top_ks=np.fromiter((p.top_k for p in params), np.int32, count),
        top_ps=np.fromiter((p.top_p for p in params), np.float32, count),
        min_ps=np.fromiter((p.min_p for p in params), np.float32, count),
        seeds=np.fromiter((p.seed or 0 for p in params), np.uint64, count),
        positions=row_positions.astype(np.int64) + 1,
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
