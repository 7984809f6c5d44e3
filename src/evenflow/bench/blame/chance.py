"""Could it be chance? The stalls are held against the same prefills at other times.

Both the stalls and the prefills come in bursts, so shuffling single ones would promise too much.
Instead all prefills are moved together by a random time, around the end of the run to its start:
everything within them and within the stalls stays as it was, and only what ties the two is broken.
Only time in which somebody was decoding counts, since elsewhere nothing can stall. Pure functions;
the random numbers are seeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.model import Episode
    from evenflow.bench.blame.prefills import Prefills
    from evenflow.bench.gaps import GapTable

    Floats = NDArray[np.float64]

EXPLAINS = 0.5  # as in the attribution: less than this of a stall explains nothing
ROUNDING = 1e-6  # ties are common, since a stall is covered wholly or not at all
ENOUGH = 0.9  # of what was explained; a shift that reaches it explains "as well"


@dataclass(frozen=True, slots=True)
class Chance:
    """`p_value` for all stalls together, and `per_episode` for each."""

    p_value: float
    per_episode: list[float]


class Exposure(NamedTuple):
    """The stretches in which any stream was decoding, in order and apart. [stretches]."""

    starts_s: Floats
    ends_s: Floats

    def place(self, times_s: Floats) -> Floats:
        """How much exposed time lies before each moment."""
        lengths = self.ends_s - self.starts_s
        before = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
        edges = np.stack([self.starts_s, self.ends_s], axis=1).ravel()
        values = np.stack([before, before + lengths], axis=1).ravel()
        return np.asarray(np.interp(times_s, edges, values), np.float64)


def exposure_of(gaps: GapTable) -> Exposure:
    """When streams were between two of their messages."""
    order = np.argsort(gaps.start_s, kind="stable")
    starts, ends = gaps.start_s[order], np.maximum.accumulate(gaps.end_s[order])
    begins = np.concatenate([[True], starts[1:] > ends[:-1]]) if len(starts) else np.zeros(0, bool)
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(starts))[: len(firsts)] - 1
    return Exposure(starts[firsts], ends[lasts])


def against_chance(
    episodes: Sequence[Episode],
    prefills: Prefills,
    exposure: Exposure,
    *,
    permutations: int,
    seed: int,
) -> Chance:
    """Compare the stalled time that lies under prefills with what random shifts give."""
    if not episodes or not len(prefills):
        return Chance(1.0, [1.0] * len(episodes))
    starts = exposure.place(np.array([episode.start_s for episode in episodes]))
    ends = exposure.place(np.array([episode.end_s for episode in episodes]))
    whole = (ends - starts) * 1e3
    weight = np.array([len(episode.stalls) for episode in episodes], np.float64)
    length = float((exposure.ends_s - exposure.starts_s).sum())
    edges, work = _work(exposure.place(prefills.work_start_s), exposure.place(prefills.end_s))

    def explained(shift_s: float) -> Floats:
        """Milliseconds of each episode that lie under the shifted prefills, where these explain it."""
        found = np.zeros(len(starts))
        for turn in (-length, 0.0, length):  # what was moved past the end comes in at the start
            low = starts - shift_s + turn
            high = ends - shift_s + turn
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


def _work(starts: Floats, ends: Floats) -> tuple[Floats, Floats]:
    """Milliseconds of prefill done by each moment: a broken line, as its corners."""
    moments = np.concatenate([starts, ends])
    slopes = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(moments, kind="stable")
    edges = moments[order]
    # several at once are no more than all of the time
    busy = np.cumsum(slopes[order]) > 0
    work = np.concatenate([[0.0], np.cumsum(busy[:-1] * np.diff(edges) * 1e3)])
    return edges, work
