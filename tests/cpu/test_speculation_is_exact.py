"""Speculation at temperature > 0 against the exact distribution of a model with eight tokens."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import sqrt

import numpy as np
import pytest

from evenflow.runner.reference import ReferenceRunner
from evenflow.schedule.scheduler import Scheduler
from evenflow.schedule.speculate import Speculation
from helpers.scheduling import make_options, make_request
from helpers.tiny_model import tiny_model

VOCABULARY = 8
TEMPERATURE = 1.5
PROMPT = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 7, 1]
NUM_DRAWS = 3000
OPTIONS = {"block_size": 8, "num_blocks": 512, "max_num_seqs": 128, "max_num_batched_tokens": 1024}
LOOKUP = {"num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}


@cache
def model():
    return tiny_model(11, vocab_size=VOCABULARY)


def make_runner() -> ReferenceRunner:
    return ReferenceRunner(model(), num_blocks=512, block_size=8)


def run(requests, **options):
    scheduler = Scheduler(make_options(**OPTIONS, **options))
    runner = make_runner()
    for request in requests:
        scheduler.add(request)
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(runner.submit(plan).result())
    return [tuple(r.token_ids[-3:]) for r in requests], scheduler.stats()


@cache
def samples(num_drafts=0):
    """The three tokens of many requests that differ by their seed alone."""
    requests = [
        make_request(
            f"r{i}",
            PROMPT,
            max_tokens=3,
            stop_ids=frozenset(),
            temperature=TEMPERATURE,
            seed=i,
        )
        for i in range(NUM_DRAWS)
    ]
    return run(requests, **(LOOKUP if num_drafts else {}))


@cache
def exact() -> dict[tuple[int, ...], float]:
    """The probability of each three tokens: a product of softmaxes, in float64."""
    after = {}
    runner = make_runner()
    for length in range(3):
        for prefix in product(range(VOCABULARY), repeat=length):
            scheduler = Scheduler(make_options(**OPTIONS))
            scheduler.add(make_request("p", [*PROMPT, *prefix], max_tokens=1))
            runner.submit(scheduler.plan()).result()
            weights = np.exp(runner.last_logits[0].astype(np.float64) / TEMPERATURE)
            after[prefix] = weights / weights.sum()
    return {
        (a, b, c): after[()][a] * after[(a,)][b] * after[a, b][c]
        for a, b, c in product(range(VOCABULARY), repeat=3)
    }


def chi_square(drawn) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells that expect under 5 are one."""
    counts = dict.fromkeys(exact(), 0)
    for tokens in drawn:
        counts[tokens] += 1
    cells, rest = [], [0.0, 0.0]
    for tokens, probability in exact().items():
        expected = probability * len(drawn)
        if expected >= 5:
            cells.append((expected, counts[tokens]))
        else:
            rest[0] += expected
            rest[1] += counts[tokens]
    cells.append(tuple(rest))
    return sum((seen - e) ** 2 / e for e, seen in cells), len(cells) - 1


def is_plausible(drawn) -> bool:
    """Within four standard deviations of what the right distribution gives (df, sqrt(2 df))."""
    statistic, degrees = chi_square(drawn)
    assert degrees > 40, "too few cells to say anything"
    return abs(statistic - degrees) < 4 * sqrt(2 * degrees)


def test_tokens_follow_the_exact_distribution():
    drawn, stats = samples(3)
    assert stats.num_draft_tokens > NUM_DRAWS / 2, "hardly anything was drafted"
    assert 0.05 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.95
    assert is_plausible(drawn)


def test_they_are_the_tokens_that_come_without_speculation():
    plain, _ = samples()
    drafted, _ = samples(3)
    # NumPy's product is not row-invariant: a draw on the edge may fall to the other side
    assert sum(a != b for a, b in zip(plain, drafted, strict=True)) <= NUM_DRAWS // 1000


def test_the_statistic_sees_a_rule_that_takes_a_wrong_draft(monkeypatch):
    monkeypatch.setattr(Speculation, "verified", lambda self, request, tokens: tokens)
    drawn, _ = samples.__wrapped__(3)
    assert not is_plausible(drawn)


@pytest.mark.parametrize("depth", [1, 2])
def test_greedy_tokens_are_those_of_decoding_one_by_one(depth):
    def ask():
        return [
            make_request(f"r{i}", PROMPT[i:], max_tokens=40, stop_ids=frozenset(), temperature=0)
            for i in range(5)
        ]

    plain, drafted = ask(), ask()
    run(plain)
    _, stats = run(drafted, plan_depth=depth, **LOOKUP)
    assert stats.num_accepted_tokens > 0
    assert [r.token_ids for r in plain] == [r.token_ids for r in drafted]
