"""Find stop strings in text that arrives in pieces.

In: pieces of text. Out: the part that is certain to be in the answer, and whether a stop string was
completed. Knows no token. It is the automaton of Aho and Corasick (1975): its state is the longest
end of the text so far that could begin a stop string, which is exactly what must be held back. Each
character is read once, whatever the number and length of the stop strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatcher:
    """Searches for several strings at once.

    The string that is completed first wins, so the result does not depend on how the text was cut
    into tokens. Of several completed by the same character the longest wins, that is, the one that
    begins first.

    Args:
        stop: the strings, none of them empty.
        include: the text ends behind the stop string, not before it. Then nothing is held back.
    """

    __slots__ = ("_children", "_fail", "_first", "_held", "_hold", "_include", "_match", "_state")

    def __init__(self, stop: Sequence[str], *, include: bool) -> None:
        self._include = include
        self._held = ""
        self._state = 0
        self._children: list[dict[str, int]] = [{}]
        self._match: list[str] = [""]  # longest stop string that ends in a state
        for text in stop:
            state = 0
            for char in text:
                state = self._children[state].setdefault(char, len(self._children))
                if state == len(self._children):
                    self._children.append({})
                    self._match.append("")
            self._match[state] = text
        self._first = frozenset(self._children[0])
        self._fail, self._hold = self._link()

    def _link(self) -> tuple[list[int], list[int]]:
        """Per state: the state of its longest proper suffix, and how many characters to hold."""
        fail = [0] * len(self._children)
        hold = [0] * len(self._children)
        level, depth = [0], 0
        while level:
            for state in level:
                # a leaf begins nothing longer: hold back only what its suffix could begin
                hold[state] = depth if self._children[state] else hold[fail[state]]
                self._match[state] = self._match[state] or self._match[fail[state]]
                for char, child in self._children[state].items():
                    fail[child] = self._step(fail, fail[state], char) if state else 0
            level = [child for state in level for child in self._children[state].values()]
            depth += 1
        return fail, hold

    def _step(self, fail: list[int], state: int, char: str) -> int:
        while state and char not in self._children[state]:
            state = fail[state]
        return self._children[state].get(char, 0)

    def feed(self, text: str, *, armed: bool) -> tuple[str, str]:
        """Read a piece.

        Args:
            text: the next characters.
            armed: whether a stop string completed by this piece counts.

        Returns:
            The characters that are now certain, and the stop string that was completed, or "".
            After one was completed there is nothing more to feed.
        """
        state = self._state
        if not state and self._first.isdisjoint(text):
            return text, ""
        children, fail, match = self._children, self._fail, self._match
        for offset, char in enumerate(text, 1):
            while state and char not in children[state]:
                state = fail[state]
            state = children[state].get(char, 0)
            if armed and match[state]:
                found = match[state]
                whole = self._held + text[:offset]
                self._held, self._state = "", 0
                return (whole if self._include else whole[: -len(found)]), found
        self._state = state
        if self._include:
            return text, ""
        whole = self._held + text
        cut = len(whole) - self._hold[state]
        self._held = whole[cut:]
        return whole[:cut], ""

    def rest(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held, self._state = self._held, "", 0
        return held
