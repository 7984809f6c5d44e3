"""Reads one JSON value character by character, and says as soon as it cannot become one.

In: characters. Out: after each, whether a key or a value has begun or ended and at which depth. It keeps
no text and builds nothing (RFC 8259's grammar as a stack and a state), so half a value can be judged.
"""

from __future__ import annotations

import re
from enum import Enum

_SPACE = " \t\n\r"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"t": "true", "f": "false", "n": "null"}


class Mark(Enum):
    """What a character was."""

    MORE = "inside of something, or between"
    VALUE_START = "the first of a value"
    KEY_END = "the last of a key"
    VALUE_END = "the last of a value"
    AFTER_NUMBER = "the first behind a number, and nothing else"
    BROKEN = "no part of JSON here"


class JsonScanner:
    """One value, and space before it. `depth` is the number of open objects and lists.

    A number has no last character of its own: the one behind it tells, and inside an object or a list
    that one may end those too. So VALUE_END is not said of numbers; AFTER_NUMBER is said where nothing
    more ends.
    """

    __slots__ = ("_escaped", "_expect", "_left", "_number", "_stack", "_text", "is_done")

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._expect = "value"  # value, first, key, first key, colon, next, done
        self._text = ""  # the kind of string that it is in: "value", "key" or none
        self._escaped = False  # behind a backslash
        self._left = ""  # of true, false or null, to come; or a dot for each hex digit to come
        self._number = ""
        self.is_done = False

    @property
    def depth(self) -> int:
        """Open objects and lists."""
        return len(self._stack)

    def feed(self, char: str) -> Mark:
        """Take the next character. After BROKEN, or once `is_done`, there is nothing more to feed."""
        if self._text:
            return self._in_string(char)
        if self._left:
            if char != self._left[0]:
                return Mark.BROKEN
            self._left = self._left[1:]
            return Mark.MORE if self._left else self._end_value()
        if self._number:
            if char in "-+.eE0123456789":
                self._number += char
                return Mark.MORE
            if _NUMBER.fullmatch(self._number) is None:
                return Mark.BROKEN
            self._number = ""
            self._end_value()
            mark = self._between(char)
            return Mark.AFTER_NUMBER if mark is Mark.MORE else mark
        return self._between(char)

    def _between(self, char: str) -> Mark:
        if char in _SPACE:
            return Mark.MORE
        expect = self._expect
        if char in "]}":
            opener = "[" if char == "]" else "{"
            may_end = expect in {"next", "first" if char == "]" else "first key"}
            if not may_end or not self._stack or self._stack[-1] != opener:
                return Mark.BROKEN
            self._stack.pop()
            return self._end_value()
        if expect in {"value", "first"}:
            return self._start_value(char)
        if expect in {"key", "first key"} and char == '"':
            self._text = "key"
            return Mark.MORE
        if expect == "colon" and char == ":":
            self._expect = "value"
            return Mark.MORE
        if expect == "next" and char == ",":
            self._expect = "key" if self._stack[-1] == "{" else "value"
            return Mark.MORE
        return Mark.BROKEN

    def _start_value(self, char: str) -> Mark:
        if char in "{[":
            self._stack.append(char)
            self._expect = "first key" if char == "{" else "first"
        elif char == '"':
            self._text = "value"
        elif char in _WORDS:
            self._left = _WORDS[char][1:]
        elif char in "-0123456789":
            self._number = char
        else:
            return Mark.BROKEN
        return Mark.VALUE_START

    def _in_string(self, char: str) -> Mark:
        if self._left:  # hex digits
            self._left = self._left[1:]
            return Mark.MORE if char in "0123456789abcdefABCDEF" else Mark.BROKEN
        if self._escaped:
            self._escaped = False
            if char == "u":
                self._left = "...."
                return Mark.MORE
            return Mark.MORE if char in '"\\/bfnrt' else Mark.BROKEN
        if char == "\\":
            self._escaped = True
            return Mark.MORE
        if char == '"':
            is_key, self._text = self._text == "key", ""
            if is_key:
                self._expect = "colon"
                return Mark.KEY_END
            return self._end_value()
        return Mark.BROKEN if char < " " else Mark.MORE

    def _end_value(self) -> Mark:
        self._expect = "next" if self._stack else "done"
        self.is_done = not self._stack
        return Mark.VALUE_END
