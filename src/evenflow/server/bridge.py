"""Carries events from the engine's thread to one event loop: one wake-up per step.

In: the list of events that a step produced, on the engine's thread. Out: each event at the receiver
of its request, on the loop's thread. Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from evenflow.engine import Engine
    from evenflow.sampling import SamplingParams
    from evenflow.types import StreamEvent


def choice_ids(name: str, num_choices: int) -> list[str]:
    """The ids of a request's choices, as the engine names them."""
    return [name] if num_choices == 1 else [f"{name}-{i}" for i in range(num_choices)]


class Receiver(Protocol):
    """Takes the events of one or several requests, on the loop's thread."""

    def take(self, event: StreamEvent) -> None:
        """Take one event; quick, and without raising."""
        ...


class Meter(Protocol):
    """What times the streams."""

    def arrive(self, request_id: str, num_prompt_tokens: int) -> None:
        """A request is about to be queued."""
        ...

    def forget(self, request_id: str) -> None:
        """It was refused after all."""
        ...

    def measure(self, events: list[StreamEvent]) -> None:
        """A step's events, on the engine's thread."""
        ...


class Bridge:
    """The sink of all requests that one loop serves.

    Args:
        engine: where requests go.
        loop: whose thread the receivers live on.
        meter: told of every request and every step's events.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop, meter: Meter) -> None:
        self._engine = engine
        self._loop = loop
        self._meter = meter
        self._receivers: dict[str, Receiver] = {}
        self.num_wakeups = 0

    @property
    def num_open(self) -> int:
        """Requests that have not got their last event."""
        return len(self._receivers)

    def submit(
        self, ids: Sequence[int], params: SamplingParams, receiver: Receiver, request_id: str
    ) -> None:
        """Queue a request, with all its choices; errors as for `Engine.submit`."""
        names = choice_ids(request_id, params.n)
        for name in names:
            self._receivers[name] = receiver
            self._meter.arrive(name, len(ids))
        try:
            self._engine.submit(ids, params, self, request_id=request_id)
        except BaseException:
            for name in names:
                del self._receivers[name]
                self._meter.forget(name)
            raise

    def cancel(self, request_id: str) -> None:
        """End a request soon."""
        self._engine.cancel(request_id)

    def cancel_all(self) -> None:
        """End every request soon."""
        for request_id in list(self._receivers):  # others may be handed in meanwhile
            self._engine.cancel(request_id)

    def __call__(self, events: list[StreamEvent]) -> None:
        """Take a step's events, on the engine's thread."""
        self._meter.measure(events)
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[StreamEvent]) -> None:
        self.num_wakeups += 1
        receivers = self._receivers
        for event in events:
            request_id = event.request_id
            if event.finish_reason is None:
                receiver = receivers.get(request_id)
            else:
                receiver = receivers.pop(request_id, None)
            if receiver is not None:
                receiver.take(event)
