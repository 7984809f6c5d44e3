"""What form an answer must have: a JSON schema, a regular expression, a choice, or a grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from evenflow.errors import InvalidRequestError


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """The form that the text of an answer must have: exactly one of these, as in vLLM.

    Args:
        json: a JSON schema, as a mapping or as text.
        regex: a regular expression that the whole text matches.
        choice: the text is one of these strings.
        grammar: a context-free grammar in llguidance's dialect of Lark, an EBNF; `start` is its
            first rule.
        json_object: True: any JSON object.

    Raises:
        InvalidRequestError: none of them or several are given, or one has the wrong type. Whether
            the schema or grammar itself is sound shows when the request is submitted.
    """

    json: str | Mapping[str, Any] | None = field(default=None, hash=False)
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs has {' and '.join(given) or 'no constraint'}",
                hint="give exactly one of json, regex, choice, grammar and json_object",
            )
        getattr(self, f"_check_{given[0]}")()

    @property
    def given(self) -> tuple[str, Any]:
        """The name of the one that is set, and its value."""
        return next(
            (f.name, value) for f in fields(self) if (value := getattr(self, f.name)) is not None
        )

    def _check_json(self) -> None:
        if isinstance(self.json, str):
            try:
                schema = json.loads(self.json)
            except ValueError as error:
                raise InvalidRequestError(
                    f"structured_outputs.json is not JSON: {error}",
                    hint="json takes a JSON schema, as a mapping or as text",
                ) from None
        else:
            schema = self.json
        if not isinstance(schema, Mapping | bool):
            raise InvalidRequestError(
                f"structured_outputs.json is {type(schema).__name__}, not a schema",
                hint="json takes a JSON schema, as a mapping or as text",
            )

    def _check_regex(self) -> None:
        self._check_text("regex")

    def _check_grammar(self) -> None:
        self._check_text("grammar")

    def _check_text(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or not value:
            raise InvalidRequestError(
                f"structured_outputs.{name} is {value!r}",
                hint=f"{name} takes a string that is not empty",
            )

    def _check_choice(self) -> None:
        choice: object = self.choice
        if isinstance(choice, Iterable) and not isinstance(choice, str | bytes | Mapping):
            listed = tuple(choice)
            if listed and all(isinstance(text, str) and text for text in listed):
                object.__setattr__(self, "choice", listed)
                return
        raise InvalidRequestError(
            f"structured_outputs.choice is {choice!r}",
            hint="choice takes a list of strings, each with at least one character",
        )

    def _check_json_object(self) -> None:
        if self.json_object is not True:
            raise InvalidRequestError(
                f"structured_outputs.json_object is {self.json_object!r}",
                hint="json_object takes True or False",
            )
