"""What the stall experiment's records mean: figures, a sentence, and the same for programs.

In: the runs of `stall.py` and the comparison of their tokens. Out: statistics, words, plain data.
Draws nothing and reads no clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.bench.metrics import GapStats, Window, gap_stats, gaps, tokens_per_s
from evenflow.bench.stall import LONG_ID

if TYPE_CHECKING:
    from evenflow.bench.equality import Equality
    from evenflow.bench.stall import StallRun, StallShape

WORTH_NAMING = 1.2  # a smaller ratio between two runs is within the noise of a shared machine


class Point(NamedTuple):
    """A gap on the time axis: where it ended, from the landing of the long prompt, and its size."""

    at_s: float
    gap_ms: float


class StallSummary(NamedTuple):
    """One run in figures.

    The window is the long prompt's prefill: from the start of its first step to its first token. A
    gap is "in the window" when it overlaps it. `all_decoding` says whether every stream had its
    first token before the window and its last one after it; if not, the figures mean less.
    """

    chunked: bool
    overall: GapStats
    in_window: GapStats
    window_s: float
    ttft_s: float  # of the long prompt
    output_tokens_per_s: float | None  # all requests, from the first arrival to the last token
    chunk_lengths: list[int]  # of the long prompt
    all_decoding: bool
    points: list[Point]


def summarize(run: StallRun) -> StallSummary:
    """Turn a run's records into figures.

    Raises:
        ValueError: the long prompt never got a token.
    """
    long = run.long
    if long.first_scheduled_s is None or long.first_token_s is None:
        raise ValueError(
            f"the long prompt ended with {long.finish_reason!r} before its first token"
        )
    window = Window(long.first_scheduled_s, long.first_token_s)
    all_gaps = [gap for stream in run.streams for gap in gaps(stream.token_times_s)]
    requests = [*run.streams, long]
    whole = Window(
        min(request.arrival_s for request in requests),
        max(request.finish_s for request in requests),
    )
    return StallSummary(
        chunked=run.chunked,
        overall=gap_stats(all_gaps),
        in_window=gap_stats(gap for gap in all_gaps if gap.overlaps(window)),
        window_s=window.end_s - window.start_s,
        ttft_s=long.first_token_s - long.arrival_s,
        output_tokens_per_s=tokens_per_s(sum(r.output_tokens for r in requests), whole),
        chunk_lengths=[c.length for s in run.steps for c in s.chunks if c.request_id == LONG_ID],
        all_decoding=all(
            stream.token_times_s[0] <= window.start_s and stream.token_times_s[-1] > window.end_s
            for stream in run.streams
        ),
        points=[Point(gap.end_s - long.arrival_s, gap.ms) for gap in all_gaps],
    )


def verdict(off: StallSummary, on: StallSummary, long_tokens: int) -> str:
    """One sentence on what happened, from the figures; honest when there is no effect."""
    before, after = off.in_window.worst_ms, on.in_window.worst_ms
    if before is None or after is None:
        return "No stream had a gap while the long prompt was in prefill, so this shows nothing."
    ttft = f"its own first token came after {on.ttft_s:.2f} s instead of {off.ttft_s:.2f} s"
    change = on.ttft_s / off.ttft_s - 1
    ttft += f" ({change:+.0%})" if abs(change) >= 0.005 else " (no change)"
    pauses = f"{before:,.0f} ms with whole prompts and {after:,.0f} ms with chunks"
    if before >= after * WORTH_NAMING:
        return (
            f"While a prompt of {long_tokens:,} tokens was in prefill, chunking cut the longest "
            f"pause of a stream from {before:,.0f} ms to {after:,.0f} ms ({before / after:.1f}x "
            f"shorter); {ttft}."
        )
    if after >= before * WORTH_NAMING:
        return (
            f"Here chunking made it worse: the longest pause of a stream was {pauses}; {ttft}. "
            "The prompt is too short for this budget, or the machine was busy."
        )
    return (
        f"Here chunking made no difference worth naming: the longest pause of a stream was "
        f"{pauses}; {ttft}. A longer prompt or a smaller budget would show more."
    )


def cautions(off: StallSummary, on: StallSummary) -> list[str]:
    """What a reader must know before trusting the figures; empty when all is well."""
    return [
        f"with chunking {'on' if run.chunked else 'off'}, not every stream decoded all through "
        "the long prompt's prefill, so its gaps in the window are too few"
        for run in (off, on)
        if not run.all_decoding
    ]


def equality_words(equality: Equality) -> str:
    """Whether both runs gave the same tokens, in a sentence or two."""
    head = f"{equality.num_tokens:,} tokens of {equality.num_requests} requests"
    if not equality.differences:
        return f"Both runs gave the same tokens ({head})."
    ties = [d for d in equality.differences if d.is_tie]
    faults = [d for d in equality.differences if not d.is_tie]
    parts = [
        f"{d.request_id} from output token {d.position}"
        + ("" if math.isinf(d.margin) else f" (margin {d.margin:.1e})")
        for d in (*faults, *ties)
    ]
    if faults:
        return f"The runs gave DIFFERENT tokens, which is a fault: {'; '.join(parts)}."
    return (
        f"Both runs gave the same tokens up to ties of the two best logits, as the law allows for "
        f"this runner ({head}): {'; '.join(parts)}."
    )


def as_data(
    shape: StallShape, off: StallSummary, on: StallSummary, equality: Equality
) -> dict[str, Any]:
    """Everything in the report, for programs."""

    def one(run: StallSummary) -> dict[str, Any]:
        return {
            "itl_ms": run.overall._asdict(),
            "itl_in_window_ms": run.in_window._asdict(),
            "window_s": run.window_s,
            "ttft_s": run.ttft_s,
            "output_tokens_per_s": run.output_tokens_per_s,
            "num_chunks": len(run.chunk_lengths),
            "chunk_lengths": run.chunk_lengths,
            "all_decoding": run.all_decoding,
            "gaps": [point._asdict() for point in run.points],
        }

    return {
        "shape": {**shape._asdict(), "stream_tokens": shape.stream_tokens},
        "chunking_off": one(off),
        "chunking_on": one(on),
        "equality": {
            "holds": equality.holds,
            "num_tokens": equality.num_tokens,
            "differences": [d._asdict() for d in equality.differences],
        },
        "verdict": verdict(off, on, shape.long_tokens),
        "cautions": cautions(off, on),
    }
