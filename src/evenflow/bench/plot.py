"""Dots on a terminal: a scatter of values over time, logarithmic, four dots to a row of text.

In: points. Out: lines of text, made of braille characters. Draws nothing itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# the bit of each dot of a braille character, [column][row from the top]
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BLANK = 0x2800
LABEL_WIDTH = 8
FLOOR_MS = 0.1  # messages that came together are no reason for two more decades


class Band(NamedTuple):
    """A stretch of the time axis that is marked below the plot."""

    start: float
    end: float


def scatter(
    points: Sequence[tuple[float, float]],
    *,
    width: int,
    height: int,
    bands: Sequence[Band] = (),
) -> list[str]:
    """Lines of text, at most `width` wide: a scatter with its axes.

    Args:
        points: (time in seconds, milliseconds above 0); less than 0.1 ms is drawn as that.
        width: columns of text, labels included.
        height: rows of the plot itself.
        bands: stretches of time to mark, such as prefills.
    """
    drawn = [(x, max(y, FLOOR_MS)) for x, y in points if y > 0]
    columns = width - LABEL_WIDTH - 2
    if not drawn or columns < 10:
        return []
    first, last = min(x for x, _ in drawn), max(x for x, _ in drawn)
    span = max(last - first, 1e-9)
    bottom = math.log10(min(y for _, y in drawn))
    top = math.log10(max(y for _, y in drawn))
    if top - bottom < 0.3:
        bottom, top = bottom - 0.15, top + 0.15
    cells = [[0] * columns for _ in range(height)]
    for x, y in drawn:
        column = min(int((x - first) / span * columns * 2), columns * 2 - 1)
        level = (math.log10(y) - bottom) / (top - bottom)
        row = min(int((1 - level) * height * 4), height * 4 - 1)
        cells[row // 4][column // 2] |= DOTS[column % 2][row % 4]
    lines = []
    for number, row_cells in enumerate(cells):
        level = 10 ** (top - (top - bottom) * (number + 0.5) / height)
        label = _label(level) if number in {0, height // 2, height - 1} else ""
        lines.append(f"{label:>{LABEL_WIDTH}} │" + "".join(chr(BLANK + c) for c in row_cells))
    if bands:
        lines.append(" " * LABEL_WIDTH + " │" + _lane(bands, first, span, columns))
    lines.append(" " * LABEL_WIDTH + " └" + "─" * columns)
    right = f"{_three_digits(last)} s"
    left = f"{_three_digits(first)} s"
    lines.append(" " * (LABEL_WIDTH + 2) + left + right.rjust(columns - len(left)))
    return lines


def _label(ms: float) -> str:
    return f"{_three_digits(ms / 1e3)} s" if ms >= 999.5 else f"{_three_digits(ms)} ms"


def _three_digits(value: float) -> str:
    """At most five characters below 100,000, and never an exponent."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _lane(bands: Sequence[Band], first: float, span: float, columns: int) -> str:
    marks = [" "] * columns
    for band in bands:
        start = int((band.start - first) / span * columns)
        end = int((band.end - first) / span * columns)
        for i in range(max(0, start), min(columns, max(end, start + 1))):
            marks[i] = "▀"
    return "".join(marks)
