"""Could it be chance? The stalls are held against the same prefills at other times.

Both the stalls and the prefills come in bursts, so shuffling single ones would promise too much.
Instead all prefills are moved together by a random time, around the end of the run to its start:
everything within them and within the stalls stays as it was, and only what ties the two is broken.
Pure functions; the random numbers are seeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.model import Episode
    from evenflow.bench.blame.prefills import Prefills

    Floats = NDArray[np.float64]

EXPLAINS = 0.5  # as in the attribution: less than this of a stall explains nothing
ROUNDING = 1e-6  # ties are common, since a stall is covered wholly or not at all
ENOUGH = 0.9  # of what was explained; a shift that reaches it explains "as well"


@dataclass(frozen=True, slots=True)
class Chance:
    """`p_value` for all stalls together, and `per_episode` for each."""

    p_value: float
    per_episode: list[float]


def against_chance(
    episodes: Sequence[Episode], prefills: Prefills, *, permutations: int, seed: int
) -> Chance:
    """Compare the stalled time that lies under prefills with what random shifts give.

    The run is taken as the time in which streams stalled or prefills ran.
    """
    if not episodes or not len(prefills):
        return Chance(1.0, [1.0] * len(episodes))
    starts = np.array([episode.start_s for episode in episodes])
    ends = np.array([episode.end_s for episode in episodes])
    whole = (ends - starts) * 1e3
    weight = np.array([len(episode.stalls) for episode in episodes], np.float64)
    origin = min(float(starts.min()), float(prefills.start_s.min()))
    length = max(float(ends.max()), float(prefills.end_s.max())) - origin
    edges, work = _work(prefills, origin)

    def explained(shift_s: float) -> Floats:
        """Milliseconds of each episode that lie under the shifted prefills, where these explain it."""
        found = np.zeros(len(starts))
        for turn in (-length, 0.0, length):  # what was moved past the end comes in at the start
            low = starts - origin - shift_s + turn
            high = ends - origin - shift_s + turn
            found += np.interp(high, edges, work) - np.interp(low, edges, work)
        found = np.minimum(found, whole)
        return np.where(found >= EXPLAINS * whole, found, 0.0)

    real = explained(0.0)
    total = float((real * weight).sum())
    if total <= 0:
        return Chance(1.0, [1.0] * len(episodes))
    rng = np.random.default_rng(seed)
    reached = 1
    each = np.ones(len(starts))
    for shift_s in rng.uniform(0.0, length, permutations):
        moved = explained(float(shift_s))
        reached += float((moved * weight).sum()) >= total * (1 - ROUNDING)
        each += moved >= ENOUGH * real
    count = permutations + 1
    return Chance(reached / count, [float(x) for x in np.minimum(each / count, 1.0)])


def _work(prefills: Prefills, origin: float) -> tuple[Floats, Floats]:
    """Milliseconds of prefill done by each moment: a broken line, as its corners."""
    moments = np.concatenate([prefills.start_s, prefills.end_s]) - origin
    ones = np.full(len(prefills), 1e3)
    slopes = np.concatenate([ones, -ones])
    order = np.argsort(moments, kind="stable")
    edges = moments[order]
    # no more than all of the time can be prefill
    slope = np.clip(np.round(np.cumsum(slopes[order])), 0.0, 1e3)
    work = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(edges))])
    return edges, work
