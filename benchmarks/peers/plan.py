"""What is run: who takes part, and the jobs that each of them gets.

Plain values; the workers, which run in other interpreters, read the same ones as JSON.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

PROMPT_TOKENS = 64  # of a stream
OUTPUT_TOKENS = 128  # of a stream, where decode is meant
LONG_TOKENS = 4000
LEAD_TOKENS = 8  # of each stream, when the long prompt lands
STALL_STREAMS = 8
BUDGETS = (0, 512, 256, 128)  # tokens per step; 0 is whole prompts
SPARE_STEPS = 24  # decodes that a stream has beyond what the long prompt should need
VOCABULARY = (1000, 40_000)  # ids are drawn from here: ordinary tokens, none of them special


class Peer(NamedTuple):
    """Who takes part: an engine with weights in one format."""

    name: str
    engine: str
    weights: str


PEERS = (
    Peer("evenflow", "evenflow", "bf16"),
    Peer("openvino", "openvino", "bf16"),
    Peer("vllm", "vllm", "bf16"),
    Peer("llama.cpp", "llama.cpp", "bf16"),
    Peer("evenflow-int8", "evenflow", "int8"),
    Peer("openvino-int8", "openvino", "int8"),
)


class Job(NamedTuple):
    """One measurement: streams that begin together, and perhaps a long prompt that lands among them.

    `budget` is the tokens per step, 0 for whole prompts. `long_tokens` is 0 where nothing lands.
    """

    kind: str  # decode, prefill or stall
    budget: int
    streams: int
    prompt_tokens: int
    output_tokens: int
    long_tokens: int = 0

    @property
    def name(self) -> str:
        """Unique among the jobs."""
        detail = self.streams if self.kind == "decode" else (self.budget or "whole")
        return self.kind if self.kind == "prefill" else f"{self.kind}-{detail}"


class Measured(NamedTuple):
    """What a worker answered in one turn; see `worker.run`."""

    peer: str
    repeat: int
    job: Job
    answer: dict[str, Any]


def jobs(long_tokens: int = LONG_TOKENS, output_tokens: int = OUTPUT_TOKENS) -> list[Job]:
    """All jobs, those of one budget together, since an engine begins anew for each."""
    found = [Job("decode", 0, n, PROMPT_TOKENS, output_tokens) for n in (1, 8, 32)]
    found.append(Job("prefill", 0, 1, long_tokens, 1))
    for budget in BUDGETS:
        steps = -(-long_tokens // (budget - STALL_STREAMS)) if budget else 1
        tokens = LEAD_TOKENS + steps + SPARE_STEPS
        found.append(Job("stall", budget, STALL_STREAMS, PROMPT_TOKENS, tokens, long_tokens))
    return found


def prompts(job: Job, repeat: int) -> tuple[list[list[int]], list[int]]:
    """Token ids of the streams and of the long prompt: the same for every peer, new in each repeat."""
    rng = random.Random(f"{job.name} {repeat}")
    streams = [rng.choices(range(*VOCABULARY), k=job.prompt_tokens) for _ in range(job.streams)]
    return streams, rng.choices(range(*VOCABULARY), k=job.long_tokens)
