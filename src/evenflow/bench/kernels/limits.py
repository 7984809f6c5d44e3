"""What the machine allows, measured on the spot: machines change their speed within seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evenflow import _native

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_BYTES = 256 << 20
L2_TILE_BYTES = 256 << 10


class Machine:
    """Ceilings of this machine with an instruction set and a pool of threads."""

    def __init__(self, isa: str, threads: int) -> None:
        self.isa = isa
        self.pool = _native.ThreadPool(threads)
        self._peak = 0.0

    def peak(self) -> float:
        """Operations a second, two per multiply-add, operands in registers: the most seen so far."""
        # bursts of about a millisecond: one of them finds all cores free, if any time does
        bursts = [_native.peak_rate(self.isa, self.pool, 20_000) for _ in range(40)]
        self._peak = max(self._peak, *bursts)
        return self._peak

    def memory(self) -> float:
        """Bytes a second read from memory by all threads."""
        return _native.read_rate(self.pool, MEMORY_BYTES, repeats=3)

    def cache(self) -> float:
        """Bytes a second read from each core's second-level cache, by all threads."""
        tiles = 4 * self.pool.num_threads
        return _native.read_rate(self.pool, tiles * L2_TILE_BYTES, tiles=tiles, rounds=200)

    def ping_pong_ns(self) -> float:
        """Nanoseconds for a value to reach another core: the best of a few."""
        return min(_native.ping_pong_ns(5000) for _ in range(5))


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)
