"""Reads one call of a tool: an object with a name and arguments, character by character.

In: characters. Out: the name, and the text of the arguments as far as it has come. The text is handed
on as the model wrote it; whether it fits the tool's schema is the caller's business.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from evenflow.text.json_scan import JsonScanner, Mark

if TYPE_CHECKING:
    from collections.abc import Collection

_ARGUMENTS = {"arguments", "parameters"}  # Hermes' and Mistral's word, and Llama's


class CallReader:
    """One call.

    Args:
        names: the tools that may be called.
        name: the tool's name, where the text holds its arguments alone.
    """

    def __init__(self, names: Collection[str], *, name: str | None = None) -> None:
        self._names = names
        self._scanner = JsonScanner()
        self._bare = name is not None
        self._start = 0  # of the key or value that is being read
        self._in_key = False
        self._key: str | None = None
        self._arguments_start: int | None = None
        self._arguments_end: int | None = None
        self._num_taken = 0
        self._wrong = self._bare and name not in names
        self.name = name or ""
        self.text = ""  # everything that was taken

    @property
    def is_done(self) -> bool:
        """Whether the call is complete."""
        return self._scanner.is_done

    @property
    def has_begun(self) -> bool:
        """Whether the name is known and arguments have begun: from here on they can be given."""
        return bool(self.name) and self._arguments_start is not None

    def feed(self, char: str) -> bool:
        """Take a character; False when this is no call, and then the character is not taken."""
        if self._wrong or not (self.text or char == "{"):
            return False
        mark = self._scanner.feed(char)
        if mark is Mark.BROKEN:
            return False
        place = len(self.text)
        if self._bare:
            if mark is Mark.VALUE_START and self._scanner.depth == 1 and not place:
                self._arguments_start = 0
            if self.is_done:
                self._arguments_end = place + 1
        elif not self._note(mark, place, char):
            return False
        self.text += char
        return True

    def _note(self, mark: Mark, place: int, char: str) -> bool:
        """Notice keys and values of the outer object; False for what a call has not."""
        depth = self._scanner.depth
        if depth == 1 and char == '"' and self._key is None and not self._in_key:
            self._start, self._in_key = place, True
        elif mark is Mark.KEY_END and depth == 1:
            self._in_key = False
            key = str(json.loads(self.text[self._start :] + char))
            if key == "name" and self.name:
                return False
            if key in _ARGUMENTS and self._arguments_start is not None:
                return False
            self._key = key
        elif mark is Mark.VALUE_START and self._key is not None and depth == 1 + (char in "{["):
            self._start = place
            if self._key == "name" and char != '"':
                return False
            if self._key in _ARGUMENTS:
                if char != "{":
                    return False
                self._arguments_start = place
        elif mark is Mark.VALUE_END and depth == 1:
            if self._key == "name":
                self.name = str(json.loads(self.text[self._start :] + char))
                if self.name not in self._names:
                    return False
            elif self._key in _ARGUMENTS:
                self._arguments_end = place + 1
            self._key = None
        elif mark is Mark.AFTER_NUMBER and depth == 1:
            self._key = None
        return not self.is_done or bool(self.name)

    def take_arguments(self) -> str:
        """The arguments' text that has come since the last time; {} where a call has none."""
        if self._arguments_start is None:
            return "{}"
        end = len(self.text) if self._arguments_end is None else self._arguments_end
        new = self.text[self._arguments_start + self._num_taken : end]
        self._num_taken += len(new)
        return new
