"""Sends what a call produces, whole or as a stream, and stops the call when nobody listens.

In: a started call and the connection's `receive` and `send`. Out: bytes. A client that goes away,
at any moment and in any way, cancels its requests; so does a deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from evenflow.server.faults import ClientGoneError, DeadlineError, Fault, fault_of
from evenflow.server.replies import DONE, error_message, usage_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Receive, Scope, Send

    from evenflow.server.call import Call, StreamingCall

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers messages would undo all of this
]
RAW_SEND = "evenflow.send"  # in a scope: the server's own `send`, past the frameworks' wrappers


@contextmanager
def limited(call: Call, receive: Receive, left_s: float) -> Iterator[None]:
    """While it lasts, the client's going away or the deadline ends the call.

    Args:
        call: what is limited.
        receive: the connection's, its body read.
        left_s: seconds until the deadline; 0 is none.
    """
    loop = asyncio.get_running_loop()
    watcher = loop.create_task(_watch(call, receive))
    timer = None
    if left_s:
        late = DeadlineError(
            "the request was not done in its time",
            hint="ask for fewer tokens, or allow more with x-request-timeout or --request-timeout",
        )
        timer = loop.call_later(left_s, call.fail, late)
    try:
        yield
    finally:
        watcher.cancel()
        if timer is not None:
            timer.cancel()
        call.cancel()


async def _watch(call: Call, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.fail(ClientGoneError("the client has gone"))


class WholeAnswer(Response):
    """Waits for the end of a call and sends everything."""

    def __init__(self, call: Call, left_s: float, retry_after: Callable[[], int]) -> None:
        super().__init__()
        self._call = call
        self._left_s = left_s
        self._retry_after = retry_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Answer."""
        call = self._call
        with limited(call, receive, self._left_s):
            while not call.is_over:
                await call.changed()
        if call.error is not None:
            await send_fault(send, fault_of(call.error, retry_after_s=self._retry_after()))
            return
        await send_body(send, 200, [(b"content-type", b"application/json")], call.body())


class StreamAnswer(Response):
    """Sends each message of a call as soon as it is there."""

    def __init__(self, call: StreamingCall, left_s: float, *, with_usage: bool) -> None:
        super().__init__()
        self._call = call
        self._left_s = left_s
        self._with_usage = with_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        call = self._call
        start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
        raw_send = scope.get(RAW_SEND, send)
        with limited(call, receive, self._left_s):
            await send(start)
            while True:
                body = call.collect()
                if body:
                    call.is_blocked = True  # seen by others only if the next line has to wait
                    await raw_send(_part(body))
                    call.is_blocked = False
                elif call.is_over:
                    break
                else:
                    await call.changed()
            await raw_send(_part(self._last()))
            await raw_send({"type": "http.response.body", "body": b"", "more_body": False})

    def _last(self) -> bytes:
        call = self._call
        if call.error is not None:
            return error_message(fault_of(call.error).body) + DONE
        if self._with_usage:
            return usage_message(call.head, call.counts()) + DONE
        return DONE


async def send_fault(send: Send, fault: Fault) -> None:
    """Answer with an error."""
    await send_body(send, fault.status, fault.headers, fault.body)


async def send_body(
    send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """Answer in one piece."""
    sized = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": sized})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


def cutter(send: object) -> Callable[[], None]:
    """What closes a connection at once, whatever is still to be sent on it.

    Only uvicorn's `send` knows its transport; elsewhere the connection ends when its buffer has
    been read.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    abort: Callable[[], None] = getattr(transport, "abort", lambda: None)
    return abort
