"""Makes the runner that the options ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.runner.reference import ReferenceRunner

if TYPE_CHECKING:
    from evenflow.config import EngineConfig
    from evenflow.model.load import Model
    from evenflow.runner.interface import Runner

KV_BYTES_PER_VALUE = {"reference": 4}


def make_runner(config: EngineConfig, model: Model) -> Runner:
    """The runner named by `config.runner`, with its KV pool."""
    return ReferenceRunner(model, num_blocks=config.num_kv_blocks, block_size=config.block_size)
