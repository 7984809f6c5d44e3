"""The native runner: one C++ call per step on this machine's cores, the GIL released for all of it.

In: a `Model` and step plans. Out: sampled tokens, and the logits of the last step on request.
Weights are packed straight from the mapped file; keys and values live on the C++ side only. Knows
nothing of schedules, text or serving.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from evenflow import _native
from evenflow.errors import ConfigError, RunnerError
from evenflow.model.rope import rope_tables
from evenflow.runner.batch import F32, Batch, SamplingMemory, build_batch
from evenflow.runner.interface import Done
from evenflow.runner.outcome import Report, make_result
from evenflow.runner.packing import pack_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.model.load import Model
    from evenflow.types import StepPlan

SLOTS_PER_KERNEL_BLOCK = 64


class NativeRunner:
    """Computes steps in C++.

    Args:
        model: the model; its file stays mapped while this lives.
        num_blocks: blocks of the KV pool; no sequence may be longer than all of them.
        block_size: slots per block, a multiple of 64.
        max_positions: longest sequence; None means as long as the pool.
        weights: "auto" keeps the file's own 8- and 4-bit weights and takes bf16 for the rest;
            "bf16", "int8", "int4" and "f32" ask for one format.
        isa: "auto", or one of the instruction sets in `runnable_isas()`.
        num_threads: compute threads, the caller's included; None means the usable cores.
        kv_f32: keep keys and values in float32 in place of bf16.
        clock: seconds, for the time a step took.

    Raises:
        ConfigError: a block size, format or instruction set that cannot be had.
        ModelError: sizes that the kernels do not take.
    """

    name = "native"

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int,
        block_size: int = SLOTS_PER_KERNEL_BLOCK,
        max_positions: int | None = None,
        weights: str = "auto",
        isa: str = "auto",
        num_threads: int | None = None,
        kv_f32: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.spec = model.spec
        self._block_size, self._clock = block_size, clock
        self._memory = SamplingMemory()
        _check_options(block_size, isa)
        slots = num_blocks * block_size
        longest = max_positions or slots
        tables = {
            rope: rope_tables(rope, self.spec.head_dim, min(slots, longest), longest)
            for rope in self.spec.ropes
        }
        self._model: _native.Model | None = pack_model(
            model,
            weights=weights,
            isa=isa,
            num_threads=num_threads or _native.usable_cores(),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_f32=kv_f32,
            tables=tables,
        )

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._open().isa

    @property
    def num_threads(self) -> int:
        """Compute threads, the caller's included."""
        return self._open().num_threads

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights."""
        return self._open().weight_bytes

    @property
    def last_logits(self) -> F32:
        """A copy of the last step's logits, [rows, vocabulary], rows as in `Batch.logit_rows`."""
        return self._open().logits()

    def poison_kv(self) -> None:
        """Fill the KV pool with NaN, so that a slot read by mistake shows."""
        self._open().poison_kv()

    def submit(self, plan: StepPlan) -> Done:
        """Compute the step; what went wrong is raised by the handle's `result`."""
        begin = self._clock()
        batch = build_batch(plan, self._block_size, self._memory)
        try:
            drawn, report = self.step(batch)
        except RunnerError as error:
            return Done(error)
        return Done(make_result(plan, batch, drawn, report, self._clock() - begin))

    def step(self, batch: Batch) -> tuple[list[int], Report | None]:
        """Compute a batch.

        Returns:
            The token drawn for each row, negative where none could be, and the log probabilities
            of the rows that asked; None where no row did.

        Raises:
            RunnerError: an array has the wrong type, length or range; nothing was computed then.
        """
        model, draw = self._open(), batch.sampling
        extras, report = None, None
        if draw.extras is not None:
            extras = draw.extras.arrays()
            if draw.extras.num_logprobs is not None:
                report = Report.empty(draw.extras.num_logprobs)
                extras |= report._asdict()
        try:
            tokens = model.step(
                batch.token_ids,
                batch.positions,
                batch.slots,
                batch.span_offsets,
                batch.context_lens,
                batch.block_tables,
                batch.block_offsets,
                batch.logit_rows,
                draw.temperatures,
                draw.top_ks,
                draw.top_ps,
                draw.min_ps,
                draw.seeds,
                draw.positions,
                draw.banned_ids,
                draw.banned_offsets,
                extras,
            )
        except TypeError:
            raise RunnerError(
                "an array of the step has the wrong type, rank or memory layout",
                hint="build batches with evenflow.runner.batch.build_batch",
            ) from None
        except ValueError as error:
            raise RunnerError(
                f"the step was refused: {error}", hint="this is a mistake in the engine: report it"
            ) from None
        return tokens, report

    def close(self) -> None:
        """Let go of weights, KV pool and threads."""
        self._model = None

    def _open(self) -> _native.Model:
        if self._model is None:
            raise RunnerError("the native runner is closed", hint="make a new one")
        return self._model


def _check_options(block_size: int, isa: str) -> None:
    if block_size <= 0 or block_size % SLOTS_PER_KERNEL_BLOCK:
        raise ConfigError(
            f"block_size is {block_size}, but the native runner's blocks hold a multiple of"
            f" {SLOTS_PER_KERNEL_BLOCK} slots",
            hint=f"use block_size {SLOTS_PER_KERNEL_BLOCK}, or the reference runner",
        )
    known = _native.runnable_isas()
    if isa != "auto" and isa not in known:
        raise ConfigError(
            f"instruction set {isa!r} cannot be run here",
            hint=f"this machine runs {', '.join(known)}",
        )
