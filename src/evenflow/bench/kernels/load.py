"""How long a model takes until it can compute, and the memory it then holds beyond its weights."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from evenflow.bench.kernels.rows import Row
from evenflow.model.load import load_model
from evenflow.runner.native import NativeRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

READY_TARGET_MS = 1000.0
MEMORY_TARGET_MIB = 100.0

# a process of its own, whose pool is untouched: its pages do not count yet
MEASURE_MEMORY = """
import sys
from evenflow.model.load import load_model
from evenflow.runner.native import NativeRunner
runner = NativeRunner(load_model(sys.argv[1]), num_blocks=130, weights=sys.argv[2])
resident = [line for line in open("/proc/self/status") if line.startswith("VmRSS")]
print(int(resident[0].split()[1]) * 1024 - runner.weight_bytes)
"""


def load_rows(model: str, weights: str, isa: str, threads: int, repeats: int) -> Iterator[Row]:
    """From the file in the page cache to a runner that can compute; and memory beside the weights."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        runner = NativeRunner(
            load_model(model), num_blocks=130, weights=weights, isa=isa, num_threads=threads
        )
        best = min(best, time.perf_counter() - begin)
        runner.close()
    yield Row("model ready", "ms", READY_TARGET_MS, 1e3 * best, 1.0, at_most=True)
    beside = resident_bytes_beside_weights(model, weights) / 2**20
    yield Row("memory beside weights", "MiB", MEMORY_TARGET_MIB, beside, 1.0, at_most=True)


def resident_bytes_beside_weights(model: str, weights: str) -> int:
    """Bytes that a process with a ready model holds, its packed weights not counted."""
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", MEASURE_MEMORY, model, weights],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)
