"""Kinds of request fields: those with one harmless value, and those that may be one of two shapes.

Clients send many fields whose neutral value asks for nothing (`n: 1`, `tools: []`). `Only` lets
exactly those values pass; any other one is an error that names the field, never ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

if TYPE_CHECKING:
    from collections.abc import Sequence


class Body(BaseModel):
    """A request body: a field that is not declared is an error, and "1" is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Only:
    """Marks a field that may be absent, null or one of the neutral values.

    Args:
        neutral: the values that ask for nothing.
        hint: what to do instead, for the error.
    """

    def __init__(self, neutral: Sequence[object] = (), *, hint: str) -> None:
        self._neutral = neutral
        self._hint = hint

    def check(self, value: object) -> object:
        """Let a neutral value pass."""
        if value is None or any(_same(value, one) for one in self._neutral):
            return value
        raise PydanticCustomError(
            "unsupported",
            "{given} is not supported; {hint}",
            {"given": _short(value), "hint": self._hint},
        )

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        return {"enum": [None, *self._neutral], "description": f"Nothing else: {self._hint}."}


def _same(value: object, neutral: object) -> bool:
    """Equal, where true is not 1 but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_prompt(value: object) -> list[str | list[int]]:
    """One prompt or several, each text or token ids, as a list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "it is neither a text nor a list with something in it")
    if _are_ids(value):
        return [value]
    for place, one in enumerate(value):
        if not isinstance(one, str) and not (isinstance(one, list) and _are_ids(one)):
            raise PydanticCustomError(
                "prompt", "item {place} is neither a text nor a list of token ids", {"place": place}
            )
    return value


def _are_ids(value: list[object]) -> bool:
    return all(isinstance(one, int) and not isinstance(one, bool) for one in value)


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
Prompts = Annotated[
    Any,
    BeforeValidator(_check_prompt),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _IDS,
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
                {"type": "array", "items": _IDS, "minItems": 1},
            ]
        }
    ),
]


def _as_list(value: object) -> object:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    list[str],
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "null"},
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
