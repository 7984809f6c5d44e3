"""What is sent and when: drawn, traced, saved, and the same again from the same seed."""

from __future__ import annotations

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.draw import (
    Length,
    Shape,
    arrivals,
    draw_mixture,
    parse_injection,
    parse_length,
    parse_mix,
)
from evenflow.bench.workload.plan import Segment, load_workload
from evenflow.bench.workload.prompts import Calibration, calibrate, text_of, words_of
from evenflow.errors import ConfigError, RecordError


def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (4.0, 0.5), (0.25, 2.0)])
def test_arrivals_have_the_rate_and_the_burstiness_asked_for(burstiness, cv):
    gaps = np.diff(arrivals(20_000, 50.0, burstiness, rng()))
    assert gaps.mean() == pytest.approx(1 / 50)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_a_rate_of_inf_sends_everything_at_once():
    assert arrivals(3, math.inf, 1.0, rng()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "length"),
    [("500", (500, 500, 0)), ("400-600", (400, 600, 0)), ("500~100", (500, 500, 100))],
)
def test_lengths_are_read(text, length):
    assert parse_length(text) == Length(*length)


@given(st.integers(1, 50), st.integers(0, 50))
def test_uniform_lengths_stay_in_their_range(low, more):
    drawn = [Length(low, low + more, 0).draw(rng()) for _ in range(20)]
    assert all(low <= n <= low + more for n in drawn)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_length, "0"),
        (parse_length, "9-3"),
        (parse_length, "many"),
        (parse_mix, "short:500@1"),
        (parse_mix, "a:1/1@0.5,b:1/1@0.4"),
        (parse_mix, "a:1/1@0.5,a:1/1@0.5"),
        (parse_mix, "a:1/1@x"),
        (lambda t: parse_injection(t, 1), "24000"),
        (lambda t: parse_injection(t, 1), "0@5s"),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(parse, text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "write" in caught.value.hint or "weights" in caught.value.message or caught.value.hint


def test_a_mixture_has_its_exact_shares_in_random_order():
    classes = parse_mix("short:500/128@0.9,long:24000/64@0.1")
    drawn = draw_mixture(classes, 100, [None] * 100, Shape(), rng())
    names = [r.class_name for r in drawn]
    assert names.count("long") == 10
    assert names != sorted(names)
    assert {r.prompt_tokens for r in drawn if r.class_name == "long"} == {24_000}


def test_shared_prefixes_are_equal_segments():
    classes = parse_mix("a:50/8@1")
    drawn = draw_mixture(classes, 30, [None] * 30, Shape(prefix_tokens=100, num_prefixes=3), rng())
    prefixes = {r.segments[0] for r in drawn}
    assert len(prefixes) == 3
    assert all(s.tokens == 100 for s in prefixes)
    assert len({r.segments[1] for r in drawn}) == 30


def test_conversations_have_turns_with_a_pause():
    options = WorkloadOptions(num_prompts=2, turns=3, turn_len=20, think_time=0.5)
    made = make_workload(options)
    talk = [r for r in made.requests if r.session == "s0"]
    assert [r.turn for r in talk] == [0, 1, 2]
    assert [r.think_s for r in talk] == [0.0, 0.5, 0.5]
    assert talk[1].at_s is None
    assert talk[1].prompt_tokens == 20


def test_victims_and_attackers():
    made = make_workload(
        WorkloadOptions(streams=3, inject=["2000@5s", "1000/8@2s"], input_len="50")
    )
    assert [r.id for r in made.requests if r.steady] == ["victim-0", "victim-1", "victim-2"]
    attackers = [r for r in made.requests if r.after_ready]
    assert [(r.at_s, r.prompt_tokens, r.output_tokens) for r in attackers] == [
        (2.0, 1000, 8),
        (5.0, 2000, 16),
    ]


def test_the_same_seed_draws_the_same_and_another_seed_does_not():
    def draw(seed):
        mix = "a:10-90/1-9@0.5,b:5/5@0.5"
        return make_workload(WorkloadOptions(mix=mix, request_rate=9.0, seed=seed)).requests

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_rate_inf_with_a_cap_is_a_closed_loop():
    assert make_workload(WorkloadOptions(max_concurrency=4)).is_closed
    assert not make_workload(WorkloadOptions()).is_closed
    assert not make_workload(WorkloadOptions(request_rate=5.0, max_concurrency=4)).is_closed


@pytest.mark.parametrize(
    "options",
    [
        {"mix": "a:1/1@1", "input_len": "5"},
        {"mix": "a:1/1@1", "streams": 3},
        {"inject": ["5@1s"]},
        {"streams": 2, "num_prompts": 5},
        {"num_prompts": 0},
        {"request_rate": 0.0},
    ],
)
def test_contradictions_are_refused(options):
    with pytest.raises(ConfigError):
        make_workload(WorkloadOptions(**options))


def test_a_saved_workload_comes_back_whole(tmp_path):
    made = make_workload(WorkloadOptions(mix="a:10/2@1", turns=2, num_prompts=5))
    made.header["calibration"] = Calibration(1.5, 3, measured=True)._asdict()
    made.save(tmp_path / "w.jsonl")
    again = make_workload(WorkloadOptions(workload=tmp_path / "w.jsonl"))
    assert again.requests == made.requests
    assert again.header == orjson.loads(orjson.dumps(made.header))


def test_a_file_that_is_no_workload_is_refused(tmp_path):
    path = tmp_path / "w.jsonl"
    for content in (b"", b"{}\n", b"[]\n", b"\xff\n"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match="no workload"):
            load_workload(path)
    path.write_bytes(b'{"evenflow_workload":9}\n')
    with pytest.raises(RecordError, match="version 9"):
        load_workload(path)


@given(st.integers(1, 2**31), st.integers(1, 300))
def test_text_is_a_function_of_its_seed_and_has_so_many_words(seed, count):
    text = words_of(seed, count)
    assert len(text.split()) == count
    assert text == words_of(seed, count)


def test_calibration_finds_rate_and_overhead_and_lengths_follow_it():
    found = calibrate((16, 16 * 2 + 9), (272, 272 * 2 + 9))
    assert (found.tokens_per_word, found.overhead_tokens) == (2.0, 9)
    text = text_of([Segment(1, 100), Segment(2, 51)], found)
    assert len(text.split()) * 2 + 9 == pytest.approx(151, abs=2)


def test_a_workload_made_anew_has_other_words_and_the_same_shape():
    made = make_workload(
        WorkloadOptions(mix="a:60/2@1", prefix_len=20, num_prefixes=2, num_prompts=20)
    )
    texts = [[text_of(r.segments, Calibration()) for r in made.anew(n).requests] for n in range(4)]
    assert made.anew(0) is made
    assert len({text for each in texts for text in each}) == 4 * len(set(texts[0]))
    for each in texts[1:]:
        beginnings = [len({text.split()[0] for text in some}) for some in (each, texts[0])]
        assert beginnings[0] == beginnings[1] == 2  # what was shared is shared
    for other in (made.anew(1), made.anew(2)):
        assert [r.prompt_tokens for r in other.requests] == [r.prompt_tokens for r in made.requests]
        assert [r.at_s for r in other.requests] == [r.at_s for r in made.requests]
