"""Whatever a request asks of the sampler, it gets the same, bit for bit, however it is computed.

Native runner: chunks of any size, neighbours, preemption, blocks found in the cache, plans in
flight. Compared are tokens, their log probabilities and those of the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler
from helpers.native_models import native_runner
from helpers.scheduling import make_options

pytest.importorskip("evenflow._native")

VOCABULARY = 160
CONTEXT = 250
STOP = 1


class HashMasks:
    """Allows about half of the tokens, by a hash of what was generated so far."""

    def allowed(self, generated):
        rng = np.random.default_rng([len(generated), *generated])
        allowed = rng.integers(0, 2, VOCABULARY).astype(bool)
        allowed[10 + len(generated) % 100] = True
        return np.packbits(allowed, bitorder="little").tobytes()


@dataclass(frozen=True)
class Ask:
    """One request of a scenario."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int = 0
    leaves: int | None = None
    is_masked: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass
class Got:
    """What a request got."""

    tokens: list = field(default_factory=list)  # (token, its log probabilities)
    prompt_logprobs: list | None = None
    finish: str | None = None


def as_request(name: str, ask: Ask) -> Request:
    return Request(
        name,
        list(ask.prompt),
        ask.params,
        max_tokens=min(ask.params.max_tokens, CONTEXT - len(ask.prompt)),
        stop_ids=frozenset({STOP}),
        bad_words=ask.bad_words,
        masks=HashMasks() if ask.is_masked else None,
    )


@cache
def shared_runner():
    return native_runner("bf16", num_blocks=64, num_threads=1)


def run(asks: list[Ask], options) -> tuple[dict[str, Got], Scheduler]:
    """Everybody's tokens when they share an engine."""
    scheduler, runner = Scheduler(options), shared_runner()
    requests = {f"r{i}": as_request(f"r{i}", ask) for i, ask in enumerate(asks)}
    got: dict[str, Got] = {}
    in_flight = []
    for step in range(20_000):
        for (name, request), ask in zip(requests.items(), asks, strict=True):
            if ask.arrives == step:
                scheduler.add(request)
                got[name] = Got()
            if ask.leaves == step and name in got and scheduler.cancel(name):
                got[name].finish = "abort"
        plan = scheduler.plan()
        if plan is not None:
            in_flight.append(runner.submit(plan))
        if in_flight and (plan is None or len(in_flight) == options.plan_depth):
            for event in scheduler.commit(in_flight.pop(0).result()):
                mine = got[event.request_id]
                mine.tokens.append((event.token, event.logprobs))
                mine.finish = event.finish
                if len(mine.tokens) == 1:
                    mine.prompt_logprobs = requests[event.request_id].take_prompt_logprobs()
            scheduler.check()
        if not scheduler.has_unfinished and all(ask.arrives <= step for ask in asks):
            return got, scheduler
    raise AssertionError("the scenario did not end")


def alone(ask: Ask) -> Got:
    """What a request gets by itself, its prompt in one piece, in a cold cache."""
    options = make_options(
        max_num_batched_tokens=CONTEXT, num_blocks=8, block_size=64, min_prefill_tokens=8
    )
    return run([Ask(ask.prompt, ask.params, 0, None, ask.is_masked, ask.bad_words)], options)[0][
        "r0"
    ]


def check_nothing_changes(asks: list[Ask], options) -> Scheduler:
    got, scheduler = run(asks, options)
    for number, ask in enumerate(asks):
        mine, wanted = got[f"r{number}"], alone(ask)
        if mine.finish == "abort":
            assert mine.tokens == wanted.tokens[: len(mine.tokens)]
            continue
        assert mine == wanted
        if ask.params.prompt_logprobs is not None:
            assert len(mine.prompt_logprobs) == len(ask.prompt)
    return scheduler


prompts = st.one_of(
    st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=150),
    # prompts that begin alike, so that blocks are shared and followers wait
    st.integers(1, 200).map(lambda n: [2 + i * 7 % 150 for i in range(n)]),
).map(tuple)
few = st.integers(2, VOCABULARY - 1)
params = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 10),
    temperature=st.sampled_from([0.0, 0.8, 1.3]),
    top_p=st.sampled_from([1.0, 0.9]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0]),
    logit_bias=st.none() | st.dictionaries(few, st.floats(-100, 100, width=32), max_size=3),
    logprobs=st.sampled_from([None, None, 0, 3, 20]),
    prompt_logprobs=st.sampled_from([None, None, 0, 2]),
    priority=st.integers(-1, 1),
)
asks_of = st.lists(
    st.builds(
        Ask,
        prompt=prompts,
        params=params,
        arrives=st.integers(0, 8),
        leaves=st.sampled_from([None, None, None, 3, 9]),
        is_masked=st.booleans(),
        bad_words=st.lists(st.lists(few, min_size=1, max_size=2).map(tuple), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def engines(draw):
    budget = draw(st.sampled_from([2, 5, 13, 64, 250]))
    return make_options(
        max_num_batched_tokens=budget,
        min_prefill_tokens=draw(st.integers(1, budget - 1)),
        max_num_seqs=draw(st.integers(1, 6)),
        block_size=64,
        num_blocks=draw(st.integers(4, 16)),
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["chunked", "chunked", "prefill-first"])),
        plan_depth=draw(st.integers(1, 3)),
        num_speculative_tokens=draw(st.sampled_from([0, 0, 1, 4])),
        prompt_lookup_min=1,
        prompt_lookup_max=2,
    )


@settings(max_examples=40, deadline=None)
@given(asks=asks_of, options=engines())
def test_every_option_gives_the_same_in_any_schedule(asks, options):
    check_nothing_changes(asks, options)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(asks=asks_of, options=engines())
def test_every_option_gives_the_same_in_any_schedule_at_length(asks, options):
    check_nothing_changes(asks, options)


OPTIONS = {
    "repetition": {"repetition_penalty": 1.5},
    "presence and frequency": {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {5: 4.0, 9: -100.0}},
    "logprobs": {"logprobs": 5},
    "prompt logprobs": {"prompt_logprobs": 3, "logprobs": 0},
    "mask": {"is_masked": True},
    "bad words": {"bad_words": (*((t,) for t in range(2, 60)), (70, 71))},
}


def ask_for(name: str, length: int = 140, **more) -> Ask:
    own = {key: OPTIONS[name][key] for key in ("is_masked", "bad_words") if key in OPTIONS[name]}
    values = {k: v for k, v in OPTIONS[name].items() if k not in own}
    prompt = tuple(2 + i * 11 % 150 for i in range(length))
    made = SamplingParams(temperature=0.9, seed=3, max_tokens=12, **values)
    return Ask(prompt, made, **own, **more)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 63, 64, 65, 139, 140])
def test_each_option_in_chunks_of_one_size(name, chunk):
    options = make_options(
        max_num_batched_tokens=chunk + 1, min_prefill_tokens=1, num_blocks=8, block_size=64
    )
    check_nothing_changes([ask_for(name)], options)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_changes_the_answer(name):
    got, plain = (
        alone(ask_for(name)),
        alone(Ask(ask_for(name).prompt, SamplingParams(temperature=0.9, seed=3, max_tokens=12))),
    )
    if "logprobs" in name:
        assert [t for t, _ in got.tokens] == [t for t, _ in plain.tokens]
        assert all(entry is not None for _, entry in got.tokens)
    else:
        assert got.tokens != plain.tokens


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_through_preemption(name):
    options = make_options(
        max_num_batched_tokens=32,
        min_prefill_tokens=4,
        num_blocks=5,
        block_size=64,
        enable_prefix_caching=False,
    )
    # two blocks each when they start, three when they end: somebody must give way
    asks = [ask_for(name, 125) for _ in range(2)]
    asks[1] = Ask(
        asks[1].prompt[::-1], asks[1].params, 0, None, asks[1].is_masked, asks[1].bad_words
    )
    scheduler = check_nothing_changes(asks, options)
    assert scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_after_a_cache_hit(name):
    options = make_options(
        max_num_batched_tokens=32, min_prefill_tokens=4, num_blocks=12, block_size=64
    )
    first = Ask(ask_for(name).prompt, SamplingParams(temperature=0, max_tokens=1))
    check_nothing_changes([first, ask_for(name, arrives=20)], options)


def test_a_request_that_scores_its_prompt_does_not_read_the_cache_before_it_has():
    options = make_options(
        max_num_batched_tokens=64, min_prefill_tokens=4, num_blocks=12, block_size=64
    )
    scheduler, runner = Scheduler(options), shared_runner()
    for name in ("first", "second"):
        scoring = as_request(name, ask_for("prompt logprobs"))
        scheduler.add(scoring)
        starts = []
        while (plan := scheduler.plan()) is not None:
            starts += [(s.start, s.length, s.num_logits) for s in plan.spans[plan.num_decodes :]]
            scheduler.commit(runner.submit(plan).result())
        assert starts == [(0, 64, 64), (64, 64, 64), (128, 12, 12)]


def test_rows_are_scored_once_though_their_request_is_preempted():
    scheduler, runner = (
        Scheduler(
            make_options(
                max_num_batched_tokens=64,
                min_prefill_tokens=4,
                num_blocks=12,
                block_size=64,
            )
        ),
        shared_runner(),
    )
    request = as_request("r", ask_for("prompt logprobs"))
    scheduler.add(request)
    scheduler.commit(runner.submit(scheduler.plan()).result())
    assert request.num_scored_tokens == 64
    scheduler._preempt(request)
    plan = scheduler.plan()  # its first block is in the cache, and scored
    (span,) = plan.spans
    assert (span.start, span.length, span.num_logits) == (64, 64, 64)
    scheduler.commit(runner.submit(plan).result())
    scheduler.commit(runner.submit(scheduler.plan()).result())
    assert request.take_prompt_logprobs() == alone(ask_for("prompt logprobs")).prompt_logprobs
