"""The distribution of the gaps as its tail: how large a share is longer than each length.

On two logarithmic axes one gap in a thousand is as easy to see as the median, which no histogram
offers. In: gaps. Out: a drawing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.gaps import gap_table
from evenflow.bench.report.svg import Box, Drawing, Scale

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.bench.blame.model import Blame
    from evenflow.bench.records import Records

    Floats = NDArray[np.float64]

WIDTH, HEIGHT = 1080.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 24.0, 44.0, 44.0
POINTS = 240
MAX_CLASSES = 4
MARKS = (50.0, 99.0, 99.9)


def draw_tail(records: Records, blame: Blame) -> Drawing | None:
    """The picture, or None when there is no gap to show."""
    gaps = gap_table(records.requests)
    lengths = gaps.ms[gaps.ms > 0]
    if not len(lengths):
        return None
    curves = [("class0", "all gaps", lengths)]
    names = sorted({r.class_name for r in records.requests})
    if 1 < len(names) <= MAX_CLASSES:
        for i, name in enumerate(names):
            mine = [j for j, r in enumerate(records.requests) if r.class_name == name]
            chosen = np.isin(gaps.request, mine) & (gaps.ms > 0)
            curves.append((f"class{i + 1}", name or "no class", gaps.ms[chosen]))
    blamed = {
        (s.request_id, s.end_s) for e in blame.episodes if e.cause == "prefill" for s in e.stalls
    }
    if blamed:
        free = [
            (records.requests[int(r)].id, float(end)) not in blamed
            for r, end in zip(gaps.request, gaps.end_s, strict=True)
        ]
        rest = gaps.ms[np.array(free) & (gaps.ms > 0)]
        curves.append(("client", "without the stalls that prefills explain", rest))
    drawing = Drawing(WIDTH, HEIGHT, "Share of gaps that are longer than a length")
    drawing.rect(Box(0, 0, WIDTH, HEIGHT), "paper")
    box = Box(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    low = max(0.1, float(np.percentile(lengths, 1)) / 1.5)
    ms = Scale(low, max(float(lengths.max()) * 1.2, low * 10), box.left, box.right, log=True)
    least = 0.5 / len(lengths)
    share = Scale(least, 1.0, box.bottom, box.top, log=True)
    for power in range(7):
        value = 10.0**-power
        if value >= least:
            drawing.line([(box.left, share(value)), (box.right, share(value))], "line")
            label = f"{value * 100:g} %"
            drawing.text((box.left - 6, share(value) + 3.5), label, anchor="end")
    drawing.axis_bottom(box, ms, "gap, ms")
    for name, _, values in curves:
        if len(values):
            drawing.line(_curve(values, ms, share), name, 1.8)
    for percent in MARKS:
        if len(lengths) * (1 - percent / 100) >= 1:
            value = float(np.percentile(lengths, percent))
            at = ms(value), share(1 - percent / 100)
            drawing.rect(Box(at[0] - 3, at[1] - 3, 6, 6), "class0", radius=3)
            near_edge = at[0] > box.right - 110
            x, anchor = (at[0] - 8, "end") if near_edge else (at[0] + 8, "start")
            words = f"p{percent:g}  {value:,.1f} ms"
            drawing.text((x, at[1] - 5), words, fill="ink", anchor=anchor)
    drawing.legend((LEFT, 20), [(name, words) for name, words, values in curves if len(values)])
    return drawing


def _curve(values: Floats, ms: Scale, share: Scale) -> list[tuple[float, float]]:
    """The share of values that are at least so long, at lengths that are evenly spread."""
    ordered = np.sort(values)
    n = len(ordered)
    tail = np.unique(np.geomspace(1, n, POINTS).astype(np.int64))
    body = np.linspace(1, n, POINTS).astype(np.int64)
    ranks = np.unique(np.concatenate([tail, body]))[::-1]  # how many values are at least so long
    return [(ms(float(ordered[n - rank])), share(float(rank / n))) for rank in ranks]
