"""Drives a runner by hand-made plans: tests of runners need no scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def request_with_blocks(
    request_id: str, prompt: Sequence[int], blocks: Iterable[int], **params
) -> Request:
    """A greedy request (unless params say otherwise) that owns `blocks` from the start."""
    values = {"temperature": 0.0, "max_tokens": 1000} | params
    request = Request(
        request_id,
        [int(t) for t in prompt],
        SamplingParams(**values),
        max_tokens=values["max_tokens"],
        stop_ids=frozenset({2}),
    )
    request.block_ids = list(blocks)
    return request


def plan_of(*spans: tuple[Request, int, int, int], serial: int = 0) -> StepPlan:
    """A plan of (request, start, length, num_logits) spans."""
    items = [Span(*span) for span in spans]
    return StepPlan(serial, items, 0, sum(s.length for s in items), "test", "", ())


def prefill(runner, request: Request, chunks: Sequence[int], *, all_logits=True) -> np.ndarray:
    """Compute the prompt in chunks of the given lengths; the logits, a row per position."""
    rows, start = [], 0
    for length in chunks:
        wanted = length if all_logits else int(start + length == request.num_tokens)
        runner.submit(plan_of((request, start, length, wanted))).result()
        rows.append(runner.last_logits)
        start += length
    assert start == request.num_tokens
    return np.concatenate(rows)


def extend(runner, requests: Sequence[Request], num_tokens: int) -> None:
    """Append `num_tokens` drawn tokens to each; all positions but the last one are computed."""
    for _ in range(num_tokens):
        spans = [(r, r.num_tokens - 1, 1, 1) for r in requests]
        result = runner.submit(plan_of(*spans)).result()
        for request, tokens in zip(requests, result.tokens, strict=True):
            request.token_ids.extend(tokens)


def cut(total: int, size: int) -> list[int]:
    """Lengths of the chunks when `total` positions are cut every `size`."""
    return [min(size, total - i) for i in range(0, total, size)]
