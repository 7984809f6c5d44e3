"""Full blocks by content: a chain of nodes from the start of a sequence.

A node stands for one full block of tokens behind one parent node; its key is (parent, tokens).
Node numbers are never used again, and the keys are compared token by token, so a hit is exact:
there is no hash to collide, and a node whose parent was evicted can never be reached.

`leaders` are requests that will fill a block soon: whoever needs the same block waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.schedule.request import Request

ROOT = 0

Key = tuple[int, tuple[int, ...]]


class PrefixCache:
    """Maps published blocks to nodes and back; `block_size` in tokens."""

    __slots__ = (
        "_block_of",
        "_key_of",
        "_last",
        "_node_of_block",
        "_nodes",
        "block_size",
        "leaders",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.leaders: dict[Key, Request] = {}
        self._nodes: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[int, int] = {}
        self._node_of_block: dict[int, int] = {}
        self._last = ROOT

    def key(self, parent: int, tokens: Sequence[int], index: int) -> Key:
        """The key of block `index` of a sequence behind `parent`."""
        start = index * self.block_size
        return parent, tuple(tokens[start : start + self.block_size])

    def extend(self, chain: list[int], tokens: Sequence[int], num_tokens: int) -> None:
        """Lengthen `chain` by every published block that `tokens[:num_tokens]` goes on with.

        Entries that were evicted since are dropped first, so a chain may be kept between calls.
        """
        block_of = self._block_of
        for i, node in enumerate(chain):
            if node not in block_of:
                del chain[i:]
                break
        parent = chain[-1] if chain else ROOT
        for index in range(len(chain), num_tokens // self.block_size):
            node = self._nodes.get(self.key(parent, tokens, index), ROOT)
            if node == ROOT:
                break
            chain.append(node)
            parent = node

    def block(self, node: int) -> int:
        """The block that holds a node's keys and values."""
        return self._block_of[node]

    def publish(self, key: Key, block: int) -> tuple[int, bool]:
        """Make a computed block findable.

        Returns:
            The node, and whether `block` is what stands behind it: False when another block with
            the same content was published first.
        """
        node = self._nodes.get(key)
        if node is not None:
            return node, False
        self._last += 1
        node = self._last
        self._nodes[key] = node
        self._key_of[node] = key
        self._block_of[node] = block
        self._node_of_block[block] = node
        return node, True

    def forget(self, block: int) -> int:
        """A published block is about to be overwritten; returns the node that it was."""
        node = self._node_of_block.pop(block)
        del self._nodes[self._key_of.pop(node)]
        del self._block_of[node]
        return node

    def published_blocks(self) -> dict[int, Key]:
        """Every published block and its key; for tests."""
        return {block: self._key_of[node] for block, node in self._node_of_block.items()}
