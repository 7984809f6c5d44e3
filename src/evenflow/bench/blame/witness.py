"""What decoding streams saw of a stretch of time: its slow gaps.

A prompt cannot be computed without the streams of the same engine noticing, so the slow gaps bound
the time that prefills can have taken. In: the gaps of a run. Out: the slow ones in a stretch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from evenflow.bench.blame.find import Found

TOLERANCE_S = 0.003  # messages this close may be of one step
SLOW = 1.4  # times the usual gap: a step with a chunk in it


class Seen(NamedTuple):
    """The slow gaps in a stretch, as start and end, and how much of it anybody was decoding."""

    slow: list[tuple[float, float]]
    covered_s: float


class Witnesses:
    """The streams of a run, asked for what they saw."""

    def __init__(self, found: Found) -> None:
        self._gaps = found.gaps
        self._plain = found.plain_ms
        _, starts = np.unique(found.gaps.request, return_index=True)
        ends = np.append(starts[1:], len(found.gaps.request))[: len(starts)]
        self._ranges = np.stack([starts, ends], axis=1)
        self._first = found.gaps.start_s[starts]
        self._last = found.gaps.end_s[ends - 1] if len(starts) else self._first

    def seen(self, start_s: float, end_s: float) -> Seen:
        """The slow gaps in a stretch, by one stream after the other."""
        slow: list[tuple[float, float]] = []
        covered_s = 0.0
        at_s = start_s
        while at_s < end_s:
            live = np.flatnonzero((self._first <= at_s) & (self._last > at_s))
            if not len(live):
                later = self._first[self._first > at_s]
                at_s = float(later.min()) if len(later) else end_s
                continue
            best = live[np.argmax(self._last[live])]
            low, high = self._ranges[best]
            low += np.searchsorted(self._gaps.end_s[low:high], at_s, side="right")
            high = low + np.searchsorted(self._gaps.start_s[low:high], end_s, side="left")
            starts, ends = self._gaps.start_s[low:high], self._gaps.end_s[low:high]
            is_slow = (ends - starts) * 1e3 > SLOW * self._plain[low:high]
            slow += zip(starts[is_slow].tolist(), ends[is_slow].tolist(), strict=True)
            until_s = float(self._last[best])
            covered_s += min(until_s, end_s) - at_s
            at_s = until_s
        return Seen(slow, covered_s)

    def slow_ms(self, start_s: float, end_s: float) -> float | None:
        """How much of a stretch lay in slow gaps; None where hardly anybody was decoding."""
        seen = self.seen(start_s, end_s)
        if seen.covered_s < 0.5 * (end_s - start_s):
            return None
        return sum(min(e, end_s) - max(s, start_s) for s, e in seen.slow) * 1e3

    def step_before(self, end_s: float) -> float | None:
        """The start of the slow gap that a stream saw end at about this time; None where nobody did."""
        live = np.flatnonzero((self._first < end_s) & (self._last >= end_s - TOLERANCE_S))
        found = []
        for stream in live:
            low, high = self._ranges[stream]
            at = low + int(np.searchsorted(self._gaps.end_s[low:high], end_s - TOLERANCE_S))
            if at < high and self._gaps.end_s[at] <= end_s + TOLERANCE_S:
                start_s, length_ms = self._gaps.start_s[at], self._gaps.ms[at]
                if length_ms > SLOW * self._plain[at]:
                    found.append(float(start_s))
        return float(np.median(found)) if found else None
