"""The connection: uvicorn's own, with limits on what a client may send before its request is known.

In: bytes of a socket. Out: requests, as uvicorn makes them. uvicorn with httptools waits for ever for
the end of a header and keeps whatever comes; here both the time and the bytes are bounded, and what
is no HTTP at all is answered in OpenAI's shape as well. A stream's tokens do not pass through here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from evenflow.server.faults import (
    HeadersTooLargeError,
    MalformedError,
    SlowHeadersError,
    fault_of,
)

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from evenflow.errors import EvenflowError
    from evenflow.server.settings import Settings


class Door(HttpToolsProtocol):
    """One connection. `door_class` gives it its limits."""

    max_head_bytes: ClassVar[int]
    head_timeout_s: ClassVar[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = True  # the next byte belongs to a request line or a header
        self._num_head_bytes = 0
        self._head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's
        """A client has come; its first request must follow soon."""
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a header are counted."""
        if self._in_head:
            if self._head_timer is None:
                self._arm()
            room = self.max_head_bytes - self._num_head_bytes
            if len(data) > room:
                super().data_received(data[:room])
                if self.transport.is_closing():
                    return
                if self._in_head:
                    self._refuse(
                        HeadersTooLargeError(
                            f"the request line and the headers have more than "
                            f"{self.max_head_bytes:,} bytes",
                            hint="send less, or raise --max-header-bytes",
                        )
                    )
                    return
                data = data[room:]
            else:
                self._num_head_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The request is known; its handler limits the body."""
        self._in_head = False
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has been read; another may follow."""
        self._in_head = True
        self._num_head_bytes = 0
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; the rest of a body that nobody wants may not come for ever."""
        super().on_response_complete()
        if not self._in_head and self.cycle.response_complete:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(MalformedError(f"{msg[:1].lower()}{msg[1:-1]}", hint="send HTTP/1.1"))

    def _arm(self) -> None:
        self._disarm()
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        if not self._num_head_bytes or not self._in_head:
            self.transport.close()  # it asked nothing, or has its answer
            return
        self._refuse(
            SlowHeadersError(
                f"the headers did not arrive within {self.head_timeout_s:g} s",
                hint="send them in one go",
            )
        )

    def _refuse(self, error: EvenflowError) -> None:
        """Answer with an error, unless another answer is under way, and close."""
        self._disarm()
        if self.cycle is None or self.cycle.response_complete:
            fault = fault_of(error)
            lines = [*fault.headers, (b"content-length", b"%d" % len(fault.body))]
            lines.append((b"connection", b"close"))
            head = b"".join(name + b": " + value + b"\r\n" for name, value in lines)
            self.transport.write(STATUS_LINE[fault.status] + head + b"\r\n" + fault.body)
        self.transport.close()


def door_class(settings: Settings) -> type[Door]:
    """The connections of one server."""

    class Limited(Door):
        max_head_bytes = settings.max_header_bytes
        head_timeout_s = settings.header_timeout_s

    return Limited
