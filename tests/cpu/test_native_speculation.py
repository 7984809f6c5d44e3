"""Speculation on the native runner: the same tokens and the same bits of logits as without it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow.schedule.scheduler import Scheduler
from helpers.native_models import native_runner, prompt
from helpers.scheduling import make_options, make_request

VOCABULARY = 160
NOBODY = frozenset()


class Guesser:
    """Drafts the tokens that are known to come, one of them wrong now and then."""

    def __init__(self, seed: int, outputs: dict[str, list[int]]) -> None:
        self.rng = Random(seed)
        self.outputs = outputs

    def propose(self, request, most):
        drafts = self.outputs[request.id][request.num_output_tokens :][:most]
        if self.rng.random() < 0.5 and drafts:
            place = self.rng.randrange(len(drafts))
            drafts[place] = (drafts[place] + 1) % VOCABULARY
        return drafts

    def forget(self, request):
        pass


def asks(temperature: float, **params):
    """Requests of several lengths, two of which share two blocks."""
    shared = prompt(9, 130)
    prompts = [prompt(1, 5), prompt(2, 70), [*shared, 7], [*shared, 8, 9], prompt(3, 64)]
    return [
        make_request(
            f"r{i}",
            tokens,
            max_tokens=12 + 20 * i,
            stop_ids=NOBODY,
            temperature=temperature,
            seed=100 + i,
            **params,
        )
        for i, tokens in enumerate(prompts)
    ]


def run(requests, runner, drafter=None, **options):
    """Everybody's tokens, and the bits of the logits that each was drawn from."""
    values = {"block_size": 64, "num_blocks": 64, "max_num_batched_tokens": 48}
    scheduler = Scheduler(make_options(**(values | options)), drafter=drafter)
    runner.poison_kv()
    for request in requests:
        scheduler.add(request)
    tokens = {r.id: [] for r in requests}
    bits = {r.id: [] for r in requests}
    while (plan := scheduler.plan()) is not None:
        result = runner.submit(plan).result()
        logits = runner.last_logits.view(np.uint32)
        first = {}
        row = 0
        for span in plan.spans:
            first[span.request.id] = row
            row += span.num_logits
        for event in scheduler.commit(result):
            tokens[event.request_id].append(event.token)
            bits[event.request_id].append(logits[first[event.request_id]])
            first[event.request_id] += 1
        scheduler.check()
    return tokens, bits, scheduler.stats()


@pytest.mark.parametrize("format_name", ["bf16", "int8", "f32"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_and_logits_are_the_bits_of_decoding_one_by_one(format_name, temperature):
    runner = native_runner(format_name)
    plain, plain_bits, _ = run(asks(temperature), runner)
    guesser = Guesser(4, plain)
    got, got_bits, stats = run(asks(temperature), runner, guesser, num_speculative_tokens=7)
    assert got == plain
    for name, rows in plain_bits.items():
        assert np.array_equal(np.array(got_bits[name]), np.array(rows)), name
    assert 20 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_the_same_when_blocks_are_short_and_requests_give_way():
    params = {"min_tokens": 3, "top_k": 20, "top_p": 0.9}
    runner = native_runner("bf16")
    plain, _, _ = run(asks(0.8, **params), runner)
    drafts = {"num_speculative_tokens": 5, "num_blocks": 5}
    got, _, stats = run(asks(0.8, **params), runner, Guesser(5, plain), **drafts)
    assert got == plain
    assert stats.num_accepted_tokens > 0
    assert stats.num_preemptions > 0


def test_prompt_lookup_finds_what_a_loop_repeats():
    """A tiny random model falls into loops when it is greedy, and lookup rides on them."""
    runner = native_runner("bf16")
    requests = [
        make_request("r", prompt(6, 20), max_tokens=150, stop_ids=NOBODY, temperature=0)
        for _ in range(2)
    ]
    plain, _, _ = run(requests[:1], runner)
    lookup = {"num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    got, _, stats = run(requests[1:], runner, **lookup)
    assert got == plain
    assert stats.num_accepted_tokens > 0


def test_penalties_bad_words_and_log_probabilities_see_the_drafts_before_them():
    params = {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "logit_bias": {5: 2.0},
        "logprobs": 3,
        "min_tokens": 4,
    }

    def make():
        made = asks(0.7, **params)
        for request in made:
            request.bad_words = tuple((a, b) for a in range(0, 160, 3) for b in range(0, 160, 5))
        return made

    def events_of(requests, drafter=None, **options):
        scheduler = Scheduler(
            make_options(block_size=64, num_blocks=64, **options), drafter=drafter
        )
        runner.poison_kv()
        for request in requests:
            scheduler.add(request)
        events = {r.id: [] for r in requests}
        while (plan := scheduler.plan()) is not None:
            for event in scheduler.commit(runner.submit(plan).result()):
                events[event.request_id].append(event)
        return events, scheduler.stats()

    runner = native_runner("bf16")
    plain, _ = events_of(make())
    outputs = {name: [e.token for e in events] for name, events in plain.items()}
    got, stats = events_of(make(), Guesser(7, outputs), num_speculative_tokens=6)
    assert got == plain
    assert all(e.logprobs is not None for events in got.values() for e in events)
    assert stats.num_accepted_tokens > 20


def test_a_request_under_a_grammar_is_not_drafted_for():
    class Anything:
        def allowed(self, answer):
            return b"\xff" * 20

    (request, *_) = asks(0.0)
    request.masks = Anything()
    runner = native_runner("bf16")
    _, _, stats = run([request], runner, Guesser(1, {"r0": [1] * 50}), num_speculative_tokens=3)
    assert stats.num_draft_tokens == 0
