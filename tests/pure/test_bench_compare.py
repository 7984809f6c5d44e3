"""Verdicts: what differs is found, what does not is not, and how often by chance."""

from __future__ import annotations

import math
import random

import pytest

from evenflow.bench.compare import Turn, compare_recorded, judge_turns, turns
from evenflow.bench.measure import MeasureOptions, measure
from evenflow.bench.paired import decide, interval
from helpers.synthetic import Arrival, Plan, simulate, streams


def noisy(rng, shift, count, spread=0.03):
    return [shift + rng.gauss(0, spread) for _ in range(count)]


def test_the_interval_is_students():
    mean, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)
    assert (low, high) == (pytest.approx(3 - half), pytest.approx(3 + half))
    assert interval([2.0]) == (2.0, None, None)


def test_a_clear_difference_is_told_with_its_bounds():
    verdict = decide([math.log(0.65), math.log(0.66), math.log(0.67)], [0.01, -0.02])
    assert verdict.change == "lower"
    assert verdict.words("p99 ITL").startswith("p99 ITL: 31 to ")
    assert verdict.words("p99 ITL").endswith("% lower")
    assert 30 < verdict.low_percent < 34 < verdict.high_percent < 37


def test_nothing_is_claimed_below_what_a_shows_against_itself():
    steady = [0.049, 0.050, 0.051, 0.050]
    assert decide(steady, [0.01]).change == "higher"
    quiet = decide(steady, [0.08])
    assert quiet.change == "none"
    assert quiet.words("x") == "x: no difference above 8.3 %"


def test_one_pair_alone_decides_nothing():
    assert decide([1.0], []).change == "none"
    assert decide([1.0], []).words("x") == "x: cannot be told from one pair"


def test_a_machine_that_is_too_noisy_is_said_to_be():
    words = decide([0.1, -0.2, 0.15], [2.0]).words("p99 ITL")
    assert words == "p99 ITL: cannot be told: runs differ by up to 639 %"


def test_the_same_thing_is_rarely_found_to_differ_from_itself_and_a_tenth_nearly_always():
    rng = random.Random(5)
    false = sum(
        decide(noisy(rng, 0.0, 5), noisy(rng, 0.0, 2)).change != "none" for _ in range(1000)
    )
    found = sum(
        decide(noisy(rng, 0.1, 5), noisy(rng, 0.0, 2)).change == "higher" for _ in range(1000)
    )
    assert false <= 50
    assert found >= 900


def test_each_goes_first_as_often_as_the_other():
    order = [t.who for t in turns(4, 1)]
    assert order == ["a1", "a2", "a", "b", "b", "a", "a", "b", "b", "a"]


def test_no_server_sees_the_same_prompts_twice():
    """A's second run against itself was once answered from the prefix cache."""
    order = turns(5, 4)
    for server in ({"a", "a1", "a2"}, {"b"}):
        seen = [t.words for t in order if t.who in server]
        assert len(set(seen)) == len(seen)
    pairs = {t.pair: t.words for t in order if t.who == "a"}
    assert pairs == {t.pair: t.words for t in order if t.who == "b"}


def test_an_absurd_bound_is_not_printed_in_full():
    words = decide([0.0, 30.0], []).words("p99 ITL")
    assert words == "p99 ITL: cannot be told: runs differ by more than 1,000 %"


def run(budget, seed=0):
    rng = random.Random(seed)
    long = [Arrival(0.3 * i + rng.random() / 10, f"l{i}", 2000, 4, "long") for i in range(1, 12)]
    plan = Plan(decode_ms=10, token_ms=0.05, budget=budget, jitter_ms=1, seed=seed)
    return simulate([*streams(6, 300), *long], plan).records


def test_the_cure_is_seen_in_pairs_of_runs():
    found = {}
    for turn in turns(3, 2):
        records = run(128 if turn.who == "b" else None, seed=turn.pair)
        found[turn] = measure(records, MeasureOptions())
    verdicts = {c.figure.title: c.verdict for c in judge_turns(found, []).compared}
    assert verdicts["p99 ITL"].change == "lower"
    assert verdicts["p99 ITL"].ratio < 0.5
    assert verdicts["p95 TTFT"].change == "higher"


def test_a_pair_that_was_interrupted_does_not_count():
    metrics = measure(run(None), MeasureOptions())
    whole = dict.fromkeys(turns(2, 1), metrics)
    del whole[Turn("a", 1, noise=False)]
    outcome = judge_turns(whole, [])
    assert {c.verdict.pairs for c in outcome.compared} == {1}


def test_recordings_are_compared_by_resampling():
    outcome = compare_recorded(run(None), run(128), MeasureOptions())
    verdicts = {c.figure.title: c.verdict for c in outcome.compared}
    assert verdicts["p99 ITL"].change == "lower"
    same = compare_recorded(run(None), run(None), MeasureOptions())
    assert {c.verdict.change for c in same.compared} == {"none"}


def test_values_of_a_model_here_keep_their_case_and_a_missing_file_is_named(tmp_path, capsys):
    from evenflow.cli.compare import read_options
    from evenflow.cli.main import main

    wanted = {"a": "/Models/X.gguf", "b_c": True, "d": 7}
    assert read_options("a=/Models/X.gguf,b-c=True,d=7") == wanted
    there = tmp_path / "a.jsonl"
    there.write_text("{}")
    assert main(["compare", str(there), "gone.jsonl"]) == 2
    assert "there is no file gone.jsonl" in capsys.readouterr().err
    assert main(["compare", str(there), str(there), "--metric-percentiles", "50"]) == 2
    assert "no effect on recordings" in capsys.readouterr().err
