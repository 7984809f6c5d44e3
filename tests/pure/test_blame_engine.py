"""Blame from a client's view against the step records of our own engine and scheduler.

The engine is real; only the time a step takes is made up, on a clock that the runner moves.
"""

from __future__ import annotations

import random

import pytest

from evenflow.bench.blame import Blame, BlameOptions, blame
from evenflow.bench.blame.steps import StepEvidence, records_of
from evenflow.config import EngineConfig
from evenflow.engine import Engine
from evenflow.llm import scheduler_options
from evenflow.sampling import SamplingParams
from evenflow.schedule.scheduler import Scheduler
from evenflow.trace import Trace
from helpers.blamed import mixture
from helpers.engines import LetterTokenizer, SpellingRunner
from helpers.synthetic import Arrival

DECODE_S, TOKEN_S, CONTEXT_S = 0.01, 2e-5, 4e-10


class _Timed(SpellingRunner):
    """Moves the clock by what a step costs, and sends what is due by then."""

    def __init__(self, arrivals) -> None:
        super().__init__()
        self.now_s = 0.0
        self.due = sorted(arrivals, reverse=True)
        self.send = lambda arrival: None

    def submit(self, plan):
        chunks = plan.spans[plan.num_decodes :]
        self.now_s += DECODE_S + sum(
            s.length * (TOKEN_S + CONTEXT_S * (s.start + s.length / 2)) for s in chunks
        )
        while self.due and self.due[-1].at_s <= self.now_s:
            self.send(self.due.pop())
        return super().submit(plan)


class _Records:
    def __init__(self) -> None:
        self.steps, self.requests = [], []

    def step(self, record) -> None:
        self.steps.append(record)

    def request(self, record) -> None:
        self.requests.append(record)


def _run(arrivals, prompts=None, **options) -> Trace:
    """Serve all arrivals; one stream runs all along, so that the clock never stands still.

    `prompts` gives requests with the same number the same prompt; else all differ.
    """
    runner, records = _Timed(arrivals), _Records()
    values = {"num_kv_blocks": 20_000, "block_size": 16, "max_model_len": 30_000, **options}
    config = EngineConfig.resolve(
        values, context_length=32_768, kv_bytes_per_token=4, free_memory_bytes=2**34
    )
    engine = Engine(
        config,
        Scheduler(scheduler_options(config)),
        runner,
        LetterTokenizer(),
        clock=lambda: runner.now_s,
        observers=[records],
    )
    done = []

    def sink(events):
        done.extend(e for e in events if e.finish_reason is not None)

    def send(arrival):
        params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
        # differing prompts, so that none comes from the prefix cache
        mark = len(done) + len(runner.due) * 7 if prompts is None else prompts(arrival.id) * 7
        prompt = [1 + (mark + i * 31 + i // 13) % 900 for i in range(arrival.prompt_tokens)]
        engine.submit(prompt, params, sink, request_id=arrival.id)

    runner.send = send
    for i in range(6):
        params = SamplingParams(max_tokens=2500, ignore_eos=True)
        engine.submit([5 + i] * 32, params, sink, request_id=f"steady-{i}")
    while len(done) < len(arrivals) + 6:
        assert engine.failure is None
    engine.close()
    return Trace({}, records.steps, records.requests, [])


@pytest.mark.parametrize(
    "options",
    [
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 30_000},
        {"max_num_batched_tokens": 8192, "max_partial_prefills": 1},
        {"max_num_batched_tokens": 8192},
    ],
    ids=["chunking off", "chunks too large", "several lanes"],
)
def test_blame_agrees_with_the_engines_own_steps(options):
    outside, inside = _both(_run(mixture(21, count=45, rate=3.0), **options))
    assert inside.depth == "steps"
    assert outside.depth == "records"
    assert inside.explained_share > 0.95
    assert outside.verdict == inside.verdict
    total, agreed = _agreement(outside, inside)
    assert total > 40
    assert agreed >= 0.95 * total, (agreed, total)


@pytest.mark.parametrize("budget", [2048, 4096])
@pytest.mark.parametrize("tokens", [[2048], [4096], [300, 1000, 4000, 6000]], ids=str)
def test_in_a_queue_each_step_is_laid_at_the_door_of_the_prompt_that_filled_it(tokens, budget):
    """A prompt as long as the budget ends in the step after its own: decodes take a few tokens of it."""
    outside, inside = _both(_run(_bursts(tokens), max_num_batched_tokens=budget))
    total, agreed = _agreement(outside, inside)
    assert total > 100
    assert agreed >= 0.95 * total, (agreed, total)


def test_prompts_that_the_cache_held_do_not_make_a_prompt_token_cheap():
    """Every other prompt was sent before: all but its last tokens come from the cache."""
    once = [Arrival(0.5 + i, f"new-{i}", 6000, 40) for i in range(10)]
    again = [Arrival(0.9 + i, f"old-{i}", 6000, 40) for i in range(10)]
    trace = _run(once + again, prompts=lambda name: int(name[4:]), max_num_batched_tokens=2048)
    assert sum(r.cached_tokens > 5000 for r in trace.requests) == 10
    outside, inside = _both(trace)
    total, agreed = _agreement(outside, inside)
    assert total > 100
    assert agreed >= 0.95 * total, (agreed, total)
    assert outside.ms_per_token == pytest.approx(2e-2, rel=0.5)


def test_late_chunks_take_longer_but_hold_no_more_tokens():
    """The last chunks of this prompt take 1.4 times as long as the first ones."""
    outside, inside = _both(_run([Arrival(1.0, "long", 20_000, 16)], max_num_batched_tokens=2048))
    assert inside.budget.chunk_tokens == 2042  # six decodes
    assert outside.budget.chunk_tokens == pytest.approx(2042, rel=0.05)


def _bursts(tokens: list[int]) -> list[Arrival]:
    """Several prompts at once, again and again."""
    rng = random.Random(3)
    return [
        Arrival(0.5 + burst, f"burst-{burst}-{i}", rng.choice(tokens), 40)
        for burst in range(12)
        for i in range(rng.choice([2, 3, 5]))
    ]


def _both(trace: Trace) -> tuple[Blame, Blame]:
    quick = BlameOptions(permutations=199)
    records = records_of(trace)
    return blame(records, quick), blame(records, quick, StepEvidence(trace))


def _agreement(outside: Blame, inside: Blame) -> tuple[int, int]:
    """How many stalls there are, and for how many the client names who the steps name."""
    total = agreed = 0
    for ours, truth in zip(outside.episodes, inside.episodes, strict=True):
        assert ours.stalls == truth.stalls
        total += len(ours.stalls)
        most = truth.culprits[0].ms
        right = {c.request_id for c in truth.culprits if c.ms >= 0.8 * most}
        if ours.culprits and ours.culprits[0].request_id in right:
            agreed += len(ours.stalls)
    return total, agreed
