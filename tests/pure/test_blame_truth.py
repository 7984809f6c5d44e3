"""Blame against a made-up engine whose every stall was planted."""

from __future__ import annotations

import pytest

from evenflow.bench.blame import BlameOptions, blame
from helpers.blamed import attack, mixture, pauses_beside, score
from helpers.synthetic import Event, Plan, simulate, streams

QUICK = BlameOptions(permutations=49)
EVENTS = tuple(Event(3 + 4.1 * i, 0.3) for i in range(10))
SCENARIOS = {
    "one attacker after the other": (streams(20, 2000) + attack(), Plan()),
    "several tokens in a message, out of phase": (
        streams(20, 2000) + attack(),
        Plan(jitter_ms=4, tokens_per_message=4),
    ),
    "chunks that are too large": (streams(20, 2000) + attack(), Plan(budget=8192)),
    "several tokens in a message, several chunks in a gap": (
        streams(12, 2400) + attack(),
        Plan(budget=4096, jitter_ms=2, tokens_per_message=4),
    ),
    "a mixture, chunking off": (mixture(0), Plan(jitter_ms=3)),
    "a mixture, chunks too large, packed": (mixture(1), Plan(budget=8192, max_prefills=4)),
    "steps of their own for prefills": (mixture(2), Plan(separate=True)),
    "and pauses of the server": (mixture(3), Plan(jitter_ms=2, pauses=EVENTS)),
    "and preemptions": (
        mixture(4),
        Plan(preemptions=tuple(Event(3 + 3.3 * i, 0.7) for i in range(12))),
    ),
    "and a client that stops": (mixture(5), Plan(client_stops=EVENTS)),
    "and places that run out": (mixture(6), Plan(max_running=8)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_planted_culprits_are_found_and_nobody_else(name):
    arrivals, plan = SCENARIOS[name]
    run = simulate(arrivals, plan)
    result = blame(run.records)
    found = score(run, result)
    assert found.planted >= 60
    assert found.found >= 0.95 * found.planted, found
    assert found.wrong <= 0.02 * found.blamed, found


def test_over_many_draws_the_rates_hold():
    planted = found = blamed = wrong = 0
    for seed in range(12):
        plan = Plan(budget=(None, 8192, 4096)[seed % 3], max_prefills=2, jitter_ms=3, seed=seed)
        run = simulate(mixture(seed + 100, count=120), plan)
        one = score(run, blame(run.records, QUICK))
        planted, found = planted + one.planted, found + one.found
        blamed, wrong = blamed + one.blamed, wrong + one.wrong
    assert planted > 1500
    assert found >= 0.95 * planted
    assert wrong <= 0.02 * blamed


@pytest.mark.parametrize("budget", [None, 8192, 4096, 2048])
def test_a_pause_that_overlaps_a_prefill_by_chance_is_told_apart(budget):
    """A third of the long prompts meets a pause before, within or after its prefill."""
    planted = found = blamed = wrong = others = named = 0
    for seed in range(8):
        arrivals = mixture(seed + 200, count=120)
        pauses = pauses_beside(arrivals, seed, share=0.33)
        plan = Plan(budget=budget, max_prefills=2, jitter_ms=3, seed=seed, pauses=pauses)
        run = simulate(arrivals, plan)
        one = score(run, blame(run.records, QUICK))
        planted, found = planted + one.planted, found + one.found
        blamed, wrong = blamed + one.blamed, wrong + one.wrong
        others, named = others + one.others, named + one.named
    assert others >= 150
    assert found >= 0.95 * planted, (found, planted)
    assert wrong <= 0.02 * blamed, (wrong, blamed)
    assert named >= 0.9 * others, (named, others)


def test_a_prompt_is_charged_its_own_part_of_a_stall_and_a_pause_the_rest():
    """360 ms of prefill and 300 ms of pause in one gap of 20 streams."""
    arrivals = [*streams(20, 2000), *attack(4, tokens=24_000)]
    pause = Event(arrivals[-1].at_s - 1e-3, 0.3)
    result = blame(simulate(arrivals, Plan(pauses=(pause,))).records)
    last = max(result.episodes, key=lambda e: e.start_s)
    alone = next(o for o in result.offenders if o.request_id == last.culprits[0].request_id)
    assert last.cause == "prefill"
    assert alone.stream_ms == pytest.approx(20 * 18_000 * 0.02, rel=0.1)
    assert result.causes["server_pause"] == pytest.approx(20 * 300, rel=0.1)
    assert alone.confidence < 0.7


OTHERS = {
    "server_pause": Plan(budget=512, max_prefills=4, pauses=EVENTS),
    "client": Plan(budget=512, max_prefills=4, client_stops=EVENTS),
    "preemption": Plan(
        budget=512, max_prefills=4, preemptions=tuple(Event(3 + 2.1 * i, 0.7) for i in range(20))
    ),
}


@pytest.mark.parametrize("cause", OTHERS)
def test_with_small_chunks_other_causes_are_not_laid_at_a_prompts_door(cause):
    run = simulate(streams(6, 5000) + mixture(7), OTHERS[cause])
    result = blame(run.records)
    found = score(run, result)
    assert result.verdict == "not_prefill"
    assert result.looks_like == cause
    assert found.others >= 15
    assert found.wrong == 0
    assert found.named >= 0.95 * found.others


def test_a_client_that_stops_is_seen_without_its_own_probes():
    run = simulate(mixture(7), OTHERS["client"], probes=False)
    result = blame(run.records)
    assert (result.verdict, result.looks_like) == ("not_prefill", "client")


def test_text_that_is_held_back_and_then_comes_at_once_is_buffering():
    buffers = tuple(Event(3 + 2.1 * i, 0.4, f"stream-{i}") for i in range(6))
    run = simulate(streams(20, 1500), Plan(budget=512, buffers=buffers))
    result = blame(run.records)
    assert (result.verdict, result.looks_like) == ("not_prefill", "buffering")
    assert result.num_stalls == 6


def test_small_chunks_make_no_stalls():
    result = blame(simulate(streams(20, 2000) + attack(), Plan(budget=512, jitter_ms=2)).records)
    assert result.verdict == "no_stalls"
    assert not result.episodes
    assert result.p_value == 1.0


def test_an_offender_is_charged_what_it_cost_to_the_millisecond():
    run = simulate(streams(20, 2000) + attack(1), Plan())
    (offender,) = blame(run.records).offenders
    assert offender.request_id == "attack-0"
    assert offender.stalls == 20
    assert offender.worst_ms == pytest.approx(10 + 24_000 * 0.02)
    assert offender.stream_ms == pytest.approx(20 * 480, rel=1e-6)
    assert offender.share == pytest.approx(1.0)
    assert offender.whole


def test_two_prompts_in_one_step_share_its_cost_by_their_length():
    arrivals = [*streams(10, 600), *attack(1, tokens=9000), *attack(1, tokens=3000)]
    arrivals[-1] = arrivals[-1]._replace(id="attack-b")
    result = blame(simulate(arrivals, Plan(max_prefills=2)).records)
    large, small = result.offenders
    assert (large.request_id, small.request_id) == ("attack-0", "attack-b")
    assert large.stream_ms / small.stream_ms == pytest.approx(3, rel=0.15)
