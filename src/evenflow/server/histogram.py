"""A histogram that takes a value with a weight, so that a step's equal gaps cost one call.

prometheus_client's own takes one value a call, under a lock. Here one thread writes and another may
read: a reader can be one step behind, never wrong by more.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Sequence


class Histogram:
    """Counts by upper bound.

    Args:
        name: the metric's, with its unit.
        help_text: what is counted.
        bounds: upper bounds, rising; a last one without limit is added.
    """

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self._help = help_text
        self._bounds = list(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """Count a value `weight` times."""
        self.counts[bisect_left(self._bounds, value)] += weight
        self.total += value * weight

    def family(self, prefix: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """As Prometheus wants it: counts up to each bound."""
        family = HistogramMetricFamily(f"{prefix}:{self.name}", self._help, labels=list(labels))
        running = 0
        buckets = []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], list(self.counts), strict=True):
            running += count
            buckets.append((bound, running))
        family.add_metric(list(labels.values()), buckets, self.total)
        return family


def fine_ms(*ranges: tuple[float, float, float]) -> list[float]:
    """Bounds in seconds from (first, last, step) ranges in milliseconds."""
    bounds: list[float] = []
    for first, last, step in ranges:
        num_steps = round((last - first) / step)
        bounds += [round(first + i * step, 6) / 1000 for i in range(num_steps + 1)]
    return sorted(set(bounds))


# 1 ms apart up to 30 and 2 ms apart up to 100: a percentile near a 20 or 40 ms target is off by no
# more than that.
GAP_BOUNDS_S = fine_ms(
    (1, 30, 1), (32, 60, 2), (65, 100, 5), (125, 300, 25), (400, 1000, 100), (1500, 10_000, 500)
)
STEP_BOUNDS_S = fine_ms((0.5, 5, 0.5), (6, 30, 1), (32, 60, 2), (70, 200, 10), (250, 2000, 250))
TTFT_BOUNDS_S = fine_ms(
    (5, 50, 5), (60, 200, 20), (250, 1000, 50), (1250, 5000, 250), (6000, 30_000, 2000)
)
LONG_BOUNDS_S = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600]
TOKEN_BOUNDS = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 32_768]
