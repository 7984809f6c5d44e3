"""Percentiles are exact, and their intervals cover the truth also when values move together."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.bench import quantiles
from evenflow.bench.quantiles import blocks_of, bootstrap, describe, replicate_percentiles

PERCENTS = (0.0, 10.0, 50.0, 90.0, 99.0, 100.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("max_cells", [1, 3, 400])
def test_a_replicate_is_the_percentile_of_the_resampled_set_written_out(
    seed, max_cells, monkeypatch
):
    monkeypatch.setattr(quantiles, "REPLICATES", 20)
    monkeypatch.setattr(quantiles, "MAX_CELLS", max_cells)
    rng = np.random.default_rng(seed)
    num_blocks = int(rng.integers(1, 6))
    blocks = np.concatenate([np.arange(num_blocks), rng.integers(0, num_blocks, 25)])
    values = rng.integers(0, 9, len(blocks)).astype(float)
    found = replicate_percentiles(values, blocks, num_blocks, PERCENTS, seed=seed)
    share = np.full(num_blocks, 1 / num_blocks)
    draws = np.random.default_rng(seed).multinomial(num_blocks, share, 20)
    for row, counts in zip(found, draws, strict=True):
        assert np.allclose(row, np.percentile(np.repeat(values, counts[blocks]), PERCENTS))


def test_points_are_numpys_own():
    values = np.random.default_rng(1).exponential(10, 500)
    found = describe(values, np.arange(500.0), PERCENTS)
    assert found is not None
    for percent, estimate in found.percentiles.items():
        assert estimate.value == np.percentile(values, percent)
    assert (found.count, found.maximum) == (500, values.max())


def test_a_percentile_beyond_the_data_says_so():
    found = describe(np.arange(50.0), np.arange(50.0), (50.0, 99.0))
    assert found is not None
    assert not found.percentiles[50.0].beyond
    assert found.percentiles[99.0].beyond


def test_too_few_blocks_give_no_interval():
    assert bootstrap(np.arange(20.0), np.repeat([0, 1], 10), (50.0,)) == [None]
    found = describe(np.arange(20.0), np.arange(20.0), (50.0,), longest_s=10.0)
    assert found is not None
    assert found.percentiles[50.0].low is None


def test_no_block_is_shorter_than_the_longest_gap():
    times = np.linspace(0, 100, 1000)
    assert blocks_of(times, 10.0).max() + 1 == 10
    assert blocks_of(times).max() + 1 == quantiles.MAX_BLOCKS


def waves(rng, count=1200, run=30):
    """Values that move together for `run` at a time, like gaps of neighbouring steps."""
    return np.repeat(rng.exponential(10, count // run), run)


def covers(interval, truth):
    return interval is not None and interval[0] <= truth <= interval[1]


def test_intervals_cover_the_truth_where_resampling_single_values_does_not(monkeypatch):
    monkeypatch.setattr(quantiles, "REPLICATES", 100)
    truth = 10 * np.log(2)
    rng = np.random.default_rng(7)
    in_blocks = one_by_one = 0
    for seed in range(25):
        values = waves(rng)
        times = np.arange(len(values), dtype=float)
        in_blocks += covers(bootstrap(values, blocks_of(times), (50.0,), seed=seed)[0], truth)
        single = np.arange(len(values))
        one_by_one += covers(bootstrap(values, single, (50.0,), seed=seed)[0], truth)
    assert in_blocks >= 20
    assert one_by_one <= 12


def test_what_is_called_the_maximum_is_the_maximum():
    from evenflow.bench.show import estimate

    found = describe(np.array([10.0, 90.0]), np.array([0.0, 1.0]), (50.0, 99.0))
    assert estimate(found.percentiles[99.0], found.maximum).plain == "90.0\nmax seen"
    assert estimate(found.percentiles[50.0], found.maximum).plain == "50.0"
