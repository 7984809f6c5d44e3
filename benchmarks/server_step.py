"""What the server's Python costs per step, piece by piece, at a number of streams.

    python benchmarks/server_step.py [STREAMS]

No socket and no model: the time that the engine's thread (counting) and the loop's thread (messages)
spend, which is time in which no other Python runs. Best of several rounds, microseconds per step.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import TYPE_CHECKING

from evenflow.server.bridge import Bridge
from evenflow.server.call import StreamingCall
from evenflow.server.metrics import Metrics
from evenflow.server.prompts import Prompt
from evenflow.server.replies import Head
from evenflow.server.steps import StepFeed
from evenflow.trace import ChunkRecord, StepRecord
from evenflow.types import StreamEvent

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_STEPS = 2000
NUM_ROUNDS = 5


def best_us(work: Callable[[], object]) -> float:
    """Microseconds per call, best of the rounds."""
    rounds = []
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        for _ in range(NUM_STEPS):
            work()
        rounds.append((time.perf_counter() - start) / NUM_STEPS)
    return 1e6 * min(rounds)


def record(num_streams: int) -> StepRecord:
    """A mixed step."""
    return StepRecord(
        serial=7,
        start_s=1.0,
        seconds=0.02,
        predicted_s=None,
        num_decodes=num_streams,
        chunks=[ChunkRecord("cmpl-x", 512, 96, 0)],
        num_tokens=num_streams + 96,
        budget=128,
        budget_reason="fixed",
        blocked="",
        kv_blocks_used=100,
        kv_blocks_cached=20,
        kv_blocks_free=500,
        num_running=num_streams + 1,
        num_waiting=0,
        preempted=[],
        recomputed_tokens=0,
        graph="none: cpu",
    )


def main() -> None:
    """Measure and print."""
    num_streams = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    metrics = Metrics(itertools.count().__next__)
    feed = StepFeed(metrics)
    names = [f"cmpl-{i}" for i in range(num_streams)]
    events = [StreamEvent(name, 5, " word", None, None) for name in names]
    one = record(num_streams)
    bridge = Bridge(None, None, metrics)  # nothing is submitted or carried
    calls = []
    for name in names:
        call = StreamingCall(
            bridge,
            Head("chat", name, 1, "smollm2"),
            [Prompt([1] * 32, "")],
            interval=1,
            with_usage=False,
            running_usage=False,
            max_pending_bytes=2**20,
            cut=lambda: None,
        )
        calls.append(call)

    def messages() -> None:
        for call, event in zip(calls, events, strict=True):
            call.take(event)
            call.collect()

    def records() -> None:
        metrics.step(one)
        feed.step(one)

    result = {
        "streams": num_streams,
        "gaps_us": round(best_us(lambda: metrics.measure(events)), 1),
        "records_us": round(best_us(records), 1),
        "messages_us": round(best_us(messages), 1),
    }
    print(f"{num_streams} streams, microseconds per step (and per token)")
    for name, what in (
        ("gaps_us", "gap histogram, TTFT, counts"),
        ("records_us", "step counters, chunk histogram, kept record"),
        ("messages_us", "the messages of all streams, rendered"),
    ):
        print(f"  {what:46} {result[name]:7.1f}  {result[name] / num_streams:6.2f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
