"""HTTP/1.1 as an asyncio protocol: one connection, one request at a time, no copies on the way.

The bytes of a body go to a callback in the very call in which the socket delivered them, and those
of one read in one piece: a time stamp waits for no task to be woken, and what came at once has one. A general client spends several times the
processor time per message on machinery that a benchmark has no use for.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from evenflow.errors import ConfigError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_TIMEOUT_S = 10.0


class Address(NamedTuple):
    """Where a server is: scheme, host, port and what comes before its paths."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a base URL; a trailing /v1 is taken off, since the endpoints have their own.

        Raises:
            ConfigError: it is no http or https URL.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise ConfigError(
                f"{url!r} is no URL of a server", hint="write it as http://127.0.0.1:8000"
            )
        default = 443 if parts.scheme == "https" else 80
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port or default, prefix)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


class ConnectionLostError(Exception):
    """The connection ended before the answer was complete."""


class Connection(asyncio.Protocol):
    """One connection; `exchange` sends a request and follows its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._done: asyncio.Future[None] | None = None
        self._on_body: Callable[[bytes], None] | None = None
        self._body: list[bytes] = []  # of the present read
        self.status = 0
        self.is_open = False
        self.answered = False  # whether any byte of the present answer has come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"a stream transport is needed, not {type(transport).__name__}")
        self._transport = transport
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.is_open = False
        if self._done is not None and not self._done.done():
            reason = str(exc) if exc else "the server closed the connection"
            self._done.set_exception(ConnectionLostError(reason))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with what came."""
        self.answered = True
        if self._parser is None:
            self.close()  # an answer that nobody asked for: this connection is out of step
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as e:
            if self._done is not None and not self._done.done():
                self._done.set_exception(ConnectionLostError(f"no HTTP: {e}"))
            self.close()
        if self._body:
            body, self._body = b"".join(self._body), []
            if self._on_body is not None:
                self._on_body(body)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._parser is not None and not self._parser.should_keep_alive():
            self.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def exchange(self, request: bytes, on_body: Callable[[bytes], None]) -> int:
        """Send a request and hand its answer's body to `on_body` as it comes.

        Returns:
            The HTTP status.

        Raises:
            ConnectionLostError: the connection ended too early.
        """
        if self._transport is None or not self.is_open:
            raise ConnectionLostError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._on_body = on_body
        self.status = 0
        self.answered = False
        self._transport.write(request)
        try:
            await self._done
        except BaseException:
            self.close()  # the rest of the answer is of no use to anybody
            raise
        finally:
            self._parser = self._done = self._on_body = None
        return self.status

    def close(self) -> None:
        """Close the connection; the server sees a client that went away."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class Pool:
    """Connections to one server, reused while they stay open."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._tls = ssl.create_default_context() if address.scheme == "https" else None

    async def take(self, *, fresh: bool = False) -> Connection:
        """A connection that nobody uses.

        Raises:
            TargetError: the server cannot be reached.
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self._all.discard(connection)
        loop = asyncio.get_running_loop()
        where = self._address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    Connection, where.host, where.port, ssl=self._tls
                )
        except TimeoutError as e:
            raise TargetError(
                f"no connection to {where} within {CONNECT_TIMEOUT_S:g} s",
                hint="check the address, and that nothing blocks the port",
            ) from e
        except ssl.SSLError as e:
            raise TargetError(
                f"no TLS with {where}: {e.reason}", hint="is it an http:// server?"
            ) from e
        except OSError as e:
            raise TargetError(
                f"cannot connect to {where}: {e.strerror or e}",
                hint="is the server running, and is this its address?",
            ) from e
        self._all.add(connection)
        return connection

    def give(self, connection: Connection) -> None:
        """Put a connection back."""
        if connection.is_open:
            self._idle.append(connection)
        else:
            self._all.discard(connection)

    async def warm(self, count: int) -> None:
        """Open connections ahead, so that no request waits for a handshake."""
        opened = [await self.take(fresh=True) for _ in range(count)]
        for connection in opened:
            self.give(connection)

    async def close(self) -> None:
        """Close all of them."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()
        await asyncio.sleep(0)


def render_request(
    address: Address, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
) -> bytes:
    """The bytes of a request."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"{method} {address.prefix}{path} HTTP/1.1",
        f"Host: {host}:{address.port}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
