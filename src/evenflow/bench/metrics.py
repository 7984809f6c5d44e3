"""Gaps, percentiles and rates from records: pure functions of time stamps.

In go times in seconds, out come statistics in milliseconds. Nothing here knows where the records
came from, reads a clock, or rounds.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Window(NamedTuple):
    """A stretch of time, in seconds of the records' clock."""

    start_s: float
    end_s: float

    @property
    def ms(self) -> float:
        """How long it is."""
        return (self.end_s - self.start_s) * 1e3

    def overlaps(self, other: Window) -> bool:
        """Whether the two share more than an instant."""
        return self.start_s < other.end_s and other.start_s < self.end_s


class GapStats(NamedTuple):
    """What a set of gaps looks like; all but the count in milliseconds, None without gaps."""

    num_gaps: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    worst_ms: float | None


def gaps(token_times_s: Sequence[float]) -> list[Window]:
    """The gaps between one stream's tokens (its ITL); the wait for the first is not among them."""
    return [Window(before, after) for before, after in itertools.pairwise(token_times_s)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value under which `percent` of the values lie, between neighbours on a straight line.

    This is definition 7 of Hyndman and Fan (1996), which NumPy also uses. With fewer than
    100 / (100 - percent) values it is close to the largest one.

    Raises:
        ValueError: no values, or a percent outside 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def gap_stats(windows: Iterable[Window]) -> GapStats:
    """Percentiles of a set of gaps, pooled over streams."""
    values = [window.ms for window in windows]
    if not values:
        return GapStats(0, None, None, None, None)
    return GapStats(
        len(values),
        percentile(values, 50),
        percentile(values, 95),
        percentile(values, 99),
        max(values),
    )


def tokens_per_s(num_tokens: int, window: Window) -> float | None:
    """A rate; None for a window without length."""
    seconds = window.end_s - window.start_s
    return num_tokens / seconds if seconds > 0 else None
