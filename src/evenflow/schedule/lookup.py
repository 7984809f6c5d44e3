"""Guesses what comes next by looking up where the last tokens stood before: prompt lookup.

In: a request's tokens so far. Out: the tokens that followed the latest earlier place where its last
`n` tokens stood, the longest such `n` first. Nothing is computed, and nothing is lost when the
guess is wrong but the room that it took in a step.

The idea is that of Saxena, Prompt lookup decoding (2023), and of Yang et al., Inference with
reference (2023): an answer that quotes, edits or sums up its prompt repeats runs of its tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.schedule.request import Request

# Positions indexed per request and step: a long prompt is taken in over several steps, so that its
# index never holds up a step for long.
INDEX_STEP = 256


class NgramIndex:
    """Where each n-gram of a growing list of tokens stood last; costs O(1) per token.

    Args:
        shortest: the fewest tokens that must agree.
        longest: the most tokens that are compared.
    """

    __slots__ = ("_next", "_num_indexed", "_sizes")

    def __init__(self, shortest: int, longest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._next: dict[tuple[int, ...], int] = {}  # n-gram -> where what followed it stands
        self._num_indexed = 0  # tokens that are known to follow an n-gram

    def extend(self, tokens: Sequence[int], most: int) -> None:
        """Take in at most `most` tokens of those that were appended since the last call."""
        last = min(len(tokens), self._num_indexed + most)
        following = self._next
        for size in self._sizes:
            for place in range(max(self._num_indexed, size), last):
                following[tuple(tokens[place - size : place])] = place
        self._num_indexed = last

    def following(self, tokens: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that should come next, or none.

        A run that reaches the end of what is known goes on with itself, so a loop of any length is
        continued as a loop.
        """
        total = len(tokens)
        for size in self._sizes:
            place = self._next.get(tuple(tokens[-size:])) if size < total else None
            if place is not None:
                found = list(tokens[place : place + count])
                while len(found) < count:
                    found.append(found[place + len(found) - total])
                return found
        return []


class NgramDrafter:
    """One index per request that decodes."""

    __slots__ = ("_indices", "_longest", "_shortest")

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indices: dict[str, NgramIndex] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        """What may come after the request's tokens: `most` of them, or none."""
        index = self._indices.get(request.id)
        if index is None:
            index = self._indices[request.id] = NgramIndex(self._shortest, self._longest)
        index.extend(request.token_ids, INDEX_STEP)
        return index.following(request.token_ids, most)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._indices.pop(request.id, None)
