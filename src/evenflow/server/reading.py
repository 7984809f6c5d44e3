"""From the bytes of a body to a request, or to an error that names the field.

In: bytes and the kind of body. Out: a frozen request. `param` of an error is the field as OpenAI's
errors name it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import ValidationError

from evenflow.errors import InvalidRequestError, UnsupportedError
from evenflow.server.fields import Body

if TYPE_CHECKING:
    from collections.abc import Collection

R = TypeVar("R", bound=Body)


class FieldError(InvalidRequestError):
    """A field of a body is wrong; `param` names it as OpenAI's errors do."""

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class UnsupportedFieldError(FieldError, UnsupportedError):
    """A field, or a value of it, that this server does not have."""


def parse(kind: type[R], body: bytes) -> R:
    """Read a body.

    Raises:
        FieldError: it is not JSON, or a field is wrong; the message names it.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _field_error(dict(first)) from None


def name_field(error: InvalidRequestError, fields: Collection[str]) -> NoReturn:
    """Raise the error again with the field that its message begins with."""
    found = re.match(r"[a-z_]+", error.message)
    name = found[0] if found and found[0] in fields else None
    param = getattr(error, "param", None) or name
    raise FieldError(error.message, hint=error.hint, param=param) from error


def _field_error(fault: dict[str, Any]) -> FieldError:
    place = [str(part) for part in fault["loc"] if str(part) in _written(fault)]
    param = ".".join(place) or None
    match fault["type"]:
        case "json_invalid":
            return FieldError(f"the body is not JSON: {fault['msg']}", hint="send one JSON object")
        case "extra_forbidden":
            return UnsupportedFieldError(
                f"there is no field {param!r} here",
                hint="leave it out; the fields are listed in /openapi.json",
                param=param,
            )
        case "missing":
            return FieldError(f"the field {param!r} is missing", hint=f"add {param!r}", param=param)
        case "unsupported":
            context = fault["ctx"]
            return UnsupportedFieldError(
                f"{param} is {context['given']}, which is not supported",
                hint=f"{context['hint']}; leave {param} out",
                param=param,
            )
    what = param or "the body"
    return FieldError(
        f"{what} is wrong: {fault['msg'][:1].lower()}{fault['msg'][1:]}",
        hint="see /openapi.json for what each field takes",
        param=param,
    )


def _written(fault: dict[str, Any]) -> set[str]:
    """The parts of a location that a client wrote, without pydantic's names of alternatives."""
    inner = {
        str(part)
        for part in fault["loc"][1:]
        if not str(part).startswith("function-") and str(part) != "[key]"
    }
    return {str(fault["loc"][0])} | inner if fault["loc"] else set()
