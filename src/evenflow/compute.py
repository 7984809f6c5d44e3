"""The options that say what computes the steps, settled with their reasons.

In: what a caller gave, and what the native runner can do here. Out: one choice for each option.
Part of `config.py`, in a file of its own; probes nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.options import Options

RUNNERS = ("reference", "native")
WEIGHTS = ("bf16", "int8", "int4", "f32")
WEIGHT_BYTES = {"auto": 2.0, "bf16": 2.0, "int8": 1.125, "int4": 0.625, "f32": 4.0}
KV_DTYPES = ("bfloat16", "float32")
NATIVE_ONLY = ("weights", "kv_cache_dtype", "threads", "isa")
SLOTS_PER_KERNEL_BLOCK = 64
MAX_THREADS = 1024


class NativeFacts(NamedTuple):
    """What the native runner can do here; `problem` is why it cannot run, "" when it can."""

    problem: str = "this build has no native runner"
    cores: int = 1
    isas: tuple[str, ...] = ()


class Compute(NamedTuple):
    """What computes the steps, and how; the reference runner has one way only."""

    runner: str
    weights: str
    kv_cache_dtype: str
    threads: int
    isa: str

    @property
    def kv_bytes_per_value(self) -> int:
        """Bytes of one number in the KV pool."""
        return 2 if self.kv_cache_dtype == "bfloat16" else 4

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of one weight, about; a file's own format may be smaller than "auto" says."""
        return WEIGHT_BYTES[self.weights]


def settle_compute(take: Options, native: NativeFacts) -> Compute:
    """Choose the runner and its options.

    Raises:
        ConfigError: a runner that cannot run here, an option without effect or out of range.
    """
    runner = take.choice("runner", RUNNERS)
    if runner == "native" and native.problem:
        raise ConfigError(
            f"the native runner cannot be used: {native.problem}",
            hint="use runner reference, which is slower, or mend that",
        )
    if runner is None and native.problem:
        runner = take.settle("runner", "reference", native.problem)
        take.warnings.append(
            f"the native runner cannot be used: {native.problem}; the reference runner is used, "
            "which is several times slower"
        )
    elif runner is None:
        runner = take.settle("runner", "native", "the fastest that this machine runs")
    return _native(take, native) if runner == "native" else _reference(take)


def _reference(take: Options) -> Compute:
    for name in NATIVE_ONLY:
        if name in take.given:
            raise ConfigError(
                f"{name} is given, but it has no effect with the reference runner",
                hint=f"leave {name} out, or use runner native",
            )
    why = "the reference runner's only way"
    return Compute(
        "reference",
        take.settle("weights", "f32", why),
        take.settle("kv_cache_dtype", "float32", why),
        take.settle("threads", 0, "left to NumPy"),
        take.settle("isa", "numpy", why),
    )


def _native(take: Options, native: NativeFacts) -> Compute:
    weights = take.choice("weights", WEIGHTS) or take.settle(
        "weights", "auto", "8- and 4-bit weights as the file has them, bf16 for the rest"
    )
    dtype = take.choice("kv_cache_dtype", KV_DTYPES)
    if dtype is None and weights == "f32":
        dtype = take.settle("kv_cache_dtype", "float32", "weights are f32")
    elif dtype is None:
        dtype = take.settle("kv_cache_dtype", "bfloat16", "half of the memory to read")
    elif weights == "f32" and dtype != "float32":
        raise ConfigError(
            f"kv_cache_dtype is {dtype!r}, but weights are f32, which keep all in float32",
            hint="leave kv_cache_dtype out, or choose other weights",
        )
    threads = take.integer(
        "threads", native.cores, 1, MAX_THREADS, auto="physical cores that may be used"
    )
    isa = take.choice("isa", native.isas) or take.settle(
        "isa", native.isas[0], f"the best of {', '.join(native.isas)}"
    )
    return Compute("native", weights, dtype, threads, isa)


def settle_block_size(take: Options, runner: str) -> int:
    """Slots per KV block.

    Raises:
        ConfigError: out of range, or not a multiple of 64 with the native runner.
    """
    if runner != "native":
        why = "small enough to share, large enough to read in one go"
        return take.integer("block_size", 16, 1, 4096, auto=why)
    size = take.integer(
        "block_size", SLOTS_PER_KERNEL_BLOCK, 1, 4096, auto="the keys that a kernel takes at once"
    )
    if size % SLOTS_PER_KERNEL_BLOCK:
        raise ConfigError(
            f"block_size is {size}, but the native runner's blocks hold a multiple of"
            f" {SLOTS_PER_KERNEL_BLOCK} slots",
            hint=f"use block_size {SLOTS_PER_KERNEL_BLOCK}, or runner reference",
        )
    return size
