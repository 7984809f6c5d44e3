"""One request's events, for a `for` loop or an `async for` loop.

With several choices they come as they are drawn; `StreamEvent.index` tells them apart.

Knows the engine's two ways in and nothing else.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.engine import Engine
    from evenflow.sampling import SamplingParams
    from evenflow.types import StreamEvent


class EventStream:
    """The events of one request, up to and with the last one that has a `finish_reason`.

    The request is submitted when the stream is made, so that a bad prompt raises there. `close`,
    the end of a `with` block and garbage collection cancel it if it still runs.
    """

    def __init__(
        self, engine: Engine, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[list[StreamEvent]] = queue.SimpleQueue()
        self._ready: deque[StreamEvent] = deque()
        self._waker: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ended = False
        self._num_open = params.n
        self.prompt_token_ids = list(prompt_token_ids)
        self.request_id = ""
        # the sink must not keep the stream alive, or nobody would ever cancel an abandoned one
        mailbox = _Mailbox(self._events)
        self._mailbox = mailbox
        self.request_id = engine.submit(self.prompt_token_ids, params, mailbox)

    def close(self) -> None:
        """Cancel the request if it still runs; iteration ends."""
        if not self._ended:
            self._ended = True
            self._engine.cancel(self.request_id)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        if self._ended:
            raise StopIteration
        while not self._ready:
            self._ready.extend(self._events.get())
        return self._take()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._ended:
            raise StopAsyncIteration
        while not self._ready:
            wake = self._mailbox.wake_on(asyncio.get_running_loop())
            while not self._events.empty():
                self._ready.extend(self._events.get())
            if not self._ready:
                await wake.wait()
        return self._take()

    def _take(self) -> StreamEvent:
        event = self._ready.popleft()
        if event.finish_reason is not None:
            self._num_open -= 1
            self._ended = self._num_open == 0
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.request_id:
            self.close()


class _Mailbox:
    """The sink of a stream: stores events and wakes the loop that waits for them, if any."""

    def __init__(self, events: queue.SimpleQueue[list[StreamEvent]]) -> None:
        self._events = events
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __call__(self, events: list[StreamEvent]) -> None:
        self._events.put(events)
        wake = self._wake
        if wake is not None:
            self._wake = None
            loop, event = wake
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def wake_on(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """An event that the loop's thread is woken with when something arrives from now on."""
        event = asyncio.Event()
        self._wake = (loop, event)
        return event
