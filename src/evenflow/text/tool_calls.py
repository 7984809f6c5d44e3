"""Finds calls of tools in what a model writes, as it comes.

In: pieces of text, cut anywhere. Out: content, and calls: a name, then the text of the arguments. Every
style is a small machine over characters (a generator that is sent one at a time), so a result cannot
depend on how the text was cut. What looks like a call and is none, in its form or because nobody
offered a tool of that name, is content.

The styles, by vLLM's names: `hermes` (also Qwen's): <tool_call>{"name": ..., "arguments": {...}}</tool_call>;
`llama3_json`: a text that begins with {"name": ..., "parameters": {...}}, or with <|python_tag|> before it;
`mistral`: [TOOL_CALLS][{...}, ...], or [TOOL_CALLS]name[ARGS]{...}. `list` is what an answer that must
consist of calls is made to look like: [{...}, ...].
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from evenflow.text.tool_reader import CallReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

Style = Literal["hermes", "llama3_json", "mistral", "list"]
STYLES = ("hermes", "llama3_json", "mistral")

_MARKS: dict[Style, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    "mistral": ("[TOOL_CALLS]",),
    "llama3_json": ("<|python_tag|>", '{"name": function name, "parameters": '),
}
_OTHERS = ("<arg_key>", "<function=")  # GLM's and Qwen3-Coder's, in the same tag as Hermes'
_SPACE = " \t\n\r"
_END = ""  # what a machine is sent when the text is over


class Piece(NamedTuple):
    """Something certain: a stretch of content, the name that begins a call, or of its arguments."""

    kind: Literal["content", "call", "arguments"]
    text: str


def style_of(template: str) -> Style | None:
    """The style that a chat template shows its model; None where it shows none of these."""
    if any(mark in template for mark in _OTHERS):
        return None
    for style, marks in _MARKS.items():
        if any(mark in template for mark in marks):
            return style
    return None


class ToolCallParser:
    """Reads one answer.

    Args:
        style: how calls are written.
        names: the tools that were offered; a call of another one is content.
        eager: give a call's arguments as they come. What turns out to be no JSON later ends the call
            there and is content from there on. Otherwise a call is given when it is complete, and
            one that never is, is content from its beginning.
    """

    def __init__(self, style: Style, names: Collection[str], *, eager: bool) -> None:
        self._names = frozenset(names)
        self._eager = eager
        self._input: deque[str] = deque()
        self._out: list[Piece] = []
        self._space = ""  # content only if more of it follows
        self._beside = False  # nothing but space since a call
        self.num_calls = 0
        self._machine = _MACHINES[style](self)
        next(self._machine)

    def feed(self, text: str) -> list[Piece]:
        """Take a piece of the text; neighbours of one kind are joined."""
        self._input.extend(text)
        while self._input:
            self._machine.send(self._input.popleft())
        return self._take()

    def finish(self) -> list[Piece]:
        """The rest, when no more text comes. Feed nothing after it."""
        try:
            while True:
                self._machine.send(self._input.popleft() if self._input else _END)
        except StopIteration:
            pass
        if not self._beside:
            self._say("content", self._space)
        return self._take()

    def _take(self) -> list[Piece]:
        out, self._out = self._out, []
        return out

    # -- for the machines -------------------------------------------------------------------

    def _say(self, kind: Literal["content", "call", "arguments"], text: str) -> None:
        if kind == "call":
            self.num_calls += 1
            self._space, self._beside = "", True
        elif self._out and self._out[-1].kind == kind:
            text = self._out.pop().text + text
        if text:
            self._out.append(Piece(kind, text))

    def _content(self, text: str) -> None:
        """Content; space waits for what follows, since beside a call it is none."""
        for char in text:
            if char in _SPACE:
                self._space += char
            else:
                self._say("content", char if self._beside else self._space + char)
                self._space, self._beside = "", False

    def _again(self, text: str) -> None:
        """Let the machine read this next."""
        self._input.extendleft(reversed(text))

    def _text_until(self, opener: str) -> Generator[None, str, bool]:
        """Content up to an opener; False at the text's end."""
        seen = ""
        while True:
            char = yield
            seen += char
            while seen and not opener.startswith(seen):
                self._content(seen[0])
                seen = seen[1:]
            if seen == opener:
                return True
            if char == _END:
                self._content(seen)
                return False

    def _call(self, name: str | None = None) -> Generator[None, str, str | None]:
        """A call's object, whose first character comes next; with a name, its arguments alone.

        Returns:
            None when a call was given; else the text that was read and is content, or, of a call
            that has begun to be given, what broke it.
        """
        reader = CallReader(self._names, name=name)
        begun = False
        while not reader.is_done:
            char = yield
            if char == _END or not reader.feed(char):
                return char if begun else reader.text + char
            if self._eager and (begun or reader.has_begun):
                if not begun:
                    self._say("call", reader.name)
                begun = True
                self._say("arguments", reader.take_arguments())
        if not begun:
            self._say("call", reader.name)
            self._say("arguments", reader.take_arguments())
        return None

    def _skip_space(self) -> Generator[None, str, tuple[str, str]]:
        """Space, and the character behind it."""
        space = ""
        while True:
            char = yield
            if char == _END or char not in _SPACE:
                return space, char
            space += char

    def _literal(self, text: str) -> Generator[None, str, str | None]:
        """A fixed text; None when it came, else what came instead."""
        seen = ""
        while seen != text:
            char = yield
            seen += char
            if char == _END or not text.startswith(seen):
                return seen
        return None


def _hermes(self: ToolCallParser) -> Generator[None, str, None]:
    opener, closer = "<tool_call>", "</tool_call>"
    while (yield from self._text_until(opener)):
        num_calls = self.num_calls
        space, char = yield from self._skip_space()
        self._again(char)
        broken = yield from self._call()
        if broken is not None:
            before = opener + space if self.num_calls == num_calls else ""
            self._content(before)
            self._again(broken)
            continue
        space, char = yield from self._skip_space()
        self._again(char)
        other = yield from self._literal(closer)
        if other is not None:
            self._again(space + other)


def _listed(self: ToolCallParser, opener: str) -> Generator[None, str, None]:
    """The objects of a list behind "[", up to and with "]"."""
    begun = opener  # content, if there is no call
    while True:
        num_calls = self.num_calls
        space, char = yield from self._skip_space()
        self._again(char)
        broken = yield from self._call()
        if broken is not None:
            if self.num_calls == num_calls:
                self._content(begun + space)
            self._again(broken)
            return
        space, char = yield from self._skip_space()
        if char != ",":
            self._again(space + char if char != "]" else "")
            return
        begun = space + char


def _list(self: ToolCallParser) -> Generator[None, str, None]:
    space, char = yield from self._skip_space()
    if char == "[":
        yield from _listed(self, space + char)
    else:
        self._again(space + char)
    yield from _rest(self)


def _mistral(self: ToolCallParser) -> Generator[None, str, None]:
    opener = "[TOOL_CALLS]"
    while (yield from self._text_until(opener)):
        space, char = yield from self._skip_space()
        if char == "[":
            yield from _listed(self, opener + space + char)
            continue
        name = ""
        while char.isalnum() or (char and char in "_-."):
            name += char
            char = yield
        self._again(char)
        before = opener + space + name
        if char == "[":
            other = yield from self._literal("[ARGS]")
            if other is not None:
                self._content(before)
                self._again(other)
                continue
            before += "[ARGS]"
        num_calls = self.num_calls
        broken = yield from self._call(name)
        if broken is not None:
            if self.num_calls == num_calls:
                self._content(before)
            self._again(broken)


def _llama(self: ToolCallParser) -> Generator[None, str, None]:
    begun, char = yield from self._skip_space()
    self._again(char)
    if char == "<":
        other = yield from self._literal("<|python_tag|>")
        if other is not None:
            self._again(begun + other)
            yield from _rest(self)
            return
        space, char = yield from self._skip_space()
        self._again(char)
        begun += "<|python_tag|>" + space
    while True:
        num_calls = self.num_calls
        broken = yield from self._call()
        if broken is not None:
            self._again((begun if self.num_calls == num_calls else "") + broken)
            break
        begun, char = yield from self._skip_space()
        if char != ";":
            self._again(begun + char)
            break
        space, char = yield from self._skip_space()
        self._again(char)
        begun += ";" + space
    yield from _rest(self)


def _rest(self: ToolCallParser) -> Generator[None, str, None]:
    """Content, up to the end."""
    while (char := (yield)) != _END:
        self._content(char)


_MACHINES: dict[Style, Callable[[ToolCallParser], Generator[None, str, None]]] = {
    "hermes": _hermes,
    "llama3_json": _llama,
    "mistral": _mistral,
    "list": _list,
}
