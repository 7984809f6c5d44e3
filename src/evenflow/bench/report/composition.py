"""What each step held, decodes and prompt tokens, and how long it took.

In: steps, ours or logged. Out: a drawing. Many steps share a column; it shows the longest of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.report.svg import Box, Drawing, Scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.evidence import KnownStep

WIDTH, HEIGHT = 1080.0, 360.0
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 64.0, 24.0, 48.0, 44.0, 36.0
COLUMNS = 320


def draw_composition(steps: Sequence[KnownStep]) -> Drawing | None:
    """The picture, or None without steps."""
    if not steps:
        return None
    drawing = Drawing(WIDTH, HEIGHT, "Tokens in each step, and how long it took")
    drawing.rect(Box(0, 0, WIDTH, HEIGHT), "paper")
    starts = np.array([step.start_s for step in steps])
    timed = any(step.ms is not None for step in steps)
    plots = 2 if timed else 1
    each = (HEIGHT - TOP - BOTTOM - BETWEEN * (plots - 1)) / plots
    box = Box(LEFT, TOP, WIDTH - LEFT - RIGHT, each)
    time = Scale(float(starts.min()), float(starts.max()) + 1e-3, box.left, box.right)
    edges = np.linspace(time.low, time.high, min(COLUMNS, len(steps)) + 1)
    columns = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, len(edges) - 2)
    most = max(step.num_decodes + step.prompt_tokens for step in steps)
    tokens = Scale(0.0, max(1.0, most * 1.1), box.bottom, box.top)
    drawing.axis_left(box, tokens, "tokens")
    by_column: dict[int, list[KnownStep]] = {}
    for step, column in zip(steps, columns.tolist(), strict=True):
        by_column.setdefault(column, []).append(step)
    shown = [_largest(group) for group in by_column.values()]
    wide = max(box.width / (len(edges) - 1) - 0.4, 0.6)
    for step in shown:
        _column(drawing, step, time(step.start_s), _width(step, time, wide), tokens)
    if timed:
        lower = Box(LEFT, box.bottom + BETWEEN, box.width, each)
        longest = max(step.ms or 0.0 for step in steps)
        ms = Scale(0.0, max(1.0, longest * 1.1), lower.bottom, lower.top)
        drawing.axis_left(lower, ms, "step, ms")
        for step in shown:
            top = ms(step.ms or 0.0)
            fill = "prefill" if step.prompt_tokens else "decode"
            width = _width(step, time, wide)
            bar = Box(time(step.start_s), top, width, lower.bottom - top)
            drawing.rect(bar, fill, hint=_words(step))
        drawing.axis_bottom(lower, time, "seconds of the run")
    else:
        drawing.axis_bottom(box, time, "seconds of the run")
    drawing.legend(
        (LEFT, 20), [("decode", "decodes"), ("prefill", "prompt tokens (a step that has some)")]
    )
    return drawing


def _largest(steps: Sequence[KnownStep]) -> KnownStep:
    return max(steps, key=lambda step: (step.ms or 0.0, step.prompt_tokens))


def _width(step: KnownStep, time: Scale, least: float) -> float:
    """As wide as the step was long, but visible."""
    end_s = step.start_s + (step.ms or 0.0) / 1e3
    return max(least, time(end_s) - time(step.start_s) - 0.3)


def _column(drawing: Drawing, step: KnownStep, x: float, wide: float, tokens: Scale) -> None:
    lower = tokens(float(step.num_decodes))
    drawing.rect(Box(x, lower, wide, tokens(0.0) - lower), "decode")
    if step.prompt_tokens:
        upper = tokens(float(step.num_decodes + step.prompt_tokens))
        drawing.rect(Box(x, upper, wide, lower - upper), "prefill", hint=_words(step))


def _words(step: KnownStep) -> str:
    took = "" if step.ms is None else f", {step.ms:.1f} ms"
    return (
        f"{step.start_s:.3f} s: {step.num_decodes:,} decodes, "
        f"{step.prompt_tokens:,} prompt tokens{took}"
    )
