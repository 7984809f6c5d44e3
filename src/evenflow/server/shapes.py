"""The parts of request bodies that are objects themselves: forms of an answer, and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from evenflow.server.fields import Body
from evenflow.server.reading import FieldError
from evenflow.structured import StructuredOutputs

TOOL_NAME = r"^[a-zA-Z0-9_.-]{1,128}$"
CHOICES = ("none", "auto", "required")


class JsonSchemaForm(Body):
    """A JSON schema with a name, as OpenAI's response_format has it."""

    name: str | None = None
    description: str | None = None
    body: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way to state the form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaForm | None = None

    def form(self) -> StructuredOutputs | None:
        """As the engine takes it.

        Raises:
            FieldError: the schema is missing, or given beside another type.
        """
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise FieldError(
                f"response_format has the type {self.type!r} "
                f"{'without' if self.json_schema is None else 'beside'} a json_schema",
                hint='give both, the type "json_schema" and the schema, or neither',
                param="response_format",
            )
        if self.json_schema is not None:
            return StructuredOutputs(json=self.json_schema.body)
        return StructuredOutputs(json_object=True) if self.type == "json_object" else None


class StructuredBody(Body):
    """vLLM's way to state the form of an answer: exactly one of these."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def form(self) -> StructuredOutputs:
        """As the engine takes it.

        Raises:
            InvalidRequestError: none is given, or several are.
        """
        return StructuredOutputs(
            json=self.json_,
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
            json_object=self.json_object,
        )


class Function(Body):
    """What a tool is called, and what it takes."""

    name: str = Field(pattern=TOOL_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function

    def as_template_reads_it(self) -> dict[str, Any]:
        """Without what was left out, and without `strict`, which is for the server."""
        function = {
            name: value
            for name in ("name", "description", "parameters")
            if (value := getattr(self.function, name)) is not None
        }
        return {"type": self.type, "function": function}


class NamedTool(NamedTuple):
    """A tool_choice that names the tool."""

    name: str


def _check_choice(value: object) -> object:
    if value is None or (isinstance(value, str) and value in CHOICES):
        return value
    if isinstance(value, dict) and value.keys() == {"type", "function"}:
        function = value["function"]
        is_function = value["type"] == "function" and isinstance(function, dict)
        if is_function and function.keys() == {"name"} and isinstance(function["name"], str):
            return NamedTool(function["name"])
    raise PydanticCustomError(
        "tool_choice",
        'it is none of "none", "auto", "required" and {example}',
        {"example": '{"type": "function", "function": {"name": ...}}'},
    )


ToolChoice = Annotated[
    Any,
    BeforeValidator(_check_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "null"},
                {"type": "string", "enum": list(CHOICES)},
                {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string", "enum": ["function"]},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                            "additionalProperties": False,
                        },
                    },
                    "required": ["type", "function"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
