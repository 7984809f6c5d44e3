"""The outermost layer: who may come in, and a name for every request.

In: connections from uvicorn. Out: the same, with the key checked, `x-request-id` on the answer, and
the server's own `send` kept for streams. Pure ASGI, because it wraps every message.
"""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING, Any

from evenflow.server.answer import RAW_SEND, send_fault
from evenflow.server.faults import UnauthorizedError, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from evenflow.server.settings import Settings

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
OPEN_PATHS = frozenset({"/", "/health"})  # a page without data, and a yes or no for balancers


class Gate:
    """Lets requests in.

    Args:
        app: what is behind it.
        settings: the keys.
        new_id: names requests that come without an x-request-id.
    """

    def __init__(self, app: ASGIApp, settings: Settings, new_id: Callable[[], str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in settings.api_keys]
        self._new_id = new_id
        self._open = OPEN_PATHS | ({"/metrics"} if settings.public_metrics else frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        given = _header(headers, b"x-request-id")
        name = given if given and REQUEST_ID.fullmatch(given) else self._new_id().encode()
        scope[RAW_SEND] = send

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        if self._keys and scope["path"] not in self._open and not self._is_known(headers):
            wrong = UnauthorizedError(
                "the API key is missing or wrong", hint="send it as Authorization: Bearer KEY"
            )
            await send_fault(named, fault_of(wrong))
            return
        await self._app(scope, receive, named)

    def _is_known(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Compare with every key, each in a time that does not depend on where they differ."""
        scheme, _, key = _header(headers, b"authorization").partition(b" ")
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def _header(headers: list[tuple[bytes, bytes]], name: bytes) -> Any:
    return next((value for key, value in headers if key == name), b"")
