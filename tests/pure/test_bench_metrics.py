"""Statistics of gaps: checked against NumPy's definitions and by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.bench.metrics import GapStats, Window, gap_stats, gaps, percentile, tokens_per_s

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(values=VALUES, percent=st.floats(0, 100))
def test_percentile_is_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-9)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_of_nothing_or_beyond_is_refused(values, percent):
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_gaps_lie_between_tokens_and_leave_the_first_wait_out():
    assert gaps([5.0, 5.5, 7.0]) == [Window(5.0, 5.5), Window(5.5, 7.0)]
    assert gaps([5.0]) == gaps([]) == []


def test_gap_stats_are_in_milliseconds():
    stats = gap_stats(gaps([0.0, 0.010, 0.030, 0.060]))
    assert stats.num_gaps == 3
    assert stats.p50_ms == pytest.approx(20)
    assert stats.worst_ms == pytest.approx(30)
    assert gap_stats([]) == GapStats(0, None, None, None, None)


@given(values=VALUES)
def test_gap_percentiles_rise(values):
    stats = gap_stats([Window(0, value) for value in values])
    ordered = [min(values) * 1e3, stats.p50_ms, stats.p95_ms, stats.p99_ms, stats.worst_ms]
    # neighbours may differ in the last bit, since they are interpolated
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(ordered))


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (Window(0, 1), False),
        (Window(0, 1.1), True),
        (Window(1.2, 1.3), True),
        (Window(0, 9), True),
        (Window(2, 3), False),
        (Window(1.9, 3), True),
    ],
)
def test_windows_that_only_touch_do_not_overlap(other, shared):
    assert Window(1, 2).overlaps(other) is shared
    assert other.overlaps(Window(1, 2)) is shared


def test_a_rate_needs_time():
    assert tokens_per_s(30, Window(1, 3)) == 15
    assert tokens_per_s(30, Window(1, 1)) is None
