"""How near the reference runner's prefill comes to NumPy's matrix product alone.

    python benchmarks/reference_prefill.py [--tokens 128 512 1024] [--repeats 5]

For each prompt length: the time of a whole prefill step, and the time of nothing but the products
of rows with weights in that step, on the same shapes and the model's own weights. Both are the
best of the repeats, taken in turns, so that noise of the machine meets both. Ratio = products /
prefill. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from evenflow.model.load import load_model
from evenflow.runner.reference import ReferenceRunner
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

BLOCK_SIZE = 16
TARGET = 0.6


def products_s(runner: ReferenceRunner, num_tokens: int) -> float:
    """Seconds of every product of a prefill step that ends in one row of logits."""
    spec = runner.spec
    rng = np.random.default_rng(0)
    rows = {
        cols: rng.standard_normal((num_tokens, cols), np.float32)
        for cols in {spec.hidden_size, spec.q_size, spec.intermediate_size}
    }
    matrices = [m for layer in runner._layers for m in layer if m.ndim == 2]  # noqa: SLF001 the same arrays, not copies
    out = {len(m): np.empty((num_tokens, len(m)), np.float32) for m in matrices}
    begin = time.perf_counter()
    for matrix in matrices:
        np.matmul(rows[matrix.shape[1]], matrix.T, out=out[len(matrix)])
    _ = rows[spec.hidden_size][:1] @ runner._head.T  # noqa: SLF001 as above
    return time.perf_counter() - begin


def prefill_s(runner: ReferenceRunner, num_tokens: int) -> float:
    """Seconds of one step that computes the whole prompt and draws its first token."""
    prompt = np.random.default_rng(1).integers(0, runner.spec.vocab_size, num_tokens).tolist()
    params = SamplingParams(temperature=0.0)
    request = Request("r", prompt, params, max_tokens=1, stop_ids=frozenset())
    request.block_ids = list(range(-(-num_tokens // BLOCK_SIZE)))
    plan = StepPlan(0, [Span(request, 0, num_tokens, 1)], 0, num_tokens, "benchmark", "", ())
    begin = time.perf_counter()
    runner.submit(plan).result()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model = load_model(args.model)
    num_blocks = -(-max(args.tokens) // BLOCK_SIZE)
    runner = ReferenceRunner(model, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    results = []
    print(f"{model.spec.name}: prefill in one step, best of {args.repeats}; target {TARGET:.0%}")
    for num_tokens in args.tokens:
        pairs = [
            (prefill_s(runner, num_tokens), products_s(runner, num_tokens))
            for _ in range(args.repeats)
        ]
        whole, bare = (min(times) for times in zip(*pairs, strict=True))
        flops = model.spec.span_flops(num_tokens, num_tokens, 1)
        print(
            f"{num_tokens:>6,} tokens: {num_tokens / whole:>7,.0f} tok/s; the products alone"
            f" {num_tokens / bare:>7,.0f} tok/s; {bare / whole:.0%}"
        )
        results.append(
            {
                "tokens": num_tokens,
                "prefill_s": round(whole, 5),
                "products_s": round(bare, 5),
                "ratio": round(bare / whole, 3),
                "prefill_gflop_per_s": round(flops / whole / 1e9, 1),
            }
        )
    print(json.dumps({"benchmark": "reference_prefill", "target": TARGET, "results": results}))


if __name__ == "__main__":
    main()
