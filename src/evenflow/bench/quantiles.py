"""Percentiles with confidence intervals from a block bootstrap over time.

Gaps of neighbouring steps, and of streams that share a step, move together; resampling them one by
one would promise more than the data hold. So the window is cut into stretches of time and whole
stretches are drawn, with everything that happened in them.

In: values and when they happened. Out: estimates. Pure functions; the random numbers are seeded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LEVEL = 0.95
MAX_BLOCKS = 20  # long enough to hold what moves together, many enough to tell their spread
MIN_BLOCKS = 8  # fewer say nothing about their spread
REPLICATES = 1000
MAX_CELLS = 400  # of the ordered values in the bootstrap; only speed depends on it


class Estimate(NamedTuple):
    """A figure and its interval; None where the data are too few for one.

    `beyond` says that the percentile lies above all but the largest value, so it is merely the
    largest one seen.
    """

    value: float
    low: float | None
    high: float | None
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a set of values looks like; `percentiles` by number, such as 99 or 99.9."""

    count: int
    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: dict[float, Estimate]

    def value(self, percent: float) -> float:
        """The percentile without its interval."""
        return self.percentiles[percent].value

    def as_json(self) -> dict[str, Any]:
        """With keys that say what they are."""
        return {
            "count": self.count,
            "mean": self.mean,
            "std": self.std,
            "min": self.minimum,
            "max": self.maximum,
            **{
                f"p{percent:g}": {
                    "value": e.value,
                    "low": e.low,
                    "high": e.high,
                    "beyond": e.beyond,
                }
                for percent, e in self.percentiles.items()
            },
        }


def describe(
    values: Floats,
    times_s: Floats,
    percents: Sequence[float],
    *,
    seed: int = 0,
    longest_s: float = 0.0,
) -> Distribution | None:
    """Summarise values with intervals; None without values.

    Args:
        values: what was measured, in its own unit.
        times_s: when each was measured; orders them into blocks.
        percents: from 0 to 100. Between neighbours on a straight line (definition 7 of Hyndman and
            Fan, 1996, which NumPy and vLLM's client use).
        seed: of the bootstrap.
        longest_s: no block is shorter than this, such as the longest gap, which a cut would halve.
    """
    if not len(values):
        return None
    points = np.percentile(values, percents)
    intervals = bootstrap(values, blocks_of(times_s, longest_s), percents, seed=seed)
    n = len(values)
    estimates = {
        percent: Estimate(
            float(point),
            None if interval is None else interval[0],
            None if interval is None else interval[1],
            beyond=percent < 100 and n * (1 - percent / 100) < 1,
        )
        for percent, point, interval in zip(percents, points, intervals, strict=True)
    }
    return Distribution(
        n,
        float(values.mean()),
        float(values.std()),
        float(values.min()),
        float(values.max()),
        estimates,
    )


def blocks_of(times_s: Floats, longest_s: float = 0.0) -> Ints:
    """The block of time that each value falls into, numbered from 0; blocks are equally long."""
    start, end = float(times_s.min()), float(times_s.max())
    span = end - start
    if span <= 0:
        return np.zeros(len(times_s), np.int64)
    count = MAX_BLOCKS
    if longest_s > 0:
        count = max(1, min(count, math.floor(span / longest_s)))
    blocks = ((times_s - start) / span * count).astype(np.int64)
    return np.minimum(blocks, count - 1)


def bootstrap(
    values: Floats, blocks: Ints, percents: Sequence[float], *, seed: int = 0
) -> list[tuple[float, float] | None]:
    """An interval for each percentile, by drawing whole blocks with replacement.

    Returns:
        (low, high) of the middle 95 % of the replicates; None where fewer than 8 blocks hold data.
    """
    used, index = np.unique(blocks, return_inverse=True)
    if len(used) < MIN_BLOCKS:
        return [None] * len(percents)
    replicates = replicate_percentiles(values, index, len(used), percents, seed=seed)
    tail = (1 - LEVEL) / 2
    lows, highs = np.quantile(replicates, [tail, 1 - tail], axis=0)
    return [(float(low), float(high)) for low, high in zip(lows, highs, strict=True)]


def replicate_percentiles(
    values: Floats, block: Ints, num_blocks: int, percents: Sequence[float], *, seed: int
) -> Floats:
    """Percentiles of many resampled data sets. [replicates, percents].

    The ordered values are split into cells. How often each block is drawn gives, by one matrix
    product, how many values each resampled set has up to each cell; only the cell that holds the
    wanted rank is then looked into.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(values, kind="stable")
    ordered, owner = values[order], block[order]
    size = -(-len(values) // min(len(values), MAX_CELLS))
    cell = np.arange(len(values)) // size
    in_cell = np.zeros((num_blocks, int(cell[-1]) + 1))
    np.add.at(in_cell, (owner, cell), 1)
    draws = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), REPLICATES)
    up_to = np.cumsum(draws @ in_cell, axis=1).astype(np.int64)
    total = up_to[:, -1]
    padding = -len(values) % size
    owner = np.concatenate([owner, np.zeros(padding, np.int64)])
    columns = []
    for percent in percents:
        position = (total - 1) * percent / 100
        low = np.floor(position).astype(np.int64)
        first = _of_rank(low, ordered, owner, draws, up_to)
        after = _of_rank(np.minimum(low + 1, total - 1), ordered, owner, draws, up_to)
        columns.append(first + (after - first) * (position - low))
    return np.stack(columns, axis=1)


def _of_rank(rank: Ints, ordered: Floats, owner: Ints, draws: Ints, up_to: Ints) -> Floats:
    """The value of a rank, counted from 0, in each resampled set. [replicates].

    Args:
        rank: one per set. [replicates]
        ordered: all values. [values]
        owner: the block of each value, padded to whole cells. [cells * size]
        draws: how often each set has each block. [replicates, blocks]
        up_to: how many values each set has up to the end of each cell. [replicates, cells]
    """
    rows = np.arange(len(rank))
    cell = (up_to <= rank[:, None]).sum(axis=1)
    before = np.where(cell > 0, up_to[rows, np.maximum(cell - 1, 0)], 0)
    size = len(owner) // up_to.shape[1]
    members = cell[:, None] * size + np.arange(size)
    counts = np.cumsum(draws[rows[:, None], owner[members]], axis=1)
    within = (counts <= (rank - before)[:, None]).sum(axis=1)
    found: Floats = ordered[np.minimum(cell * size + within, len(ordered) - 1)]
    return found
