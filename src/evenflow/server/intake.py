"""Reads a request's headers and body within the limits.

In: the connection. Out: the body's bytes and the time the client allows. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from evenflow.errors import InvalidRequestError
from evenflow.server.faults import (
    BodyTooLargeError,
    ClientGoneError,
    MediaTypeError,
    SlowBodyError,
)

if TYPE_CHECKING:
    from starlette.requests import Request

BODY_TIMEOUT_S = 30.0


async def read_json(request: Request, max_bytes: int) -> bytes:
    """The body, which must be declared as JSON.

    A page in a browser can send anything else to a server on the same machine without being asked;
    JSON makes the browser ask first.

    Raises:
        MediaTypeError: it is not declared as JSON.
        BodyTooLargeError: it is larger than `max_bytes`.
        SlowBodyError: it does not arrive in time.
        ClientGoneError: the connection was closed before its end.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise MediaTypeError(
            f"the content type is {media or 'missing'}",
            hint="send JSON, with the header content-type: application/json",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await _read(request, max_bytes)
    except TimeoutError:
        raise SlowBodyError(
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s", hint="send it in one go"
        ) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client has gone")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(len(body), max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(num_bytes: int, max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body has {num_bytes:,} bytes or more, but this server takes {max_bytes:,}",
        hint="send less, or raise --max-body-bytes",
    )


def deadline_s(request: Request, server_limit_s: float) -> float:
    """Seconds that the request may take: the smaller of the client's and the server's limit.

    Returns:
        0 where neither sets one.

    Raises:
        InvalidRequestError: x-request-timeout is not a number above 0.
    """
    given = request.headers.get("x-request-timeout")
    if given is None:
        return server_limit_s
    try:
        wanted_s = float(given)
    except ValueError:
        wanted_s = math.nan
    if not 0 < wanted_s < math.inf:
        raise InvalidRequestError(
            f"x-request-timeout is {given!r}", hint="give seconds, such as 30 or 0.5"
        )
    return min(wanted_s, server_limit_s) if server_limit_s else wanted_s
