"""Who may take KV blocks: admission, growth, publication, release.

Two kinds of claims keep the pool from running dry in the wrong place:

* a soft claim: the blocks that an admitted prompt still needs to finish its prompt. Admission of
  others respects it; the growth of decodes does not (then chunks shrink).
* a hard claim: the same up to prompt + max_tokens, for a request that was preempted so often that
  it must not be again. Nobody may eat into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from evenflow.schedule.blocks import BlockPool
from evenflow.schedule.prefix import ROOT, PrefixCache
from evenflow.schedule.request import Stage
from evenflow.schedule.tails import Tails

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evenflow.schedule.prefix import Key
    from evenflow.schedule.request import Request
    from evenflow.schedule.tails import Tail

Refusal = Literal["", "kv", "prefix"]


class KvUsage(NamedTuple):
    """The pool's blocks by state; they add up to its size."""

    held: int
    cached: int
    free: int


class KvLedger:
    """Hands blocks to requests; `block_size` in tokens.

    Writes `block_ids`, `cache_nodes`, `pending_key` and the counts of cached, reserved and hard
    claimed blocks of a request; nobody else does.
    """

    __slots__ = (
        "_cache",
        "_hard",
        "_num_found",
        "_pool",
        "_soft",
        "_tails",
        "_wanted",
        "_wanted_nodes",
        "block_size",
    )

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool) -> None:
        self.block_size = block_size
        self._cache = PrefixCache(block_size) if prefix_caching else None
        self._tails = Tails()  # stays empty without a prefix cache
        self._pool = BlockPool(num_blocks, self._forget)
        self._soft = 0  # sum of the soft claims
        self._hard = 0  # sum of the hard claims
        # what could let in a request that found no blocks, beside blocks that are let go of: the end
        # of a claim, or that its chain changes
        self._wanted: set[Key] = set()  # blocks whose publication would lengthen it
        self._wanted_nodes: set[int] = set()  # blocks whose eviction would shorten it
        self._num_found = 0  # times that one of these happened

    def _forget(self, block: int) -> None:
        if not self._tails.remove(block) and self._cache is not None:
            self._num_found += self._cache.forget(block) in self._wanted_nodes

    @property
    def num_blocks(self) -> int:
        """The pool's size."""
        return self._pool.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_size)

    def usage(self) -> KvUsage:
        """How many blocks are held, cached and free."""
        pool = self._pool
        return KvUsage(pool.num_held, pool.num_cached, pool.num_free)

    def has_room(self) -> bool:
        """Whether all claims are covered, so that at least a full hit could be admitted."""
        return self._pool.num_available >= self._soft + self._hard

    def num_takeable(self) -> int:
        """Blocks that a decode without a hard claim may take now."""
        return self._pool.num_available - self._hard

    @property
    def num_openings(self) -> int:
        """While this stays the same, whoever was refused with "kv" since `forget_wishes` still is."""
        return self._pool.num_let_go + self._num_found

    def forget_wishes(self) -> None:
        """The waiting requests are about to be looked at once more."""
        self._wanted.clear()
        self._wanted_nodes.clear()

    def match(self, request: Request) -> int:
        """Look up a waiting request's longest cached prefix; returns its length in tokens."""
        chain = request.cache_nodes
        if self._cache is not None:
            self._cache.extend(chain, request.token_ids, request.num_shareable_tokens)
        tail = self._find_tail(request)
        return len(chain) * self.block_size + (tail.num_tokens if tail is not None else 0)

    def _find_tail(self, request: Request) -> Tail | None:
        """The half-full block that goes on where a waiting request's chain ends."""
        chain = request.cache_nodes
        parent = chain[-1] if chain else ROOT
        start = len(chain) * self.block_size
        return self._tails.find(parent, request.token_ids, start, request.num_shareable_tokens)

    def admit(self, request: Request, *, reserve_all: bool, now: bool) -> Refusal:
        """Give a waiting request its cached blocks and claim the rest of its prompt, or refuse.

        Args:
            request: holds no blocks; `match` was called for it in this step.
            reserve_all: claim prompt + max_tokens, and claim it hard.
            now: the whole prompt is computed in this very step, so soft claims that decodes have
                eaten into do not help.

        Returns:
            "" when admitted; "kv" when the blocks are not there; "prefix" when an earlier request
            is about to fill the very block that this one needs next.
        """
        chain = request.cache_nodes
        key = self._next_key(request)
        if self._cache is not None:
            leader = self._cache.leaders.get(key) if key is not None else None
            if (len(chain) + 1) * self.block_size > request.num_shareable_tokens:
                leader = None  # it computes that block itself
            if leader is not None and leader.order_key < request.order_key:
                return "prefix"
        num_tokens = request.num_prefill_tokens
        if reserve_all:
            num_tokens = request.num_prompt_tokens + request.max_tokens - 1
        needed = self.blocks_for(num_tokens) - len(chain)
        pool = self._pool
        hits = [self._cache.block(node) for node in chain] if self._cache is not None else []
        available = pool.num_available - sum(map(pool.is_idle, hits)) - self._hard
        if available - (0 if now else self._soft) < needed:
            if key is not None:
                self._wanted.add(key)
            self._wanted_nodes.update(chain)
            return "kv"
        for block in hits:
            pool.share(block)
        request.block_ids = hits
        request.num_cached_tokens = len(hits) * self.block_size
        tail = self._find_tail(request)
        if tail is not None:  # one idle block less that is there, and one less that is needed
            self._tails.remove(tail.block)
            self._pool.adopt(tail.block)
            hits.append(tail.block)
            request.num_cached_tokens += tail.num_tokens
            needed -= 1
        request.hard_claim = reserve_all
        request.num_reserved_blocks = needed
        self._claim(request, needed)
        self._lead(request)
        return ""

    def grow(self, request: Request, end: int) -> int:
        """Extend a request's blocks towards `end` positions; return how many now exist.

        A request takes its own claim first. Beyond it, and with a soft claim that others have
        eaten into, it gets what is left outside the hard claims.
        """
        blocks = request.block_ids
        missing = -(-end // self.block_size) - len(blocks)
        if missing > 0:
            pool = self._pool
            limit = pool.num_available
            if not request.hard_claim:
                limit -= self._hard
            missing = min(missing, limit)
            for _ in range(missing):
                blocks.append(pool.take())
            claimed = min(missing, request.num_reserved_blocks)
            if claimed > 0:
                request.num_reserved_blocks -= claimed
                self._claim(request, -claimed)
        return min(end, len(blocks) * self.block_size)

    def stretch(self, request: Request, end: int, *, own_slots_only: bool) -> int:
        """As `grow`, for drafts: takes no block that anybody else has claimed, or none at all."""
        missing = self.blocks_for(end) - len(request.block_ids)
        if missing > 0:
            spare = self._pool.num_available - self._soft - self._hard
            if request.hard_claim:
                spare += request.num_reserved_blocks
            if own_slots_only or spare < missing:
                end = min(end, len(request.block_ids) * self.block_size)
        return self.grow(request, end)

    def shrink(self, request: Request, end: int) -> None:
        """Take back the blocks behind the one of position `end - 1`: drafts were to fill them."""
        num_extra = len(request.block_ids) - self.blocks_for(end)
        for _ in range(num_extra):
            self._pool.release(request.block_ids.pop())
        if num_extra > 0 and request.hard_claim:
            request.num_reserved_blocks += num_extra
            self._claim(request, num_extra)

    def publish(self, request: Request) -> None:
        """Publish the full blocks below `num_computed_tokens`: their step was committed."""
        cache = self._cache
        if cache is None:
            return
        chain = request.cache_nodes
        for index in range(len(chain), request.num_computed_tokens // self.block_size):
            key = cache.key(chain[-1] if chain else ROOT, request.token_ids, index)
            node, is_new = cache.publish(key, request.block_ids[index])
            if is_new:
                self._pool.publish(request.block_ids[index])
                self._num_found += key in self._wanted
            chain.append(node)
        if request.num_computed_tokens < request.num_prefill_tokens:
            self._lead(request)
        else:
            self._follow(request)

    def release(self, request: Request) -> None:
        """Take everything back; what was computed stays cached, the end of a chain goes first."""
        self._follow(request)
        self._keep_tail(request)
        for block in reversed(request.block_ids):
            self._pool.release(block)
        request.block_ids = []
        request.cache_nodes = []
        request.num_cached_tokens = 0
        self._num_found += request.num_reserved_blocks > 0  # a claim that ends is room as well
        self._claim(request, -request.num_reserved_blocks)
        request.num_reserved_blocks = 0
        request.hard_claim = False

    def _keep_tail(self, request: Request) -> None:
        """Release the block that is computed in part, and keep it for whoever goes on with it."""
        chain, blocks = request.cache_nodes, request.block_ids
        index, num_tokens = divmod(request.num_computed_tokens, self.block_size)
        if self._cache is None or not num_tokens or index != len(chain):
            return  # nothing is kept, or all that was computed is published
        while len(blocks) > index + 1:
            self._pool.release(blocks.pop())
        block = blocks.pop()
        self._pool.publish(block)
        self._pool.release(block)
        start = index * self.block_size
        tokens = tuple(request.token_ids[start : start + num_tokens])
        dropped = self._tails.add(chain[-1] if chain else ROOT, tokens, block)
        if dropped is not None:
            self._pool.discard(dropped)

    def _claim(self, request: Request, num_blocks: int) -> None:
        if request.hard_claim:
            self._hard += num_blocks
        else:
            self._soft += num_blocks

    def _next_key(self, request: Request) -> tuple[int, tuple[int, ...]] | None:
        """The key of the first block of its prefill that is not in its chain, if it is full."""
        chain = request.cache_nodes
        if self._cache is None or (len(chain) + 1) * self.block_size > request.num_prefill_tokens:
            return None
        return self._cache.key(chain[-1] if chain else ROOT, request.token_ids, len(chain))

    def _lead(self, request: Request) -> None:
        """Announce the next block that this request's prefill will fill."""
        self._follow(request)
        key = self._next_key(request)
        if key is not None and self._cache is not None and key not in self._cache.leaders:
            self._cache.leaders[key] = request
            request.pending_key = key

    def _follow(self, request: Request) -> None:
        """Withdraw the announcement."""
        if request.pending_key is not None and self._cache is not None:
            del self._cache.leaders[request.pending_key]
            request.pending_key = None

    def check(self, requests: Iterable[Request]) -> None:
        """Compare pool, claims and cache with the requests that hold blocks; for tests.

        Raises:
            AssertionError: something leaked, is counted twice, or was published uncomputed.
        """
        holders = [r for r in requests if r.stage is not Stage.WAITING]
        self._pool.check([b for r in holders for b in r.block_ids])
        soft = sum(r.num_reserved_blocks for r in holders if not r.hard_claim)
        hard = sum(r.num_reserved_blocks for r in holders if r.hard_claim)
        assert (self._soft, self._hard) == (soft, hard), "claims differ from the requests'"
        assert self._hard <= self._pool.num_available, "a hard claim is not covered"
        for block in range(self._pool.num_blocks):
            assert block not in self._tails or self._pool.is_idle(block), "a tail is held"
        for request in holders:
            full = request.num_computed_tokens // self.block_size
            assert len(request.cache_nodes) <= max(
                full, request.num_cached_tokens // self.block_size
            ), f"{request.id} published a block that was not computed"
        if self._cache is not None:
            for key, request in self._cache.leaders.items():
                assert request.pending_key == key, "a leader does not know that it leads"
