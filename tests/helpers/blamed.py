"""Workloads, scores and server-side views for the tests of blame, on top of the made-up engine."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, NamedTuple

from evenflow.trace import ChunkRecord, RequestRecord, StepRecord, Trace
from helpers.synthetic import Arrival, Event, Simulated, true_cause

if TYPE_CHECKING:
    from evenflow.bench.blame import Blame

LONG = 24_000


def mixture(
    seed: int, count: int = 200, rate: float = 4.0, long_share: float = 0.1
) -> list[Arrival]:
    """Short prompts with a few long ones among them, at random times."""
    rng = random.Random(seed)
    at_s, found = 1.0, []
    for i in range(count):
        at_s += rng.expovariate(rate)
        if rng.random() < long_share:
            found.append(Arrival(at_s, f"long-{i}", LONG - 500 * rng.randrange(12), 64, "long"))
        else:
            found.append(Arrival(at_s, f"short-{i}", rng.randrange(50, 400), 128, "short"))
    return found


def attack(count: int = 4, every_s: float = 5.0, tokens: int = LONG) -> list[Arrival]:
    """Long prompts at regular times, each shorter than the one before."""
    return [
        Arrival(2 + every_s * i + 0.013 * i, f"attack-{i}", tokens - 2000 * i, 16, "attacker")
        for i in range(count)
    ]


def pauses_beside(arrivals: list[Arrival], seed: int, share: float) -> tuple[Event, ...]:
    """Pauses of the server that begin about when some of the long prompts come, by chance."""
    rng = random.Random(seed)
    return tuple(
        Event(a.at_s + rng.uniform(-0.3, 0.6), rng.uniform(0.05, 0.8))
        for a in arrivals
        if a.class_name in {"long", "attacker"} and rng.random() < share
    )


class Score(NamedTuple):
    """Stalls against the truth.

    `found` of `planted` stalls that a prefill caused are laid at the right door; `wrong` of the
    `blamed` ones are not; `named` of `others` have the right other cause.
    """

    planted: int
    found: int
    blamed: int
    wrong: int
    others: int
    named: int


def score(run: Simulated, blame: Blame) -> Score:
    planted = found = blamed = wrong = others = named = 0
    for episode in blame.episodes:
        for stall in episode.stalls:
            truth = true_cause(run.planted, stall.start_s, stall.end_s, stall.request_id)
            top = episode.culprits[0].request_id if episode.culprits else ""
            right = truth is not None and truth.cause == "prefill" and top in truth.culprits
            blamed += episode.cause == "prefill"
            wrong += episode.cause == "prefill" and not right
            if truth is not None and truth.cause == "prefill":
                planted += 1
                found += right
            elif truth is not None:
                others += 1
                named += truth.cause == episode.cause
    return Score(planted, found, blamed, wrong, others, named)


def traced(run: Simulated, offset_s: float = 0.0) -> Trace:
    """What our engine's own trace would hold, on a clock that is off by so much."""
    steps = [
        StepRecord(
            serial=i,
            start_s=s.start_s + offset_s,
            seconds=s.seconds,
            predicted_s=None,
            num_decodes=s.num_decodes,
            chunks=[ChunkRecord(name, 0, length, 0) for name, length in s.chunks.items()],
            num_tokens=s.num_decodes + sum(s.chunks.values()),
            budget=2048,
            budget_reason="fixed",
            blocked="",
            kv_blocks_used=0,
            kv_blocks_cached=0,
            kv_blocks_free=0,
            num_running=s.num_decodes,
            num_waiting=0,
            preempted=s.preempted,
            recomputed_tokens=0,
            graph="none: cpu",
        )
        for i, s in enumerate(run.steps)
    ]
    requests = [
        RequestRecord(
            id=r.id,
            prompt_tokens=r.prompt_tokens or 0,
            cached_tokens=0,
            output_tokens=len(run.left[r.id]),
            arrival_s=(r.send_s or 0.0) + offset_s,
            first_scheduled_s=(r.send_s or 0.0) + offset_s,
            first_token_s=run.left[r.id][0] + offset_s,
            token_times_s=[t + offset_s for t in run.left[r.id]],
            finish_s=run.left[r.id][-1] + offset_s,
            finish_reason="length",
            num_preemptions=0,
            priority=0,
        )
        for r in run.records.requests
    ]
    return Trace({}, steps, requests, [])


def vllm_log(run: Simulated, zone_h: float = 0.0) -> str:
    """As `--enable-logging-iteration-details` writes it: whole seconds, the line after the step."""
    began = float(run.records.header["started_unix_s"])
    lines = ["INFO 11-30 11:59:58 [api_server.py:1] Started server process"]
    for i, s in enumerate(run.steps):
        stamp = time.gmtime(began + s.start_s + s.seconds + zone_h * 3600)
        lines.append(
            f"(EngineCore_DP0 pid=7) INFO {time.strftime('%m-%d %H:%M:%S', stamp)} [core.py:359] "
            f"Iteration({i}): {len(s.chunks)} context requests, {sum(s.chunks.values())} context "
            f"tokens, {s.num_decodes} generation requests, {s.num_decodes} generation tokens, "
            f"iteration elapsed time: {s.seconds * 1e3:.2f} ms, GPU KV cache usage: 12.5%"
        )
    return "\n".join(lines) + "\n"


def sglang_log(run: Simulated) -> str:
    """Prefill batches as they begin, and every fortieth decode."""
    began = float(run.records.header["started_unix_s"])
    lines = []
    for i, s in enumerate(run.steps):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began + s.start_s))
        if s.chunks:
            lines.append(
                f"[{stamp} TP0] Prefill batch, #new-seq: {len(s.chunks)}, #new-token: "
                f"{sum(s.chunks.values())}, #cached-token: 0, token usage: 0.05, #running-req: "
                f"{s.num_decodes}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
                "input throughput (token/s): 12345.67"
            )
        elif i % 40 == 0:
            lines.append(
                f"[{stamp} TP0] Decode batch, #running-req: {s.num_decodes}, #token: 512, token "
                "usage: 0.05, cuda graph: True, gen throughput (token/s): 1234.50, #queue-req: 0"
            )
    return "\n".join(lines) + "\n"


def llama_log(run: Simulated) -> str:
    """The timings of each slot when it ends."""
    lines = []
    for r in sorted(run.records.requests, key=lambda r: r.end_s or 0.0):
        ms = sum(s.seconds for s in run.steps if r.id in s.chunks) * 1e3
        tokens = r.prompt_tokens or 1
        lines += [
            "slot print_timing: id  0 | task 12 | ",
            f"prompt eval time = {ms:10.2f} ms / {tokens:5d} tokens ({ms / tokens:8.2f} ms per token)",
            f"       eval time = {100.0:10.2f} ms / {64:5d} tokens (    1.56 ms per token)",
            f"      total time = {ms + 100:10.2f} ms / {tokens + 64:5d} tokens",
        ]
    return "\n".join(lines) + "\n"
