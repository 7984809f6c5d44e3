"""Whole steps of a model: decodes, prefill, chunks against one pass, both together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.bench.kernels.limits import best_seconds
from evenflow.bench.kernels.rows import Row
from evenflow.runner.batch import build_batch
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.bench.kernels.limits import Machine
    from evenflow.model.load import Model
    from evenflow.runner.native import NativeRunner

BLOCK = 64
# of one stream against the weights' bytes; of more, what the stated rates are of the same bounds
ONE_STREAM_TARGETS = {"bf16": 0.92, "int8": 0.85, "int4": 0.80}
STREAM_TARGETS = {8: 0.65, 32: 0.66}
CHUNK_TARGETS = {256: 1.02, 64: 1.08}


class Load:
    """Requests of random tokens with blocks of their own, to build steps from."""

    def __init__(self, runner: NativeRunner, num_blocks: int) -> None:
        self.runner = runner
        self._rng = np.random.default_rng(1)
        self._free = list(range(num_blocks))

    def request(self, tokens: int, room: int = 8) -> Request:
        """A greedy request of `tokens` prompt tokens with blocks for `room` more."""
        ids = self._rng.integers(3, self.runner.spec.vocab_size, tokens).tolist()
        made = Request(
            "r", ids, SamplingParams(temperature=0), max_tokens=room, stop_ids=frozenset()
        )
        made.block_ids = [self._free.pop() for _ in range(-(-(tokens + room) // BLOCK))]
        return made

    def give_back(self, *requests: Request) -> None:
        """Let others use their blocks."""
        for request in requests:
            self._free += request.block_ids

    def seconds(self, *spans: Span, repeats: int) -> float:
        """Best time of a step of these spans; running it again writes the same values again."""
        batch = build_batch(StepPlan(0, list(spans), 0, 0, "bench", "", ()), BLOCK)
        return best_seconds(lambda: self.runner.step(batch), repeats)

    def decodes(self, streams: int, context: int) -> list[Span]:
        """A decode of each of some new requests at this context, its prompt computed."""
        requests = [self.request(context) for _ in range(streams)]
        for request in requests:
            self.seconds(Span(request, 0, context, 0), repeats=1)
        return [Span(r, context - 1, 1, 1) for r in requests]


class Setting(NamedTuple):
    """What the rows are measured with."""

    machine: Machine
    model: Model
    load: Load
    weights: str
    repeats: int

    def flops(self, spans: Sequence[Span]) -> int:
        """Causal operations of a step."""
        spec = self.model.spec
        return sum(spec.span_flops(s.length, s.start + s.length, s.num_logits) for s in spans)


def decode_rows(at: Setting) -> Iterator[Row]:
    """Steps of 1, 8 and 32 decodes at a context of 128.

    The ceiling is the larger of two times: reading all weights once, and the step's operations at
    the peak rate.
    """
    for streams in (1, 8, 32):
        spans = at.load.decodes(streams, 128)
        memory, peak = at.machine.memory(), at.machine.peak()
        seconds = at.load.seconds(*spans, repeats=20 * at.repeats)
        memory, peak = max(memory, at.machine.memory()), max(peak, at.machine.peak())
        least = max(at.load.runner.weight_bytes / memory, at.flops(spans) / peak)
        one = ONE_STREAM_TARGETS.get(at.weights)
        target = one if streams == 1 else STREAM_TARGETS[streams]
        yield Row(f"decode, {streams} streams", "tok/s", streams / least, streams / seconds, target)
        at.load.give_back(*[s.request for s in spans])


def prefill_rows(at: Setting) -> Iterator[Row]:
    """Chunks at several contexts, by causal operations against the peak rate."""
    request = at.load.request(4096)
    at.load.seconds(Span(request, 0, 4096, 1), repeats=1)
    for length, end in ((128, 128), (512, 512), (128, 4096), (512, 4096), (4000, 4000)):
        span = Span(request, end - length, length, 1)
        peak = at.machine.peak()
        seconds = at.load.seconds(span, repeats=at.repeats)
        peak = max(peak, at.machine.peak())
        what = f"chunk of {length} ending at {end}"
        target = 0.82 if length == end == 4000 else None
        yield Row(what, "GFLOP/s", peak / 1e9, at.flops([span]) / seconds / 1e9, target)
    at.load.give_back(request)


def chunk_rows(at: Setting, tokens: int) -> Iterator[Row]:
    """A prompt in chunks against the same prompt in one pass, measured in turns."""
    request = at.load.request(tokens)
    ways = {}
    for size in (tokens, *CHUNK_TARGETS):
        starts = range(0, tokens, size)
        ways[size] = [
            Span(request, s, min(size, tokens - s), int(s + size >= tokens)) for s in starts
        ]
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(at.repeats):
        for size, spans in ways.items():
            seconds = sum(at.load.seconds(span, repeats=1) for span in spans)
            best[size] = min(best[size], seconds)
    for size, target in CHUNK_TARGETS.items():
        what = f"{tokens} tokens in chunks of {size}, over one pass"
        yield Row(what, "ms", 1e3 * best[tokens], 1e3 * best[size], target, at_most=True)
    at.load.give_back(request)


def mixed_rows(at: Setting, gemm_rate: float) -> Iterator[Row]:
    """8 decodes at a context of 1,024 and a chunk of 120, over the chunk and what the decodes add.

    They add their operations at the rate of a product of 256 rows, and their keys' and values'
    bytes at the rate of memory.
    """
    request = at.load.request(4096)
    decodes = at.load.decodes(8, 1024)
    kv_bytes = at.model.spec.kv_bytes_per_token(2) * 8 * 1024
    for end in (120, 2048, 4096):
        chunk = Span(request, end - 120, 120, 0)
        at.load.seconds(Span(request, 0, end, 0), repeats=1)
        memory = at.machine.memory()
        alone = mixed = float("inf")
        for _ in range(3 * at.repeats):
            alone = min(alone, at.load.seconds(chunk, repeats=1))
            mixed = min(mixed, at.load.seconds(*decodes, chunk, repeats=1))
        memory = max(memory, at.machine.memory())
        least = alone + at.flops(decodes) / gemm_rate + kv_bytes / memory
        what = f"8 decodes and a chunk of 120 ending at {end}"
        yield Row(what, "ms", 1e3 * least, 1e3 * mixed, 1.03, at_most=True)
    at.load.give_back(request, *[s.request for s in decodes])


def step_times(load: Load, spans: Sequence[Span], count: int) -> Iterator[float]:
    """Seconds of one step after the other."""
    batch = build_batch(StepPlan(0, list(spans), 0, 0, "bench", "", ()), BLOCK)
    for _ in range(count):
        begin = time.perf_counter()
        load.runner.step(batch)
        yield time.perf_counter() - begin
