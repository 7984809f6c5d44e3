"""Small stall experiments: shapes, prompts, summaries made by hand."""

from __future__ import annotations

from evenflow.bench.metrics import GapStats
from evenflow.bench.stall import StallPrompts, StallShape
from evenflow.bench.stall_report import Point, StallSummary


def make_shape(**changes: int) -> StallShape:
    """Two streams, a prompt of 40 tokens, a budget of 8."""
    values = {
        "num_streams": 2,
        "stream_prompt_tokens": 3,
        "lead_tokens": 2,
        "long_tokens": 40,
        "long_output_tokens": 2,
        "budget": 8,
    } | changes
    return StallShape(**values)


def make_prompts(shape: StallShape) -> StallPrompts:
    """Prompts that share nothing."""
    streams = [
        [100 * (i + 1) + j for j in range(shape.stream_prompt_tokens)]
        for i in range(shape.num_streams)
    ]
    return StallPrompts(streams, [500 + i % 400 for i in range(shape.long_tokens)])


def make_summary(
    *, chunked: bool, worst_ms: float | None, ttft_s: float, **changes
) -> StallSummary:
    """A summary whose gaps are all the same."""
    gaps = GapStats(0, None, None, None, None)
    if worst_ms is not None:
        gaps = GapStats(4, worst_ms, worst_ms, worst_ms, worst_ms)
    values = {
        "chunked": chunked,
        "overall": gaps,
        "in_window": gaps,
        "window_s": ttft_s,
        "ttft_s": ttft_s,
        "output_tokens_per_s": 10.0,
        "chunk_lengths": [6] * 7 if chunked else [40],
        "all_decoding": True,
        "points": [Point(0.5, worst_ms or 1.0), Point(1.0, 20.0)],
    } | changes
    return StallSummary(**values)
