"""Times the native kernels and whole steps, each against what the machine allows.

In: a model, an instruction set, a number of threads. Out: rows of (what, ceiling, measured, ratio),
the ceiling measured beside each row because machines change their speed from second to second.
`python -m evenflow.bench.kernels` prints a table, and one JSON object on the last line. Every figure
is the best of its repeats: what else runs on the machine can only make it worse.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

from evenflow import _native
from evenflow.bench.kernel_parts import (
    AttentionShape,
    attention_seconds,
    model_like_logits,
    sampling_seconds,
)
from evenflow.model.load import load_model
from evenflow.runner.batch import F32, build_batch
from evenflow.runner.native import NativeRunner
from evenflow.runner.packing import BF16
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evenflow.model.load import Model

MEMORY_BYTES = 256 << 20
L2_TILE_BYTES = 256 << 10
BLOCK = 64


class Row(NamedTuple):
    """One figure: `measured` and `ceiling` in `unit`, larger is better."""

    what: str
    unit: str
    ceiling: float
    measured: float

    @property
    def ratio(self) -> float:
        """Share of the ceiling that was reached."""
        return self.measured / self.ceiling


class Machine:
    """Ceilings of this machine with an instruction set and a pool of threads."""

    def __init__(self, isa: str, threads: int) -> None:
        self.isa = isa
        self.pool = _native.ThreadPool(threads)

    def peak(self) -> float:
        """Operations a second, two per multiply-add, operands in registers."""
        # bursts of about a millisecond: one of them finds all cores free, if any time does
        return max(_native.peak_rate(self.isa, self.pool, 20_000) for _ in range(40))

    def memory(self) -> float:
        """Bytes a second read from memory by all threads."""
        return _native.read_rate(self.pool, MEMORY_BYTES, repeats=3)

    def cache(self) -> float:
        """Bytes a second read from each core's second-level cache, by all threads."""
        tiles = 4 * self.pool.num_threads
        return _native.read_rate(self.pool, tiles * L2_TILE_BYTES, tiles=tiles, rounds=200)


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


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
        for rows in (8, 64, 256):
            peak = machine.peak()
            rate = (
                2.0 * rows * columns * depth / gemm_seconds(machine, weight, rows, values, repeats)
            )
            peak = max(peak, machine.peak())
            yield Row(f"gemm {name}, {rows} rows", "GFLOP/s", peak / 1e9, rate / 1e9)


def gemm_seconds(
    machine: Machine, weight: _native.PackedWeight, rows: int, values: F32, repeats: int
) -> float:
    """Best time of one product of `rows` rows; `values` lends it shape and activations."""
    x = (values[:1].repeat(rows, axis=0).view(np.uint32) >> 16).astype(np.uint16)
    out = np.empty((rows, len(values)), np.float32)
    rounds = max(1, int(4e8 / (2.0 * rows * values.size)))

    def work() -> None:
        _native.gemm(
            machine.isa,
            machine.pool,
            weight,
            x,
            None,
            out,
            rows_per_tile=192,
            panels_per_tile=2,
            repeats=rounds,
        )

    return best_seconds(work, repeats) / rounds


class Load:
    """Requests of random tokens with blocks of their own, to build steps from."""

    def __init__(self, runner: NativeRunner, num_blocks: int) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(1)
        self._free = iter(range(num_blocks))

    def request(self, tokens: int, room: int) -> Request:
        """A greedy request of `tokens` prompt tokens with blocks for `room` more."""
        ids = self._rng.integers(3, self.runner.spec.vocab_size, tokens).tolist()
        made = Request(
            "r", ids, SamplingParams(temperature=0), max_tokens=room, stop_ids=frozenset()
        )
        made.block_ids = [next(self._free) for _ in range(-(-(tokens + room) // BLOCK))]
        return made

    def seconds(self, *spans: Span, repeats: int) -> float:
        """Best time of a step of these spans; running it again writes the same values again."""
        plan = StepPlan(0, list(spans), 0, 0, "bench", "", ())
        batch = build_batch(plan, BLOCK)
        return best_seconds(lambda: self.runner.step(batch), repeats)


def attention_rows(machine: Machine, repeats: int) -> Iterator[Row]:
    """Chunks against the peak rate, decodes against the rate at which memory can be read."""
    for tokens, context in ((512, 4096), (128, 4096), (64, 4096), (512, 512)):
        shape = AttentionShape(tokens, context)
        peak = machine.peak()
        seconds = attention_seconds(machine.isa, machine.pool, shape, repeats=5 * repeats)
        peak = max(peak, machine.peak())
        what = f"attention, chunk of {tokens} at {context}"
        yield Row(what, "GFLOP/s", peak / 1e9, shape.flops / seconds / 1e9)
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


def flops_of(model: Model, *spans: Span) -> int:
    """Causal operations of a step."""
    return sum(model.spec.span_flops(s.length, s.start + s.length, s.num_logits) for s in spans)


def decode_rows(machine: Machine, model: Model, load: Load, repeats: int) -> Iterator[Row]:
    """Steps of 1, 8 and 32 decodes at a context of 128.

    The ceiling is the larger of two times: reading all weights once, and the step's operations at
    the peak rate.
    """
    for streams in (1, 8, 32):
        requests = [load.request(128, 8) for _ in range(streams)]
        load.seconds(*[Span(r, 0, 128, 1) for r in requests], repeats=1)
        spans = [Span(r, 127, 1, 1) for r in requests]
        memory, peak = machine.memory(), machine.peak()
        seconds = load.seconds(*spans, repeats=20 * repeats)
        memory, peak = max(memory, machine.memory()), max(peak, machine.peak())
        least = max(load.runner.weight_bytes / memory, flops_of(model, *spans) / peak)
        yield Row(f"decode, {streams} streams", "tok/s", streams / least, streams / seconds)


def prefill_rows(machine: Machine, model: Model, load: Load, repeats: int) -> Iterator[Row]:
    """Chunks at several contexts, by causal operations against the peak rate."""
    request = load.request(4096, 8)
    load.seconds(Span(request, 0, 4096, 1), repeats=1)
    for length, end in ((128, 128), (512, 512), (128, 4096), (512, 4096), (4000, 4000)):
        span = Span(request, end - length, length, 1)
        peak = machine.peak()
        seconds = load.seconds(span, repeats=repeats)
        peak = max(peak, machine.peak())
        rate = flops_of(model, span) / seconds
        yield Row(f"chunk of {length} ending at {end}", "GFLOP/s", peak / 1e9, rate / 1e9)


def chunk_rows(load: Load, repeats: int, tokens: int) -> Iterator[Row]:
    """A prompt in chunks against the same prompt in one pass, in prompts a second."""
    request = load.request(tokens, 8)
    whole = load.seconds(Span(request, 0, tokens, 1), repeats=repeats)
    for size in (256, 64):
        starts = range(0, tokens, size)
        parts = [Span(request, s, min(size, tokens - s), int(s + size >= tokens)) for s in starts]
        seconds = sum(load.seconds(part, repeats=repeats) for part in parts)
        yield Row(f"{tokens} tokens in chunks of {size}", "prompts/s", 1 / whole, 1 / seconds)


def run(model: Model, machine: Machine, weights: str, *, repeats: int) -> Iterator[Row]:
    """All rows, as they are measured."""
    num_blocks = 400
    runner = NativeRunner(
        model,
        num_blocks=num_blocks,
        weights=weights,
        isa=machine.isa,
        num_threads=machine.pool.num_threads,
    )
    load = Load(runner, num_blocks)
    yield from gemm_rows(machine, model, repeats)
    yield from attention_rows(machine, repeats)
    yield from sampling_rows(machine, model, repeats)
    yield from decode_rows(machine, model, load, repeats)
    yield from prefill_rows(machine, model, load, repeats)
    yield from chunk_rows(load, repeats, 2000)
    runner.close()


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--isa", default=_native.runnable_isas()[0])
    parser.add_argument("--threads", type=int, default=_native.usable_cores())
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many counts")
    given = parser.parse_args()
    machine = Machine(given.isa, given.threads)
    about: dict[str, object] = {
        "isa": given.isa,
        "threads": given.threads,
        "weights": given.weights,
        "peak_gflops": machine.peak() / 1e9,
        "memory_gbytes_s": machine.memory() / 1e9,
        "l2_gbytes_s": machine.cache() / 1e9,
        "ping_pong_ns": _native.ping_pong_ns(),
    }
    for name, value in about.items():
        print(f"{name:<16} {value:.1f}" if isinstance(value, float) else f"{name:<16} {value}")
    print(f"\n{'':<34}{'ceiling':>10}{'measured':>10}  {'':<10}{'ratio':>6}")
    rows = []
    for row in run(load_model(given.model), machine, given.weights, repeats=given.repeats):
        rows.append(row._asdict() | {"ratio": row.ratio})
        print(
            f"{row.what:<34}{row.ceiling:>10.1f}{row.measured:>10.1f}  {row.unit:<10}{row.ratio:>6.0%}"
        )
    print(orjson.dumps({"machine": about, "rows": rows}).decode())


if __name__ == "__main__":
    main()
