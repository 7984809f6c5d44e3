"""Gaps over time, with the prefills to blame in lanes below: the picture of a stall.

In: what was found. Out: a drawing. The usual gaps are a band (their middle nine tenths at each
moment), since a point for each would hide the rest; every stall is a bar as long as it lasted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.verdict import PART, WORDS
from evenflow.bench.gaps import gap_table
from evenflow.bench.report.svg import Box, Drawing, Scale
from evenflow.bench.show import with_unit

if TYPE_CHECKING:
    from evenflow.bench.blame.model import Blame, Episode, Offender
    from evenflow.bench.gaps import GapTable
    from evenflow.bench.records import Records

WIDTH, PLOT_HEIGHT = 1080.0, 300.0
LEFT, RIGHT, TOP = 64.0, 24.0, 60.0
LANE, LANES = 22.0, 8
BINS = 220
ROOM = 1.25  # above the highest value
FEW = 4  # gaps in a moment have no median worth a line


def draw_timeline(records: Records, blame: Blame) -> Drawing | None:
    """The picture, or None when there is no gap to show."""
    gaps = gap_table(records.requests)
    if not gaps:
        return None
    lanes = blame.offenders[:LANES]
    others = [e for e in blame.episodes if e.cause != "prefill"]
    num_lanes = len(lanes) + bool(others)
    height = TOP + PLOT_HEIGHT + 40 + (LANE * num_lanes + 34 if num_lanes else 0)
    drawing = Drawing(WIDTH, height, "Gaps between tokens over time, and the prefills to blame")
    drawing.rect(Box(0, 0, WIDTH, height), "paper")
    box = Box(LEFT, TOP, WIDTH - LEFT - RIGHT, PLOT_HEIGHT)
    start_s = min(float(gaps.start_s.min()), *(o.send_s for o in lanes), np.inf)
    time = Scale(start_s, max(float(gaps.end_s.max()), start_s + 1e-3), box.left, box.right)
    lengths = gaps.ms[gaps.ms > 0]
    low = max(0.1, float(np.percentile(lengths, 1)) / ROOM) if len(lengths) else 1.0
    high = max(float(gaps.ms.max()) * ROOM, low * 10)
    gap = Scale(low, high, box.bottom, box.top, log=True)
    drawing.axis_left(box, gap, "gap, ms")
    drawing.axis_bottom(box, time, "seconds of the run")
    _shade(drawing, box, time, blame.episodes)
    _usual(drawing, gaps, blame, time, gap)
    for episode in blame.episodes:
        _stall(drawing, episode, time, gap)
    _legend(drawing, blame)
    top = box.bottom + 52
    if num_lanes:
        drawing.text((box.left, top - 8), "who was in the way", fill="ink", bold=True, size=12)
    for i, offender in enumerate(lanes):
        lane = Box(box.left, top + i * LANE, box.width, LANE)
        _lane(drawing, lane, time, offender, (records, blame))
    if others:
        _other_lane(drawing, Box(box.left, top + len(lanes) * LANE, box.width, LANE), time, others)
    return drawing


def _shade(drawing: Drawing, box: Box, time: Scale, episodes: list[Episode]) -> None:
    for e in episodes:
        x = time(e.start_s)
        drawing.rect(Box(x, box.top, time(e.end_s) - x, box.height), e.cause, opacity=0.07)


def _usual(drawing: Drawing, gaps: GapTable, blame: Blame, time: Scale, gap: Scale) -> None:
    """The gaps that are no stalls, as a band with its median."""
    stalled = {(s.request_id, s.end_s) for e in blame.episodes for s in e.stalls}
    limit_ms = min((s.gap_ms for e in blame.episodes for s in e.stalls), default=np.inf)
    usual = gaps.ms < limit_ms if stalled else np.ones(len(gaps.start_s), np.bool_)
    ends, lengths = gaps.end_s[usual], gaps.ms[usual]
    edges = np.linspace(time.low, time.high, BINS + 1)
    bins = np.clip(np.searchsorted(edges, ends, side="right") - 1, 0, BINS - 1)
    order = np.argsort(bins, kind="stable")
    found, starts = np.unique(bins[order], return_index=True)
    middle: list[tuple[float, float]] = []
    for number, values in zip(found, np.split(lengths[order], starts[1:]), strict=True):
        low, median, high = np.percentile(values, [5, 50, 95])
        left, right = time(float(edges[number])), time(float(edges[number + 1]))
        top, bottom = gap(float(high)), gap(float(low))
        drawing.rect(Box(left, top, right - left, bottom - top + 0.5), "usual", opacity=0.35)
        if len(values) < FEW:
            continue
        if middle and left - middle[-1][0] > 2 * (right - left):
            drawing.line(middle, "ink", 1.2)
            middle = []
        middle.append(((left + right) / 2, gap(float(median))))
    drawing.line(middle, "ink", 1.2)


def _stall(drawing: Drawing, episode: Episode, time: Scale, gap: Scale) -> None:
    """A bar at the stall's height, thicker with more streams."""
    worst = max(s.gap_ms for s in episode.stalls)
    x, y = time(episode.start_s), gap(worst)
    thick = min(3.0 + 0.35 * len(episode.stalls), 10.0)
    width = max(time(episode.end_s) - x, 2.5)
    whom = ", ".join(f"{c.request_id} {c.ms:.0f} ms" for c in episode.culprits[:4])
    hint = (
        f"{len(episode.stalls)} of {episode.num_decoding} streams, {with_unit(worst)}, "
        f"at {episode.start_s:.3f} s: {WORDS[episode.cause]} ({episode.confidence:.0%} sure)"
        + (f"; {whom}" if whom else "")
    )
    box = Box(x, y - thick / 2, width, thick)
    drawing.rect(box, episode.cause, opacity=0.9, hint=hint, radius=1.5)


def _legend(drawing: Drawing, blame: Blame) -> None:
    entries = [("usual", "usual gaps: the middle 90 %, and the median")]
    entries += [(cause, f"stalls: {WORDS[cause]}") for cause in blame.causes]
    drawing.legend((LEFT, 20), entries)


def _lane(
    drawing: Drawing, lane: Box, time: Scale, offender: Offender, found: tuple[Records, Blame]
) -> None:
    """From sending to the first token, with the stalls that it caused filled in."""
    records, blame = found
    request = next((r for r in records.requests if r.id == offender.request_id), None)
    if request is None or request.send_s is None:
        return
    first_s = request.first_token_s
    end_s = first_s if first_s is not None else request.end_s or request.send_s
    x, middle = time(request.send_s), lane.top + lane.height / 2
    drawing.line([(lane.left, lane.bottom), (lane.right, lane.bottom)], "line")
    prompt = "" if request.prompt_tokens is None else f"{request.prompt_tokens:,} tokens, "
    words = f"{offender.request_id}: {prompt}{offender.stream_ms / 1e3:,.2f} s x streams"
    hint = f"{words}; first token after {with_unit((end_s - request.send_s) * 1e3)}"
    width = max(time(end_s) - x, 2.0)
    bar = Box(x, middle - 6, width, 12)
    drawing.rect(bar, "prefill", opacity=0.3, hint=hint, radius=2)
    for e in blame.episodes:
        if e.part_of(offender.request_id) >= PART:
            left = max(time(e.start_s), x)
            wide = min(time(e.end_s), x + width) - left
            if wide > 0:
                drawing.rect(Box(left, middle - 6, wide, 12), "prefill", hint=hint)
    fits_right = x + width + 8 + 6.2 * len(words) < lane.right
    if fits_right:
        drawing.text((x + width + 8, middle + 4), words, fill="ink")
    else:
        drawing.text((x - 8, middle + 4), words, fill="ink", anchor="end")


def _other_lane(drawing: Drawing, lane: Box, time: Scale, episodes: list[Episode]) -> None:
    middle = lane.top + lane.height / 2
    for e in episodes:
        x = time(e.start_s)
        hint = f"{WORDS[e.cause]}: {e.evidence}"
        box = Box(x, middle - 6, max(time(e.end_s) - x, 2.0), 12)
        drawing.rect(box, e.cause, opacity=0.9, hint=hint, radius=2)
    drawing.text((lane.left - 6, middle + 4), "other", anchor="end")
