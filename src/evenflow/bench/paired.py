"""Paired differences: their mean, its interval, and a verdict in words.

In: logarithms of ratios, one per pair of neighbouring runs. Out: figures. Pairs of runs that follow
one another share the machine's mood, which is most of what differs between runs.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1; beyond, the normal one
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
NORMAL_95 = 1.960
MOST_PERCENT = 1000.0  # beyond it a number says no more than that there is none
TOO_NOISY_PERCENT = 100.0  # a bound beyond this bounds nothing that matters


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean and its 95 % interval (Student's t); no interval for a single value.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("an interval of no values")
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    degrees = len(values) - 1
    t = T_95[degrees - 1] if degrees <= len(T_95) else NORMAL_95
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


class Verdict(NamedTuple):
    """What can be said of B against A for one figure.

    `change` is "lower", "higher" or "none"; `low_percent` and `high_percent` bound how much, as
    positive numbers; for "none" `high_percent` is what a difference would have had to exceed.
    `noise_percent` is the largest difference that A showed against itself; None without an A/A run.
    """

    change: str
    low_percent: float
    high_percent: float
    noise_percent: float | None
    ratio: float
    pairs: int

    def words(self, title: str) -> str:
        """In one line."""
        if self.change == "none" and self.pairs == 1:
            return f"{title}: cannot be told from one pair"
        if self.change == "none" and self.high_percent > TOO_NOISY_PERCENT:
            return f"{title}: cannot be told: runs differ by {_bounded(self.high_percent)} %"
        if self.change == "none":
            return f"{title}: no difference above {self.high_percent:.1f} %"
        if f"{self.low_percent:.0f}" == f"{self.high_percent:.0f}":
            return f"{title}: {self.high_percent:.1f} % {self.change}"
        return f"{title}: {self.low_percent:.0f} to {self.high_percent:.0f} % {self.change}"


def _bounded(value: float) -> str:
    return f"up to {value:,.0f}" if value <= MOST_PERCENT else f"more than {MOST_PERCENT:,.0f}"


def decide(log_ratios: Sequence[float], noise: Sequence[float]) -> Verdict:
    """Decide whether B differs from A.

    It does when the interval of the mean leaves out zero and the mean exceeds all that A showed
    against itself: an interval from few pairs can be narrow by luck.

    Args:
        log_ratios: log(B / A), one per pair.
        noise: the same of A against A.
    """
    mean, low, high = interval(log_ratios)
    floor = max((abs(n) for n in noise), default=0.0)
    floor_percent = percent(floor) if noise else None
    ratio = math.exp(mean)
    if low is None or high is None or low <= 0 <= high or abs(mean) <= floor:
        edges = [abs(x) for x in (low, high) if x is not None] or [abs(mean)]
        widest = max(*edges, floor)
        return Verdict("none", 0.0, percent(widest), floor_percent, ratio, len(log_ratios))
    change = "lower" if mean < 0 else "higher"
    # the interval's own ends, but never nearer to zero than what could be told apart at all
    bounds = sorted(abs(math.expm1(x)) * 100 for x in (low, high))
    return Verdict(change, bounds[0], bounds[1], floor_percent, ratio, len(log_ratios))


def percent(log_ratio: float) -> float:
    """A ratio's logarithm as the percentage by which it differs from 1."""
    return abs(math.expm1(log_ratio)) * 100
