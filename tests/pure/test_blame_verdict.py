"""The verdict, the test against chance, and the budget."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.bench.blame import BlameOptions, blame
from evenflow.bench.blame.chance import Exposure, against_chance
from evenflow.bench.blame.chunks import Chunks
from evenflow.bench.blame.find import find_episodes
from evenflow.bench.blame.model import Episode, Stall
from evenflow.bench.blame.prefills import Prefills
from evenflow.bench.blame.witness import Witnesses
from evenflow.bench.gaps import Window
from evenflow.bench.records import Mark, Records, Scrape
from helpers.blamed import attack, mixture
from helpers.synthetic import Event, Plan, simulate, streams

QUICK = BlameOptions(permutations=199)


def test_whole_prompts_in_single_gaps_mean_that_chunking_is_off():
    result = blame(simulate(streams(20, 2000) + attack(), Plan()).records)
    assert result.verdict == "chunked_prefill_off"
    assert result.p_value <= 0.01
    assert result.explained_share > 0.99
    assert "24,000 tokens" in result.summary


def test_prompts_in_several_gaps_mean_that_the_budget_is_too_large():
    result = blame(simulate(streams(20, 2000) + attack(), Plan(budget=8192)).records)
    assert result.verdict == "budget_too_large"
    assert result.budget is not None
    assert result.budget.chunk_tokens == pytest.approx(8192, rel=0.1)
    assert not any(offender.whole for offender in result.offenders)


def test_the_advised_budget_does_bound_the_gaps():
    for first in (None, 8192):
        arrivals = streams(20, 2000) + attack()
        before = blame(simulate(arrivals, Plan(budget=first)).records, BlameOptions(target_ms=40.0))
        assert before.budget is not None
        assert before.budget.tokens is not None
        # 40 ms leave (40 - 10) / 0.02 = 1,500 tokens
        assert 1000 <= before.budget.tokens <= 1500
        after = simulate(arrivals, Plan(budget=before.budget.tokens)).records
        assert blame(after, BlameOptions(limit_ms=40.0)).verdict == "no_stalls"


def test_with_several_tokens_in_a_message_the_budget_is_smaller():
    arrivals = streams(20, 2000) + attack()
    plan = Plan(tokens_per_message=4, jitter_ms=1)
    before = blame(simulate(arrivals, plan).records, BlameOptions(target_ms=100.0))
    # four steps of 10 + 0.02 x 750 ms make a gap of 100 ms
    assert before.budget.tokens == pytest.approx(750, rel=0.1)
    assert "messages carry 4 tokens" in before.summary
    after = simulate(arrivals, replace(plan, budget=before.budget.tokens)).records
    result = blame(after, BlameOptions(limit_ms=101.0))
    assert result.num_stalls <= 0.001 * result.num_gaps


def test_a_target_below_a_decode_step_has_no_budget():
    run = simulate(streams(20, 2000) + attack(), Plan())
    result = blame(run.records, BlameOptions(target_ms=9.0))
    assert result.budget is not None
    assert result.budget.tokens is None


@pytest.mark.parametrize("budget", [512, None])
def test_chance_is_not_ruled_out_for_tails_that_have_nothing_to_do_with_prefills(budget):
    """Pauses at random times, in traffic whose prefills are too short to make a stall."""
    ruled_out = 0
    for seed in range(8):
        rng = random.Random(seed)
        arrivals = mixture(seed, count=120, long_share=0.1 if budget else 0.0)
        pauses = tuple(Event(rng.uniform(2, 28), 0.3) for _ in range(8))
        plan = Plan(budget=budget, max_prefills=2, jitter_ms=2, pauses=pauses)
        result = blame(simulate(arrivals, plan).records, QUICK)
        ruled_out += result.p_value <= 0.05
        assert result.verdict == "not_prefill"
    assert ruled_out <= 1


def _prefills(starts, ends):
    count, lengths_ms = len(starts), (ends - starts) * 1e3
    index = np.arange(count, dtype=np.int64)
    chunks = Chunks(starts, ends, lengths_ms, Witnesses(find_episodes([], QUICK, Window(0, 99))))
    known = np.ones(count, bool)
    return Prefills(starts, ends, np.ones(count), known, lengths_ms, index, None, chunks)


def test_p_values_of_unrelated_stalls_and_prefills_are_spread_out():
    values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        starts = np.sort(rng.uniform(0, 60, 20))
        ends = starts + rng.uniform(0.5, 2.0, 20)
        at = rng.uniform(0, 60, 15)
        stalls = [Stall("s", t, t + 0.3, 10.0, 10.0, 1) for t in at]
        episodes = [Episode(s.start_s, s.end_s, [s], 5, 0) for s in stalls]
        prefills = _prefills(starts, ends)
        exposure = Exposure(np.array([0.0]), np.array([62.0]))
        found = against_chance(episodes, prefills, exposure, permutations=199, seed=seed)
        values.append(found.p_value)
    assert sum(p <= 0.05 for p in values) <= 6
    assert 0.35 < sum(values) / 60 < 0.65


def test_stalls_that_prefills_overlap_by_chance_do_not_convict_them():
    """Chunks are small and often under way; short pauses fall among them or not, as it happens."""
    convicted = 0
    for seed in range(6):
        rng = random.Random(seed)
        pauses = tuple(Event(rng.uniform(1, 38), 0.035) for _ in range(40))
        run = simulate(streams(6, 3000) + attack(12, every_s=3.0), Plan(budget=512, pauses=pauses))
        convicted += blame(run.records, QUICK).verdict in {
            "chunked_prefill_off",
            "budget_too_large",
        }
    assert convicted <= 1


def test_what_the_server_counted_makes_a_preemption_sure():
    run = simulate(
        streams(6, 400), Plan(preemptions=(Event(1.5, 0.5), Event(2.5, 0.4, "stream-0")))
    )
    name = 'vllm:num_preemptions_total{model_name="m"}'
    run.records.scrapes = [Scrape(t / 10, {name: float((t > 15) + (t > 25))}) for t in range(60)]
    result = blame(run.records)
    assert (result.verdict, result.looks_like) == ("not_prefill", "preemption")
    assert result.depth == "metrics"
    assert all(episode.confidence > 0.9 for episode in result.episodes)
    assert result.options.engine == "vllm"


def test_a_lone_stall_while_requests_wait_and_nothing_is_preempted_is_queueing():
    run = simulate(streams(6, 400), Plan(preemptions=(Event(1.5, 0.5), Event(2.5, 0.4))))
    run.records.scrapes = [
        Scrape(t / 10, {"vllm:num_preemptions_total": 0.0, "vllm:num_requests_waiting": 3.0})
        for t in range(60)
    ]
    assert blame(run.records).looks_like == "queueing"


def test_failed_requests_have_no_stalls_but_their_prefill_counts():
    run = simulate(streams(10, 600) + attack(1), Plan())
    attacker = next(r for r in run.records.requests if r.class_name == "attacker")
    attacker.error = "cut off"
    attacker.messages = []
    victim = run.records.requests[-1]
    victim.error = "cut off"
    result = blame(run.records)
    assert result.offenders[0].request_id == attacker.id
    assert victim.id not in {s.request_id for e in result.episodes for s in e.stalls}


def test_streams_that_cannot_be_laid_side_by_side_blame_nobody():
    run = simulate(streams(10, 600) + attack(1), Plan())
    run.records.header["aligned"] = False
    result = blame(run.records)
    assert result.offenders == []
    assert any("side by side" in problem for problem in result.problems)


def test_stalls_of_the_warm_up_do_not_count():
    run = simulate(streams(10, 1200) + attack(3, every_s=3.0), Plan())
    run.records.marks = [Mark(4.0, "warmup_end"), Mark(7.0, "cooldown_start")]
    (offender,) = blame(run.records).offenders
    assert offender.request_id == "attack-1"


def test_a_single_stall_is_too_little():
    run = simulate(streams(1, 400) + attack(1), Plan())
    result = blame(run.records)
    assert result.num_stalls == 1
    assert result.verdict == "inconclusive"


def test_nothing_at_all_is_inconclusive():
    assert blame(Records()).verdict == "inconclusive"


def test_the_same_records_give_the_same_outcome():
    run = simulate(mixture(1, 60), Plan(jitter_ms=3))
    assert blame(run.records) == blame(run.records)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.sampled_from([None, 512, 4096]),
    shift_s=st.sampled_from([0.0, 1000.0]),
    pause_s=st.floats(0.05, 0.5),
)
def test_laws(seed, budget, shift_s, pause_s):
    """Shares add up, nobody is charged more than was lost, and the clock's zero means nothing."""
    plan = Plan(budget=budget, jitter_ms=2, pauses=(Event(4, pause_s),), seed=seed)
    run = simulate(mixture(seed, 30), plan)
    options = BlameOptions(permutations=19)
    result = blame(run.records, options)
    for episode in result.episodes:
        assert 0 <= episode.confidence <= 1
        assert bool(episode.culprits) == (episode.cause == "prefill")
        charged = sum(culprit.ms for culprit in episode.culprits)
        assert charged <= (episode.end_s - episode.start_s) * 1e3 + 1e-6
    assert 0 <= result.explained_share <= 1 + 1e-9
    assert sum(result.causes.values()) == pytest.approx(result.stalled_ms)
    assert sum(o.stream_ms for o in result.offenders) == pytest.approx(
        result.causes.get("prefill", 0.0)
    )
    for r in run.records.requests:
        r.send_s += shift_s
        r.end_s += shift_s
        r.messages = [m._replace(time_s=m.time_s + shift_s) for m in r.messages]
    for probe in run.records.probes:
        probe.time_s += shift_s
    again = blame(run.records, options)
    assert again.verdict == result.verdict
    assert again.num_stalls == result.num_stalls
    assert again.stalled_ms == pytest.approx(result.stalled_ms)
