"""The calls in a conversation's past, as chat templates read them.

In: `tool_calls` of a message, as OpenAI's API writes them: the arguments are a text. Out: the same with
the arguments as an object, since templates write them down as JSON themselves (transformers' rule).
"""

from __future__ import annotations

import json
from typing import Any

from evenflow.server.reading import FieldError


def calls_as_templates_read_them(calls: object, place: str) -> list[dict[str, Any]]:
    """Check the calls of one message and read their arguments.

    Args:
        calls: the message's `tool_calls`.
        place: where the message is, for errors.

    Raises:
        FieldError: it is no list of calls, or arguments are no JSON object.
    """
    where = f"{place}.tool_calls"
    if not isinstance(calls, list):
        raise FieldError(
            f"{where} is a {type(calls).__name__}", hint="give a list of calls", param=where
        )
    return [_call(call, f"{where}.{number}") for number, call in enumerate(calls)]


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FieldError(
            f"{where} is no call of a function",
            hint='a call is {"id": ..., "type": "function", "function": {"name": ..., '
            '"arguments": "{...}"}}',
            param=where,
        )
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = None
    if not isinstance(arguments, dict):
        raise FieldError(
            f"{where}.function.arguments is no JSON object",
            hint='give the arguments as a text such as "{\\"city\\": \\"Oslo\\"}"',
            param=f"{where}.function.arguments",
        )
    assert isinstance(call, dict)
    return {**call, "function": {**function, "arguments": arguments}}
