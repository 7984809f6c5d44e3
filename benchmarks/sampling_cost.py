"""What sampling costs: whole steps of 32 decodes, sampled in several ways, against greedy ones.

    python benchmarks/sampling_cost.py [--model smollm2] [--streams 32] [--pairs 40] [--cpu]

Steps of the native runner, everything of a step included but text. The variants run in turns in
one process, a few steps each, so that the machine's mood meets all of them; ratio = variant /
greedy of the same turn, with the 95 % interval of its mean. `--cpu` counts the process's CPU time
on one compute thread, for a machine that others use too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.paired import interval
from evenflow.model.load import load_model
from evenflow.runner.native import NativeRunner
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = 1.05  # for temperature 0.8, top_p 0.95
CONTEXT = 128  # tokens of every stream: a prompt of 64, 64 generated
STEPS_PER_TURN = 3
VARIANTS = {
    "greedy": {"temperature": 0.0},
    "temperature 0.8, top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "temperature 0.8, top_k 50": {"temperature": 0.8, "top_k": 50},
    "greedy, all penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
    },
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


class Variant:
    """A plan of decodes at one position, computed again and again."""

    def __init__(self, runner: NativeRunner, streams: int, options: dict[str, float]) -> None:
        self._runner = runner
        blocks = CONTEXT // 64
        rng = np.random.default_rng(0)
        spans = []
        for stream in range(streams):
            params = SamplingParams(seed=stream, **options)
            prompt = rng.integers(0, runner.spec.vocab_size, 64).tolist()
            request = Request(f"s{stream}", prompt, params, max_tokens=64, stop_ids=frozenset())
            request.token_ids += rng.integers(0, runner.spec.vocab_size, CONTEXT - 64).tolist()
            request.block_ids = list(range(stream * blocks, (stream + 1) * blocks))
            runner.submit(plan_of([Span(request, 0, CONTEXT - 1, 0)])).result()
            spans.append(Span(request, CONTEXT - 1, 1, 1))
        self._plan = plan_of(spans)

    def turn_s(self, clock: Callable[[], float]) -> float:
        """Seconds of the fastest of a turn's steps."""
        best = math.inf
        for _ in range(STEPS_PER_TURN):
            begin = clock()
            result = self._runner.submit(self._plan).result()
            best = min(best, clock() - begin)
            assert not result.failed, "a step went wrong"
        return best


def plan_of(spans: list[Span]) -> StepPlan:
    return StepPlan(0, spans, len(spans), len(spans), "benchmark", "", ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    model = load_model(args.model)
    runner = NativeRunner(
        model,
        num_blocks=args.streams * CONTEXT // 64,
        max_positions=CONTEXT,
        weights=args.weights,
        num_threads=1 if args.cpu else None,
    )
    variants = {name: Variant(runner, args.streams, o) for name, o in VARIANTS.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for pair in range(args.pairs + 1):
        for name in list(variants)[:: 1 if pair % 2 else -1]:
            seconds = variants[name].turn_s(clock)
            if pair:  # the first turn warms up
                times[name].append(seconds)
    greedy = times.pop("greedy")
    print(
        f"{model.spec.name}, {args.weights}, {args.streams} decodes, {runner.num_threads} threads:"
        f" greedy {min(greedy) * 1000:.2f} {'CPU ' if args.cpu else ''}ms a step at best"
    )
    results = {}
    for name, seconds in times.items():
        logs = [math.log(s / g) for s, g in zip(seconds, greedy, strict=True)]
        mean, low, high = (math.exp(x) for x in interval(logs) if x is not None)
        best = min(seconds) / min(greedy)
        print(
            f"  {name:<28} {mean:.3f} x greedy ({low:.3f} to {high:.3f}); best by best {best:.3f}"
        )
        results[name] = {"ratio": round(mean, 4), "low": round(low, 4), "high": round(high, 4)}
    print(f"  target for temperature 0.8, top_p 0.95: {TARGET}")
    summary = {"benchmark": "sampling_cost", "cpu": args.cpu, "target": TARGET}
    print(json.dumps(summary | {"results": results}))


if __name__ == "__main__":
    main()
