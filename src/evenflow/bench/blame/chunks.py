"""How long the chunks of each prompt were, so that what came on top of one is not laid at its door.

A pause of the server that falls into a prefill by chance makes one gap longer than a chunk can be, and
the prompt's window longer than its work. The chunks of one prompt are about equally long, each a little
dearer than the one before, and all prompts of a run share one budget; so a gap is held against its
neighbours in the same prefill, or, where there are too few, against the chunks of the whole run.

In: when each prompt can have been computed and what it cost, and the slow gaps that streams saw.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.bench.blame.witness import Witnesses

    Floats = NDArray[np.float64]

NEIGHBOURS = 4  # slow gaps of the same prefill, nearest in time
MIN_NEIGHBOURS = 3
OUTLIER = 1.6  # times what neighbours took is more than a chunk...
ROOM = 1.1  # ...of which a chunk is this much at most
LONG = 0.5  # of the dearest prompt: such prompts show the budget, shorter ones may fit into a step
SHORT = 0.2  # of its slow gaps together, the shortest ones: the steps around its own
ALIKE = 0.6  # of what its neighbours took: a gap that may be a chunk as they are
NEXT = 0.5  # of a gap: what lies this near to it follows it
DIVIDED = 1.5  # chunks of the usual length in a prompt, at least, for it to have been divided


class Chunks:
    """The slow gaps of each prefill; `usual_ms` is a chunk's length in this run, inf when unknown.

    Args:
        starts_s: when each prompt can have begun, at the earliest. [prompts].
        ends_s: when it was done. [prompts].
        cost_ms: what it took, as far as known. [prompts].
        witnesses: the streams.
    """

    def __init__(
        self, starts_s: Floats, ends_s: Floats, cost_ms: Floats, witnesses: Witnesses
    ) -> None:
        self._cost_ms = cost_ms
        self._slow = [
            witnesses.seen(float(start), float(end)).slow
            for start, end in zip(starts_s, ends_s, strict=True)
        ]
        self.usual_ms = self._usual()

    def _usual(self) -> float:
        """The middle of the long prompts' own middles, by cost; inf where most were not divided."""
        longest = max(self._cost_ms, default=0.0)
        rows = []
        whole = 0.0
        for slow, cost in zip(self._slow, self._cost_ms, strict=True):
            if not slow or cost < LONG * longest:
                continue
            lengths = np.sort(np.minimum([(end - start) * 1e3 for start, end in slow], cost))
            lengths = lengths[np.cumsum(lengths) > SHORT * lengths.sum()]
            middle = float(np.median(lengths))
            if len(lengths) > 1 and cost >= DIVIDED * middle:
                rows.append((middle, float(cost)))
            else:
                whole += float(cost)
        divided = sum(cost for _, cost in rows)
        if divided <= whole:
            return math.inf
        rows.sort()
        weights = np.cumsum([cost for _, cost in rows])
        return rows[int(np.searchsorted(weights, weights[-1] / 2))][0]

    def most_ms(self, index: int, start_s: float, end_s: float) -> float:
        """The most that a prompt can have cost in a gap; inf where nothing says otherwise."""
        expected = self._expected(index, start_s, end_s)
        return ROOM * expected if (end_s - start_s) * 1e3 > OUTLIER * expected else math.inf

    def _expected(self, index: int, start_s: float, end_s: float) -> float:
        middle = (start_s + end_s) / 2
        others = [gap for gap in self._slow[index] if not gap[0] < middle < gap[1]]
        carried_ms = sum(end - start for start, end in others) * 1e3
        if len(others) < MIN_NEIGHBOURS or 2 * carried_ms < self._cost_ms[index]:
            return self.usual_ms
        near = sorted(others, key=lambda gap: abs((gap[0] + gap[1]) / 2 - middle))[:NEIGHBOURS]
        ours_ms = float(np.median([end - start for start, end in near])) * 1e3
        # a prompt's last chunk is short, and so may be the steps around it
        return ours_ms if math.isinf(self.usual_ms) else max(ours_ms, self.usual_ms)

    def start_s(self, index: int, earliest_s: float, end_s: float, free_s: float) -> float:
        """When a prompt's work began: so far before its end that its cost fits in.

        Only what can have been its chunk counts of each slow gap, so the start moves back past a pause.
        Where the machine was slow the work took longer than its cost: the start moves on back over
        gaps as long as chunks that follow one another, but not past `free_s`, when others' work ended.
        """
        left_s = float(self._cost_ms[index]) / 1e3
        at_s, begun_s = end_s, None
        for start, end in sorted(self._slow[index], reverse=True):
            until = min(end, at_s)
            most_s = self.most_ms(index, start, end) / 1e3
            paused = most_s < until - start
            if begun_s is not None:
                alike = end - start >= ALIKE * self._expected(index, start, end) / 1e3
                if paused or not alike or start < free_s or at_s - end > NEXT * (end - start):
                    break
                at_s = begun_s = min(start, at_s)
                continue
            left_s -= max(0.0, at_s - until)  # quick steps hold prompt tokens too, if few
            if left_s <= 0:
                return max(earliest_s, until - left_s)
            # a gap with a pause in it held anything from no chunk to a whole one
            left_s -= most_s / 2 if paused else until - start
            at_s = min(start, at_s)
            if left_s <= 0:
                begun_s = at_s if paused else at_s - left_s
        return max(earliest_s, at_s - left_s if begun_s is None else begun_s)
