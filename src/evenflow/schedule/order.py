"""Who is next, and who gives way.

One static key orders everybody: a request's priority counts as that many times `aging_steps` steps
of lateness, so a waiting request overtakes one level for every `aging_steps` steps it has been
there longer. Because the key never changes, the queue is a sorted list and nothing starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from evenflow.schedule.request import Request


def order_key(priority: int, step: int, arrival: int, aging_steps: int) -> tuple[int, int]:
    """The key of a request that arrived as number `arrival` while step `step` was next.

    Smaller is earlier. `arrival` breaks ties, so no two keys are equal.
    """
    return priority * aging_steps + step, arrival


def _key(request: Request) -> tuple[int, int]:
    return request.order_key


class OrderedRequests:
    """Requests in the order of their keys."""

    __slots__ = ("_requests", "version")

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.version = 0  # grows with every change

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        insort(self._requests, request, key=_key)
        self.version += 1

    def remove(self, request: Request) -> None:
        """Take a request out.

        Raises:
            ValueError: it is not there.
        """
        index = bisect_left(self._requests, request.order_key, key=_key)
        if index == len(self._requests) or self._requests[index] is not request:
            msg = f"{request.id} is not in the list"
            raise ValueError(msg)
        del self._requests[index]
        self.version += 1

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        index = bisect_left(self._requests, request.order_key, key=_key)
        return index < len(self._requests) and self._requests[index] is request


def choose_victim(running: Iterable[Request], serial: int, max_preemptions: int) -> Request | None:
    """The request whose blocks are worth the least, or None when nobody may be taken.

    The cheapest to recompute goes, the latest on a tie. Never taken: the first in order among the
    running ones (so somebody always gets on), a request with a span in flight or already planned
    for step `serial` (a runner may be writing to its blocks), and one that came back with
    everything reserved after `max_preemptions` preemptions.
    """
    candidates = list(running)
    if not candidates:
        return None
    protected = min(candidates, key=_key)
    candidates = [
        r
        for r in candidates
        if r is not protected
        and r.block_ids
        and not r.num_in_flight
        and r.last_step != serial
        and r.num_preemptions < max_preemptions
    ]
    if not candidates:
        return None
    return min(candidates, key=lambda r: (r.num_computed_tokens, -r.order_key[0], -r.order_key[1]))
