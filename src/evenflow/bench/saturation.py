"""Did the server keep up with an open loop? If not, its waits are those of this run's length.

In: requests. Out: a word for whoever reads the figures. The run is no less faithful for it, so
this is a note and no verdict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.records import RequestRecord

LEAST_GROWTH = 4  # requests; fewer may wait by chance
CHANCE = 2.0  # standard deviations of what may arrive in half a run, were arrivals random


def growing_queue(requests: Sequence[RequestRecord]) -> str:
    """A note when more and more requests waited for their first token; "" when not.

    Compares how many waited when the last one was due with how many did at half time. Requests
    that the client held back, because of a cap, wait as well.
    """
    due = sorted(r.scheduled_s for r in requests if not r.turn)
    if len(due) < 2 or due[-1] <= due[0]:
        return ""
    middle_s = (due[0] + due[-1]) / 2

    def waiting(at_s: float) -> int:
        return sum(r.scheduled_s <= at_s < _answered_s(r) for r in requests)

    late = sum(at_s > middle_s for at_s in due)
    first, second = waiting(middle_s), waiting(due[-1])
    if second - first <= max(LEAST_GROWTH, CHANCE * math.sqrt(late)):
        return ""
    return (
        f"the server did not keep up: {first:,} requests waited for their first token at half "
        f"time, {second:,} when the last one was due; a longer run would show longer waits"
    )


def _answered_s(request: RequestRecord) -> float:
    """When its wait was over, one way or the other."""
    for moment in (request.first_token_s, request.end_s):
        if moment is not None:
            return moment
    return math.inf
