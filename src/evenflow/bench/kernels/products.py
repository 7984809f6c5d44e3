"""Products, attention and sampling by themselves, each against what the machine allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow import _native
from evenflow.bench.kernels.limits import best_seconds
from evenflow.bench.kernels.parts import (
    AttentionShape,
    attention_seconds,
    model_like_logits,
    sampling_seconds,
)
from evenflow.bench.kernels.rows import Row
from evenflow.runner.packing import BF16

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.bench.kernels.limits import Machine
    from evenflow.model.load import Model
    from evenflow.runner.batch import F32

GEMM_TARGETS = {8: None, 64: 0.82, 256: 0.88}
ATTENTION_TARGETS = {(512, 4096): 0.82}


def gemm_rows(machine: Machine, model: Model, repeats: int) -> Iterator[Row]:
    """Products of the model's shapes with bf16 weights, 1 to 256 rows."""
    spec, rng = model.spec, np.random.default_rng(0)
    shapes = {
        "qkv": (spec.q_size + 2 * spec.kv_size, spec.hidden_size),
        "o": (spec.hidden_size, spec.q_size),
        "gate-up": (2 * spec.intermediate_size, spec.hidden_size),
        "down": (spec.hidden_size, spec.intermediate_size),
    }
    for name, (columns, depth) in shapes.items():
        values = rng.standard_normal((columns, depth)).astype(np.float32)
        weight = _native.PackedWeight(BF16, 0, depth, values.view(np.uint8))
        for rows, target in GEMM_TARGETS.items():
            peak = machine.peak()
            rate = (
                2.0 * rows * columns * depth / gemm_seconds(machine, weight, rows, values, repeats)
            )
            peak = max(peak, machine.peak())
            what = f"gemm {name}, {rows} rows"
            yield Row(what, "GFLOP/s", peak / 1e9, rate / 1e9, target)


def gemm_seconds(
    machine: Machine, weight: _native.PackedWeight, rows: int, values: F32, repeats: int
) -> float:
    """Best time of one product of `rows` rows; `values` lends it shape and activations."""
    x = (values[:1].repeat(rows, axis=0).view(np.uint32) >> 16).astype(np.uint16)
    out = np.empty((rows, len(values)), np.float32)
    rounds = max(1, int(4e8 / (2.0 * rows * values.size)))

    def work() -> None:
        _native.multiply(machine.isa, machine.pool, weight, x, out, rounds)

    return best_seconds(work, repeats) / rounds


def attention_rows(machine: Machine, repeats: int) -> Iterator[Row]:
    """Chunks against the peak rate, decodes against the rate at which memory can be read."""
    for tokens, context in ((512, 4096), (128, 4096), (64, 4096), (512, 512)):
        shape = AttentionShape(tokens, context)
        peak = machine.peak()
        seconds = attention_seconds(machine.isa, machine.pool, shape, repeats=5 * repeats)
        peak = max(peak, machine.peak())
        what = f"attention, chunk of {tokens} at {context}"
        target = ATTENTION_TARGETS.get((tokens, context))
        yield Row(what, "GFLOP/s", peak / 1e9, shape.flops / seconds / 1e9, target)
    for spans in (1, 8, 32):
        shape = AttentionShape(1, 4096, spans)
        seconds = attention_seconds(machine.isa, machine.pool, shape, repeats=5 * repeats)
        what = f"attention, {spans} decodes at 4096"
        yield Row(what, "GB/s", machine.memory() / 1e9, shape.kv_bytes / seconds / 1e9)


def sampling_rows(machine: Machine, model: Model, repeats: int) -> Iterator[Row]:
    """Drawing for 32 rows, against the greedy choice over the same logits."""
    logits = model_like_logits(32, model.spec.vocab_size)
    greedy, drawn = (
        sampling_seconds(
            machine.isa, machine.pool, logits, temperature=t, top_p=p, repeats=10 * repeats
        )
        for t, p in ((0.0, 1.0), (0.8, 0.95))
    )
    yield Row("sampling, 32 rows, t 0.8 p 0.95", "rows/s", 32 / greedy, 32 / drawn)
