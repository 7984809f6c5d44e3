"""One peer in its own interpreter: opens it, runs jobs, answers with the times of all tokens.

    python -m peers.worker ENGINE WEIGHTS MODELS

Commands come as lines of JSON on stdin, answers go out the same way; what an engine prints goes to
stderr. Imports nothing but the standard library and the engine, since other engines' environments hold
nothing of ours. `engine_*.py` beside it say how each engine is driven.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, Protocol

MODULES = {
    "evenflow": "peers.engine_evenflow",
    "openvino": "peers.engine_openvino",
    "vllm": "peers.engine_vllm",
    "llama.cpp": "peers.engine_llama",
}
LONG = "long"
WARM_TOKENS = 16


class PeerEngine(Protocol):
    """How a peer is driven.

    `version` is for people. Prompts are token ids, decoding is greedy, the end token is ignored, prefix
    caching is off and both cores are used.
    """

    version: str

    def open(self, budget: int) -> None:
        """Begin anew with so many tokens per step; 0 computes whole prompts."""

    def submit(self, name: str, ids: list[int], max_tokens: int) -> None:
        """Start a request."""

    def step(self) -> list[tuple[str, list[int]]]:
        """Wait for the next tokens: ids by request."""

    def close(self) -> None:
        """Let everything go."""


def run(engine: PeerEngine, job: dict[str, Any]) -> dict[str, Any]:
    """One job.

    Args:
        engine: opened, idle.
        job: `streams` and `long` (token ids), `output_tokens`, `lead` (tokens of each stream when the
            long prompt lands).

    Returns:
        `sent_s`, `times_s` and `tokens` by request; seconds of this process's clock.
    """
    clock = time.perf_counter
    left = {f"stream-{i}": job["output_tokens"] for i in range(len(job["streams"]))}
    sent: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in left}
    tokens: dict[str, list[int]] = {name: [] for name in left}
    for name, ids in zip(list(left), job["streams"], strict=True):
        sent[name] = clock()
        engine.submit(name, ids, job["output_tokens"])
    landing = bool(job["long"])
    while left:
        for name, ids in engine.step():
            at_s = clock()
            times[name] += [at_s] * len(ids)
            tokens[name] += ids
            left[name] -= len(ids)
            if left[name] <= 0:
                del left[name]
        if landing and min(len(t) for t in times.values()) >= job["lead"]:
            landing = False
            left[LONG], times[LONG], tokens[LONG] = 1, [], []
            sent[LONG] = clock()
            engine.submit(LONG, job["long"], 1)
    return {"sent_s": sent, "times_s": times, "tokens": tokens}


def warm(engine: PeerEngine) -> None:
    """The first steps of a process touch fresh memory and compile; no job should pay for that."""
    rows = [[2000 + 7 * i + j for j in range(300)] for i in range(4)]
    run(engine, {"streams": rows, "long": [], "output_tokens": WARM_TOKENS, "lead": 0})


def serve(engine: PeerEngine, answer: Any) -> None:
    """Follow commands until there are no more."""
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                engine.open(command["budget"])
                warm(engine)
                found: dict[str, Any] = {"version": engine.version}
            else:
                found = run(engine, command)
        except Exception as e:  # noqa: BLE001 - whatever a peer raises is its answer
            found = {"error": f"{type(e).__name__}: {e}"}
        answer.write(json.dumps(found) + "\n")
        answer.flush()
    engine.close()


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # an engine that prints must not be taken for an answer
    name, weights, models = sys.argv[1:]
    serve(importlib.import_module(MODULES[name]).make(weights, models), answer)


if __name__ == "__main__":
    main()
