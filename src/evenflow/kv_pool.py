"""The size of the KV pool: by blocks, by bytes, by a share of free memory, or chosen.

Part of `config.py`, in a file of its own. In: what a caller gave, and how much memory is free. Out:
the number of blocks, with origin and reason; memory is measured elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.options import Options

MIB = 1024**2
MAX_AUTO_KV_BYTES = 1024 * MIB
AUTO_KV_SHARE = 0.25
WAYS = ("num_kv_blocks", "kv_cache_memory_bytes", "kv_cache_memory_share")


class Demand(NamedTuple):
    """What the pool is for, and what there is; sizes in bytes, lengths in tokens."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    block_bytes: int
    free_memory_bytes: int  # less what the weights will take

    @property
    def needed(self) -> int:
        """Blocks of one whole request."""
        return -(-self.max_model_len // self.block_size)


def settle_kv_pool(take: Options, demand: Demand) -> tuple[int, float]:
    """The number of KV blocks, and the share of free memory that it was chosen by (else 0).

    Raises:
        ConfigError: the size is given in two ways, or one whole request does not fit.
    """
    ways = [name for name in WAYS if name in take.given]
    if len(ways) > 1:
        raise ConfigError(
            f"{ways[0]} and {ways[1]} are both given",
            hint="leave one of the two out; each says how large the KV pool is",
        )
    way = ways[0] if ways else ""
    share = 0.0
    if way == "num_kv_blocks":
        blocks = take.integer(way, 0, 1)
    elif way == "kv_cache_memory_bytes":
        blocks = take.size(way, demand.block_bytes) // demand.block_bytes
        take.settle("num_kv_blocks", 0, "whole blocks that kv_cache_memory_bytes holds")
    elif way == "kv_cache_memory_share":
        share = take.share(way)
        blocks = int(demand.free_memory_bytes * share) // demand.block_bytes
        free = f"{demand.free_memory_bytes // MIB:,} MiB that are free"
        take.settle("num_kv_blocks", 0, f"whole blocks that {share:g} of the {free} hold")
    else:
        share = AUTO_KV_SHARE
        blocks = _auto_blocks(take, demand)
    if way != "kv_cache_memory_bytes":
        take.settle("kv_cache_memory_bytes", 0, "what num_kv_blocks takes")
    if not way:
        take.settle("kv_cache_memory_share", 0, "the size was left open")
    elif not share:
        take.settle("kv_cache_memory_share", 0, f"no effect: {way} is given")
    _check(take, demand, blocks, way)
    return blocks, share


def _check(take: Options, demand: Demand, blocks: int, way: str) -> None:
    size, needed = demand.block_size, demand.needed
    if blocks < needed:
        fits = blocks * size
        more = {
            "kv_cache_memory_bytes": f"kv_cache_memory_bytes to at least "
            f"{needed * demand.block_bytes}",
            "kv_cache_memory_share": f"give the pool {needed * demand.block_bytes // MIB + 1} MiB",
        }.get(way, f"num_kv_blocks to at least {needed}")
        lower = f"set max_model_len to at most {fits}" if fits > 1 else "lower max_model_len"
        raise ConfigError(
            f"the KV pool holds {fits:,} tokens ({blocks:,} blocks of {size}), but one "
            f"request may have {demand.max_model_len:,} (max_model_len)",
            hint=f"{lower}, or {more}",
        )
    if blocks * demand.block_bytes > demand.free_memory_bytes:
        take.warnings.append(
            f"the KV pool takes {blocks * demand.block_bytes // MIB:,} MiB when it is full, but "
            f"{demand.free_memory_bytes // MIB:,} MiB of memory are free"
        )


def _auto_blocks(take: Options, demand: Demand) -> int:
    needed, free_bytes = demand.needed, demand.free_memory_bytes
    limits = {
        f"max_num_seqs requests of max_model_len ({demand.max_num_seqs:,} x {needed:,} blocks)": (
            needed * demand.max_num_seqs
        ),
        f"a quarter of the {free_bytes // MIB:,} MiB of free memory": int(
            free_bytes * AUTO_KV_SHARE
        )
        // demand.block_bytes,
        f"at most {MAX_AUTO_KV_BYTES // MIB:,} MiB unless told otherwise": MAX_AUTO_KV_BYTES
        // demand.block_bytes,
    }
    reason = min(limits, key=limits.__getitem__)
    blocks = limits[reason]
    if blocks < needed:
        blocks, reason = needed, "one request of max_model_len"
    if blocks * demand.block_bytes > free_bytes:
        raise ConfigError(
            f"one request of max_model_len takes {needed * demand.block_bytes // MIB:,} MiB of KV, "
            f"but {free_bytes // MIB:,} MiB of memory are free",
            hint="lower max_model_len, or free some memory",
        )
    return take.settle("num_kv_blocks", blocks, reason)
