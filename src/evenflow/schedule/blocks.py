"""The pool of KV blocks: who holds which, which may be evicted, which are free.

A block is in exactly one of three states:

* free: nobody holds it and its content is worth nothing;
* held: at least one request counts on it;
* cached: nobody holds it, but its content is published, so a later prompt may take it up. It is
  evicted, least recently released first, when the free ones run out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class BlockPool:
    """Counts references to `num_blocks` blocks; knows nothing of requests or tokens.

    `on_evict(block)` is called when a cached block is about to be reused for something else.
    """

    __slots__ = ("_cached", "_free", "_on_evict", "_published", "_refs", "num_blocks", "num_let_go")

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._refs = [0] * num_blocks
        self.num_let_go = 0  # times a block lost its last holder; only grows
        self._published = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low numbers are used first
        self._cached: dict[int, None] = {}  # insertion order = order of release

    @property
    def num_free(self) -> int:
        """Blocks whose content is worth nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Published blocks that nobody holds."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that at least one request counts on."""
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can still hand out."""
        return len(self._free) + len(self._cached)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return self._refs[block] == 0

    def take(self) -> int:
        """Hand out a block for one holder; the caller has checked `num_available`."""
        if self._free:
            block = self._free.pop()
        else:
            block = next(iter(self._cached))
            del self._cached[block]
            self._published[block] = 0
            self._on_evict(block)
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a published block."""
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1

    def publish(self, block: int) -> None:
        """From now on the block outlives its holders."""
        self._published[block] = 1

    def adopt(self, block: int) -> None:
        """Hand a cached block, with what it holds, to one holder, who may write to it."""
        del self._cached[block]
        self._published[block] = 0
        self._refs[block] = 1

    def discard(self, block: int) -> None:
        """The content of a cached block is worth nothing any more."""
        del self._cached[block]
        self._published[block] = 0
        self._free.append(block)

    def release(self, block: int) -> None:
        """Remove a holder; the last one frees the block, or leaves it cached if published."""
        refs = self._refs[block] - 1
        self._refs[block] = refs
        if refs == 0:
            self.num_let_go += 1
            if self._published[block]:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check(self, held: list[int]) -> None:
        """Compare the pool with what the requests hold; for tests.

        Args:
            held: the block ids of all requests together, one entry per holder.

        Raises:
            AssertionError: a block leaked, is held twice by mistake, or is in two states.
        """
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._refs, "reference counts differ from what the requests hold"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is both free and cached"
        assert all(self._published[b] for b in cached), "an unpublished block is cached"
        assert not any(self._published[b] for b in free), "a published block is free"
        idle = {b for b, refs in enumerate(self._refs) if refs == 0}
        assert idle == free | cached, "an idle block is neither free nor cached"
