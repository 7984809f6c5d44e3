"""Scalable drawings as text: elements, axes, ticks. Knows nothing of what is drawn.

Colours are names of variables, such as `prefill`; `PALETTE` holds their values by day and by night,
so that one drawing serves a page that follows the reader's settings, and a picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

PALETTE: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#1b1f24", "#e6e9ee"),
    "soft": ("#5b6470", "#9aa4b2"),
    "line": ("#dfe3e8", "#2c323b"),
    "usual": ("#7b8794", "#7f8b99"),
    "prefill": ("#d1495b", "#ff7486"),
    "server_pause": ("#c77c11", "#f0a83c"),
    "preemption": ("#6c5ce7", "#a397ff"),
    "queueing": ("#3f7fd9", "#7cb0ff"),
    "client": ("#0f8a7e", "#3ccabb"),
    "buffering": ("#6b8e23", "#a8cc5a"),
    "unknown": ("#8a8a8a", "#a8a8a8"),
    "decode": ("#3f7fd9", "#7cb0ff"),
    "class0": ("#1b1f24", "#e6e9ee"),
    "class1": ("#3f7fd9", "#7cb0ff"),
    "class2": ("#d1495b", "#ff7486"),
    "class3": ("#0f8a7e", "#3ccabb"),
    "class4": ("#c77c11", "#f0a83c"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def colour(name: str) -> str:
    """A colour by its name in the palette."""
    return f"var(--{name})"


def by_day(drawing: str) -> str:
    """The drawing with its colours filled in, for programs that know no variables."""
    for name, (day, _) in PALETTE.items():
        drawing = drawing.replace(f"var(--{name})", day)
    return drawing


class Box(NamedTuple):
    """A rectangle in which a chart is drawn, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels, linear or logarithmic; values beyond the ends are held at them."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is drawn."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values within the ends: 1, 2, 5 and 10 times a power of ten."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            every = [s * 10.0**p for p in range(first, last + 1) for s in steps]
            return [v for v in every if self.low * 0.999 <= v <= self.high * 1.001]
        rough = (self.high - self.low) / max(1, count)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


@dataclass(slots=True)
class Drawing:
    """Elements of one picture, in the order in which they cover each other."""

    width: float
    height: float
    title: str
    parts: list[str] = field(default_factory=list)

    def rect(
        self,
        box: Box,
        fill: str,
        *,
        opacity: float = 1.0,
        hint: str = "",
        radius: float = 0.0,
    ) -> None:
        """A filled rectangle; `hint` shows when the pointer rests on it."""
        shape = (
            f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{max(box.width, 0.3):.1f}" '
            f'height="{max(box.height, 0.3):.1f}" fill="{colour(fill)}"'
        )
        shape += f' opacity="{opacity:g}"' if opacity < 1 else ""
        shape += f' rx="{radius:g}"' if radius else ""
        self.parts.append(f"{shape}><title>{escape(hint)}</title></rect>" if hint else f"{shape}/>")

    def line(self, points: list[tuple[float, float]], stroke: str, width: float = 1.0) -> None:
        """A broken line."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour(stroke)}" '
            f'stroke-width="{width:g}" stroke-linejoin="round"/>'
        )

    def text(
        self,
        at: tuple[float, float],
        words: str,
        *,
        fill: str = "soft",
        anchor: str = "start",
        size: float = 11.0,
        bold: bool = False,
    ) -> None:
        """One line of text; `at` is its baseline."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" fill="{colour(fill)}" text-anchor="{anchor}" '
            f'font-size="{size:g}"{weight}>{escape(words)}</text>'
        )

    def axis_left(self, box: Box, scale: Scale, unit: str) -> None:
        """Lines across and their values on the left."""
        for value in scale.ticks():
            y = scale(value)
            self.line([(box.left, y), (box.right, y)], "line")
            self.text((box.left - 6, y + 3.5), number(value), anchor="end")
        self.text((box.left - 6, box.top - 9), unit, anchor="end")

    def axis_bottom(self, box: Box, scale: Scale, unit: str) -> None:
        """Values below."""
        ticks = scale.ticks(8)
        for value in ticks:
            x = scale(value)
            self.line([(x, box.bottom), (x, box.bottom + 4)], "soft")
            self.text((x, box.bottom + 16), number(value), anchor="middle")
        self.line([(box.left, box.bottom), (box.right, box.bottom)], "soft")
        self.text((box.right, box.bottom + 30), unit, anchor="end")

    def legend(self, at: tuple[float, float], entries: list[tuple[str, str]]) -> None:
        """Squares with words, from left to right, and on as many lines as they need."""
        x, y = at
        for fill, words in entries:
            if x > at[0] and x + 15 + 6.2 * len(words) > self.width:
                x, y = at[0], y + 16
            self.rect(Box(x, y - 9, 10, 10), fill, radius=2)
            self.text((x + 15, y), words)
            x += 15 + 6.2 * len(words) + 18

    def svg(self) -> str:
        """The picture as text."""
        inner = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" '
            f"aria-label={quoteattr(self.title)} font-family={quoteattr(FONT)}>\n{inner}\n</svg>"
        )


def number(value: float) -> str:
    """A tick's value, without more digits than it needs."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}"
