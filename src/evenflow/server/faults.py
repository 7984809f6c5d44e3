"""What can go wrong between a client and the engine, and how OpenAI's API writes it down.

In: an exception. Out: a status, headers and the bytes of {"error": {...}}. What is nobody's plan
gets a 500 that says so and nothing else: its text goes to the log, not to the client.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from evenflow.errors import EngineClosedError, EvenflowError, QueueFullError


class UnauthorizedError(EvenflowError):
    """No API key, or a wrong one."""

    http_status = 401


class NotFoundError(EvenflowError):
    """No such path or model."""

    http_status = 404


class MethodError(EvenflowError):
    """The path exists, but not for this HTTP method."""

    http_status = 405


class SlowBodyError(EvenflowError):
    """The body did not arrive in time."""

    http_status = 408


class MalformedError(EvenflowError):
    """What came is no HTTP request."""

    http_status = 400
    code = "malformed_request"


class SlowHeadersError(EvenflowError):
    """The headers did not arrive in time."""

    http_status = 408
    code = "header_timeout"


class HeadersTooLargeError(EvenflowError):
    """The request line and the headers have more bytes than the server takes."""

    http_status = 431


class BodyTooLargeError(EvenflowError):
    """The body has more bytes than the server takes."""

    http_status = 413


class MediaTypeError(EvenflowError):
    """The body is not declared as JSON."""

    http_status = 415


class DeadlineError(EvenflowError):
    """The request took longer than it was allowed."""

    http_status = 504


class NotReadyError(EvenflowError):
    """The model is still being loaded, or the server is about to stop."""

    http_status = 503


class SlowReaderError(EvenflowError):
    """The client does not read its stream."""

    http_status = 500


class ClientGoneError(EvenflowError):
    """The client closed the connection; nobody is left to be told."""

    http_status = 499


class Fault(NamedTuple):
    """An error as it goes out."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
    429: "queue_full",
    431: "headers_too_large",
    503: "unavailable",
    504: "timeout",
}
_RETRY = {429, 503}


def fault_of(error: BaseException, *, retry_after_s: int = 1) -> Fault:
    """Write an error down in OpenAI's shape."""
    if not isinstance(error, EvenflowError):
        status, message = 500, "something went wrong inside the server; its log says what"
    else:
        status = error.http_status
        message = f"{error.message}; {error.hint}" if error.hint else error.message
    kind = "invalid_request_error" if status < 500 else "server_error"
    if isinstance(error, QueueFullError):
        kind = "rate_limit_error"
    body = {
        "error": {
            "message": message,
            "type": kind,
            "param": getattr(error, "param", None),
            "code": getattr(error, "code", None) or _CODES.get(status),
        }
    }
    headers = [(b"content-type", b"application/json")]
    if status in _RETRY and not isinstance(error, EngineClosedError):
        headers.append((b"retry-after", str(retry_after_s).encode()))
    if status == DeadlineError.http_status:
        # a client that tries again would only let the same work be done twice
        headers.append((b"x-should-retry", b"false"))
    if status == UnauthorizedError.http_status:
        headers.append((b"www-authenticate", b"Bearer"))
    return Fault(status, orjson.dumps(body), headers)
