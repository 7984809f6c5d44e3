"""Blocks that ended requests left half full: the end of each sequence, for whoever goes on with it.

Full blocks are shared, and a shared block is never written. The tokens behind the last full one
would have to be computed again by the next turn of a chat: up to a block of them. So the block that
holds them is kept as a tail, and a request that goes on with the same tokens takes it over, with what
is in it, as a block of its own. Nobody else holds it then, so it may be written to; nothing is
copied. Whoever comes second computes these few tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Tails kept behind one full block: bounds what a look-up costs. The oldest goes first.
MAX_TAILS = 8


class Tail(NamedTuple):
    """A block and how many of its first positions a request can use."""

    block: int
    num_tokens: int


class Tails:
    """Finds tails by the node of the full block before them; holds no reference to a block."""

    __slots__ = ("_parents", "_under")

    def __init__(self) -> None:
        self._under: dict[int, dict[int, tuple[int, ...]]] = {}  # node -> block -> its tokens
        self._parents: dict[int, int] = {}  # block -> node

    def __contains__(self, block: int) -> bool:
        return block in self._parents

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, parent: int, tokens: tuple[int, ...], block: int) -> int | None:
        """Keep a tail; returns the block that is not kept for it, which may be this very one."""
        under = self._under.setdefault(parent, {})
        if tokens in under.values():
            return block
        dropped = None
        if len(under) == MAX_TAILS:
            dropped = next(iter(under))
            self.remove(dropped)
        under[block] = tokens
        self._parents[block] = parent
        return dropped

    def find(self, parent: int, tokens: Sequence[int], start: int, end: int) -> Tail | None:
        """The tail that shares most with `tokens[start:end]`, if that is half of what it holds.

        A tail that agrees in less is left to the request that it came of.
        """
        best = None
        for block, held in self._under.get(parent, {}).items():
            most = min(len(held), end - start)
            count = 0
            while count < most and held[count] == tokens[start + count]:
                count += 1
            if 2 * count >= len(held) and (best is None or count > best.num_tokens):
                best = Tail(block, count)
        return best

    def remove(self, block: int) -> bool:
        """The block is taken over or evicted; returns whether it was a tail."""
        parent = self._parents.pop(block, None)
        if parent is None:
            return False
        under = self._under[parent]
        del under[block]
        if not under:
            del self._under[parent]
        return True
