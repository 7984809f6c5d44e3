"""The stall experiment on an engine without a model, and what its records are taken to mean."""

from __future__ import annotations

import math
import sys

import pytest

from evenflow.bench.equality import Difference, Equality, compare
from evenflow.bench.stall import LONG_ID, check_shape, real_prompts, run_stall
from evenflow.bench.stall_report import (
    as_data,
    cautions,
    equality_words,
    summarize,
    verdict,
)
from evenflow.errors import ConfigError, RunnerError
from helpers.engines import SpellingRunner, make_engine, step_failure
from helpers.stalls import make_prompts, make_shape, make_summary


def run(*, chunked: bool, watch=lambda _: None, **changes):
    shape = make_shape(**changes)
    engine = make_engine(**shape.options(chunked=chunked))
    return shape, run_stall(engine, make_prompts(shape), shape, watch)


@pytest.mark.parametrize("chunked", [False, True])
def test_every_stream_decodes_all_through_the_prefill(chunked):
    shape, result = run(chunked=chunked)
    summary = summarize(result)
    assert result.chunked is chunked
    assert summary.all_decoding
    assert [len(result.tokens[s.id]) for s in result.streams] == [shape.stream_tokens] * 2
    assert len(result.tokens[LONG_ID]) == shape.long_output_tokens


@pytest.mark.parametrize(("streams", "long", "budget"), [(1, 3, 2), (3, 100, 6), (8, 64, 64)])
def test_the_streams_are_long_enough_for_any_shape(streams, long, budget):
    _, result = run(chunked=True, num_streams=streams, long_tokens=long, budget=budget)
    assert summarize(result).all_decoding


def test_whole_prompts_take_one_chunk_and_chunks_fit_beside_the_streams():
    _, whole = run(chunked=False)
    assert summarize(whole).chunk_lengths == [40]
    _, cut = run(chunked=True)
    lengths = summarize(cut).chunk_lengths
    assert sum(lengths) == 40
    assert max(lengths) <= 8
    assert len(lengths) >= 5


def test_both_runs_give_the_same_tokens():
    _, off = run(chunked=False)
    _, on = run(chunked=True)
    equality = compare(off.tokens, on.tokens, lambda *_: math.nan)
    assert equality.holds
    assert equality.differences == []
    assert equality.num_tokens == sum(map(len, off.tokens.values()))


def test_the_long_prompt_lands_after_the_lead_and_is_not_in_the_prefix_cache():
    shape, result = run(chunked=True)
    for stream in result.streams:
        before = [t for t in stream.token_times_s if t <= result.long.arrival_s]
        assert len(before) >= shape.lead_tokens
    assert result.long.cached_tokens == 0


def test_watchers_see_progress_up_to_the_end():
    seen = []
    shape, _ = run(chunked=True, watch=seen.append)
    assert [p.stream_tokens for p in seen] == sorted(p.stream_tokens for p in seen)
    assert seen[-1].stream_tokens == shape.num_streams * shape.stream_tokens
    assert seen[-1].long_tokens == shape.long_tokens
    assert seen[-1].landed


def test_a_step_that_fails_ends_the_experiment():
    shape = make_shape()
    runner = SpellingRunner(fail_at={4: step_failure()})
    engine = make_engine(runner, **shape.options(chunked=True))
    with pytest.raises(RunnerError, match="the step went wrong"):
        run_stall(engine, make_prompts(shape), shape)
    engine.close()


def test_shapes_that_can_show_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"a step of 15 tokens has no room .* 8 streams"):
        check_shape(make_shape(num_streams=8, budget=15), 512)
    with pytest.raises(ConfigError, match=r"have 600 tokens, .* holds 512") as caught:
        check_shape(make_shape(long_tokens=598), 512)
    assert "at most 510" in caught.value.hint


class Words:
    """A tokenizer that numbers words."""

    def encode(self, text):
        return [hash(word) % 1000 for word in text.split()]


def test_prompts_are_real_text_of_the_sizes_asked_for():
    shape = make_shape(num_streams=8, long_tokens=20_000, stream_prompt_tokens=16)
    prompts = real_prompts(Words(), shape)
    assert len(prompts.long) == 20_000
    assert [len(p) for p in prompts.streams] == [16] * 8
    assert len({tuple(p) for p in prompts.streams}) == 8
    with pytest.raises(ConfigError, match="this Python's own documentation has text for"):
        real_prompts(Words(), shape._replace(long_tokens=10**7))


def test_a_python_without_its_documentation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match="without its documentation") as caught:
        real_prompts(Words(), make_shape())
    assert caught.value.hint


def test_the_verdict_says_what_the_figures_say():
    off = make_summary(chunked=False, worst_ms=6100, ttft_s=6.0)
    on = make_summary(chunked=True, worst_ms=500, ttft_s=6.6)
    assert verdict(off, on, 4096) == (
        "While a prompt of 4,096 tokens was in prefill, chunking cut the longest pause of a stream "
        "from 6,100 ms to 500 ms (12.2x shorter); its own first token came after 6.60 s instead of "
        "6.00 s (+10%)."
    )


@pytest.mark.parametrize(
    ("off_ms", "on_ms", "words"),
    [
        (100, 95, "no difference worth naming"),
        (100, 119, "no difference worth naming"),
        (100, 120, "made it worse"),
        (120, 100, "cut the longest pause"),
        (None, 100, "this shows nothing"),
        (100, None, "this shows nothing"),
    ],
)
def test_the_verdict_is_honest_when_the_effect_is_absent(off_ms, on_ms, words):
    off = make_summary(chunked=False, worst_ms=off_ms, ttft_s=1.0)
    on = make_summary(chunked=True, worst_ms=on_ms, ttft_s=1.0)
    assert words in verdict(off, on, 100)


def test_a_stream_that_ended_early_is_a_caution():
    off = make_summary(chunked=False, worst_ms=10, ttft_s=1.0, all_decoding=False)
    on = make_summary(chunked=True, worst_ms=10, ttft_s=1.0)
    (caution,) = cautions(off, on)
    assert caution.startswith("with chunking off, not every stream decoded")
    assert cautions(on, on) == []


def test_tokens_may_differ_only_at_a_tie():
    left, right = {"a": [1, 2, 3], "b": [4]}, {"a": [1, 9, 9], "b": [4]}
    asked = []

    def margin(name, output, value):
        asked.append((name, list(output)))
        return value

    tie = compare(left, right, lambda name, output: margin(name, output, 9e-4))
    assert asked == [("a", [1])]
    assert tie.holds
    assert tie.num_tokens == 3
    assert "up to ties" in equality_words(tie)
    assert "a from output token 1 (margin 9.0e-04)" in equality_words(tie)
    fault = compare(left, right, lambda *_: 1e-3)
    assert not fault.holds
    assert "DIFFERENT tokens" in equality_words(fault)


def test_a_shorter_output_is_a_difference_and_other_requests_are_no_comparison():
    found = compare({"a": [1, 2]}, {"a": [1]}, lambda *_: 5.0)
    assert found.differences == [Difference("a", 1, 2, None, 5.0)]
    with pytest.raises(ValueError, match="different requests"):
        compare({"a": [1]}, {"b": [1]}, lambda *_: 5.0)


def test_the_data_for_programs_holds_the_whole_report():
    shape = make_shape()
    off = make_summary(chunked=False, worst_ms=600, ttft_s=1.0)
    on = make_summary(chunked=True, worst_ms=100, ttft_s=1.5)
    data = as_data(shape, off, on, Equality(3, 30, []))
    assert data["shape"]["stream_tokens"] == shape.stream_tokens
    assert data["chunking_off"]["itl_in_window_ms"]["worst_ms"] == 600
    assert data["chunking_on"]["num_chunks"] == 7
    assert data["chunking_on"]["gaps"][0] == {"at_s": 0.5, "gap_ms": 100}
    assert data["equality"] == {"holds": True, "num_tokens": 30, "differences": []}
    assert data["verdict"] == verdict(off, on, shape.long_tokens)
