"""Tools of a chat: what the model is told, which form its answer must have, and how calls are read.

In: a chat's body and the model's chat template. Out: a plan for the answer, or an error that names the
field. Calls themselves are found by `text/tool_calls.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from evenflow.server.reading import FieldError, UnsupportedFieldError
from evenflow.server.shapes import NamedTool
from evenflow.structured import StructuredOutputs
from evenflow.text.tool_calls import STYLES, Piece, Style, ToolCallParser, style_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.server.protocol import ChatRequest
    from evenflow.server.shapes import Tool

SHORT_ID = 9  # what Mistral's templates insist on
LONG_ID = 24
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_DEFINITIONS = ("$defs", "definitions")


class CallReader(Protocol):
    """Reads an answer; `ToolCallParser` is one."""

    num_calls: int

    def feed(self, text: str) -> list[Piece]:
        """Take a piece of text."""
        ...

    def finish(self) -> list[Piece]:
        """The rest, when no more comes."""
        ...


class ToolPlan(NamedTuple):
    """How an answer that may hold calls is asked for and read.

    `style` is how calls are written; "named": the whole answer is the arguments of `names[0]`. `form`
    is what the answer is held to, where it must be a call.
    """

    style: Style | Literal["named"]
    names: tuple[str, ...]
    one_only: bool
    short_ids: bool
    form: StructuredOutputs | None

    def reader(self, *, eager: bool) -> CallReader:
        """What reads one answer."""
        if self.style == "named":
            return _NamedReader(self.names[0])
        return ToolCallParser(self.style, self.names, eager=eager)

    def sampling(self) -> dict[str, Any]:
        """What it changes in the sampling: calls are marked by special tokens."""
        if self.form is not None:
            return {"structured_outputs": self.form}
        return {"skip_special_tokens": False}

    def call_id(self, unique: str) -> str:
        """The id of a call."""
        return unique[:SHORT_ID] if self.short_ids else "call_" + unique[:LONG_ID]


class _NamedReader:
    """Everything is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        """Take a piece of the arguments."""
        pieces = [Piece("arguments", text)] if text else []
        if not self.num_calls:
            self.num_calls = 1
            pieces.insert(0, Piece("call", self._name))
        return pieces

    def finish(self) -> list[Piece]:
        """Nothing is held back."""
        return self.feed("") if not self.num_calls else []


def plan_tools(body: ChatRequest, template: str, setting: str) -> ToolPlan | None:
    """What the tools of a chat ask for; None when no call can come of it.

    Args:
        body: the request.
        template: the model's chat template.
        setting: --tool-call-parser.

    Raises:
        FieldError: the tools contradict each other or another field, or this model knows none.
    """
    tools, choice = body.tools or [], body.tool_choice or "auto"
    names = tuple(tool.function.name for tool in tools)
    _check_choice(choice, names)
    if not tools or choice == "none":
        return None
    if not re.search(r"\btools\b", template):
        raise UnsupportedFieldError(
            "tools are given, but this model's chat template takes none",
            hint="leave them out, or use a model that was trained to call tools",
            param="tools",
        )
    other = body.form()
    if other is not None:
        field = "structured_outputs" if body.structured_outputs else "response_format"
        raise FieldError(
            f"{field} states the form of the answer, so no tool could be called",
            hint=f"leave {field} out, or set tool_choice to none",
            param=field,
        )
    found = style_of(template) if setting == "auto" else setting
    one_only = body.parallel_tool_calls is False
    short_ids = found == "mistral"
    if isinstance(choice, NamedTool):
        (tool,) = (tool for tool in tools if tool.function.name == choice.name)
        form = StructuredOutputs(json=tool.function.parameters or _NO_PARAMETERS)
        return ToolPlan("named", (choice.name,), one_only, short_ids, form)
    if choice == "required":
        form = StructuredOutputs(json=list_schema(tools, one_only=one_only))
        return ToolPlan("list", names, one_only, short_ids, form)
    if found not in STYLES:
        raise UnsupportedFieldError(
            "tools are given, but how this model writes its calls cannot be seen in its template",
            hint="start the server with --tool-call-parser hermes, llama3_json or mistral, or set "
            "tool_choice to required",
            param="tools",
        )
    return ToolPlan(found, names, one_only, short_ids, None)  # type: ignore[arg-type] # a Style


def _check_choice(choice: object, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise FieldError(
                f"two tools are called {name!r}", hint="give each its own name", param="tools"
            )
    if not names and choice not in {"auto", "none"}:
        raise FieldError(
            "tool_choice asks for a call, but there are no tools",
            hint="give tools, or leave tool_choice out",
            param="tool_choice",
        )
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise FieldError(
            f"tool_choice names {choice.name!r}, but the tools are {', '.join(names)}",
            hint="name one of them",
            param="tool_choice",
        )


def list_schema(tools: Sequence[Tool], *, one_only: bool) -> dict[str, Any]:
    """The schema of a list of calls.

    Raises:
        FieldError: two tools define different things under one name.
    """
    definitions: dict[str, dict[str, Any]] = {}
    calls = []
    for place, tool in enumerate(tools):
        schema = dict(tool.function.parameters or _NO_PARAMETERS)
        for kind in _DEFINITIONS:
            for name, meaning in dict(schema.pop(kind, {})).items():
                if definitions.setdefault(kind, {}).setdefault(name, meaning) != meaning:
                    raise FieldError(
                        f"tools.{place}.function.parameters defines {name!r} unlike another tool",
                        hint="rename one of them",
                        param=f"tools.{place}.function.parameters",
                    )
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "parameters": schema},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    made: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return made | ({"maxItems": 1} if one_only else {}) | definitions


class CallWriter:
    """The calls of one choice, as the API writes them.

    Args:
        plan: how to read them.
        new_id: makes a name that no other call has.
        eager: for a stream.
    """

    def __init__(self, plan: ToolPlan, new_id: Any, *, eager: bool) -> None:
        self._plan = plan
        self._new_id = new_id
        self._reader = plan.reader(eager=eager)

    @property
    def has_calls(self) -> bool:
        """Whether a call was found."""
        return self._reader.num_calls > 0

    def delta(self, text: str, *, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """What a piece of the answer adds: content, and parts of calls with their index."""
        reader = self._reader
        number = reader.num_calls - 1
        pieces = reader.feed(text)
        if is_last:
            pieces += reader.finish()
        content: list[str] = []
        parts: list[dict[str, Any]] = []
        for kind, piece in pieces:
            if kind == "content":
                content.append(piece)
                continue
            if kind == "call":
                number += 1
            if self._plan.one_only and number > 0:
                continue
            if kind == "call":
                unique = self._plan.call_id(self._new_id())
                function = {"name": piece, "arguments": ""}
                parts.append(
                    {"index": number, "id": unique, "type": "function", "function": function}
                )
            elif parts and parts[-1]["index"] == number:
                parts[-1]["function"]["arguments"] += piece
            else:
                parts.append({"index": number, "function": {"arguments": piece}})
        return "".join(content), parts

    def whole(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The content and the calls of a whole answer."""
        content, parts = self.delta(text, is_last=True)
        return content, [{k: v for k, v in part.items() if k != "index"} for part in parts]
