"""Finds out which runners can be had, and makes the one that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.compute import NativeFacts
from evenflow.errors import ModelError

if TYPE_CHECKING:
    from evenflow.config import EngineConfig
    from evenflow.model.load import Model
    from evenflow.runner.interface import Runner

FLOAT32_BYTES = 4


def native_facts(model: Model) -> NativeFacts:
    """What the native runner can do on this machine with this model."""
    try:
        from evenflow import _native  # noqa: PLC0415 - absent where there was no compiler
        from evenflow.runner.packing import check_sizes  # noqa: PLC0415 - needs the former
    except ImportError:
        return NativeFacts("it was not built: the install found no C++20 compiler that works")
    try:
        check_sizes(model.spec, str(model.path))
    except ModelError as error:
        return NativeFacts(error.message)
    return NativeFacts("", _native.usable_cores(), tuple(_native.runnable_isas()))


def make_runner(config: EngineConfig, model: Model) -> Runner:
    """The runner named by `config.runner`, with its KV pool.

    Raises:
        ConfigError: weights that cannot be had in the format asked for.
    """
    if config.runner == "native":
        from evenflow.runner.native import NativeRunner  # noqa: PLC0415 - may not be built

        return NativeRunner(
            model,
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            max_positions=config.max_model_len,
            weights=config.weights,
            isa=config.isa,
            num_threads=config.threads,
            kv_f32=config.kv_cache_dtype == "float32",
        )
    from evenflow.runner.reference import ReferenceRunner  # noqa: PLC0415 - only where it is used

    return ReferenceRunner(
        model,
        num_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        max_positions=config.max_model_len,
    )
