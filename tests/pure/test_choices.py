"""n answers: a request each, an end each, one prompt; and what a failing draw does to the others."""

from __future__ import annotations

import threading

import pytest

from evenflow.choices import CHOICE_STRIDE, Groups, each_choice
from evenflow.errors import EngineClosedError, InvalidRequestError, RunnerError
from evenflow.sampling import MAX_SEED, SamplingParams
from evenflow.stream import EventStream
from evenflow.types import StepResult, TokenLogprobs
from helpers.engines import Collector, SpellingRunner, StepHandle, make_engine
from helpers.scheduling import fake_token


def params(**values) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 5, "n": 3} | values))


def by_seed(request, position):
    """Choices differ by their seed."""
    return 1 + (fake_token(request, position) + request.params.seed) % 997


class Letters(SpellingRunner):
    """Fails the spans that `fails` names, and reports made-up log probabilities."""

    def __init__(self, fails=lambda span: None, **values) -> None:
        super().__init__(by_seed, **values)
        self.fails = fails

    def submit(self, plan):
        result = super().submit(plan).result()
        failed = {i: e for i, s in enumerate(plan.spans) if (e := self.fails(s)) is not None}
        tokens = [() if i in failed else t for i, t in enumerate(result.tokens)]
        logprobs = [tuple(TokenLogprobs(-0.5, t, ()) for t in each) for each in tokens]
        scores = {}
        for i, span in enumerate(plan.spans):
            rows = range(span.start + span.length - span.num_logits, span.start + span.length)
            scored = [p for p in rows if p + 1 < span.request.num_prompt_tokens]
            if span.request.scores_prompt and scored:
                scores[i] = [TokenLogprobs(-1.0, span.request.token_ids[p + 1], ()) for p in scored]
        return StepHandle(StepResult(plan.serial, tokens, logprobs, 0.0, scores, failed))


@pytest.fixture
def engine():
    made = make_engine(Letters())
    yield made
    made.close()


def test_every_choice_is_a_request_with_its_own_end(engine):
    sink = Collector()
    name = engine.submit([1, 2, 3], params(seed=7), sink, request_id="a")
    ends = sink.wait(3)
    assert name == "a"
    assert sorted((e.request_id, e.index) for e in ends) == [("a-0", 0), ("a-1", 1), ("a-2", 2)]
    assert [e.finish_reason for e in ends] == ["length"] * 3
    for index in range(3):
        events = sink.of(f"a-{index}")
        assert [e.index for e in events] == [index] * 5
        assert sum(e.finish_reason is not None for e in events) == 1
    assert len({sink.text(f"a-{i}") for i in range(3)}) == 3


def test_choice_0_is_what_n_1_gives_and_each_is_what_its_seed_gives(engine):
    sink = Collector()
    engine.submit([1, 2, 3], params(seed=7), sink, request_id="many")
    engine.submit([1, 2, 3], params(seed=7, n=1), sink, request_id="one")
    seed = (7 + 2 * CHOICE_STRIDE) & MAX_SEED
    engine.submit([1, 2, 3], params(seed=seed, n=1), sink, request_id="last")
    sink.wait(5)
    assert sink.text("many-0") == sink.text("one")
    assert sink.text("many-2") == sink.text("last")
    assert sink.of("one")[0].index == 0


def test_without_a_seed_no_two_answers_of_an_engine_share_one():
    engine_seed, made = 5, []
    for number, n in ((0, 3), (3, 1), (4, 2)):
        made += each_choice(params(n=n), number, engine_seed)
    assert len({p.seed for p in made}) == 6
    assert {p.n for p in made} == {1}
    assert [p.prompt_logprobs for p in each_choice(params(prompt_logprobs=2), 0, 0)] == [
        2,
        None,
        None,
    ]


def test_the_choices_share_the_prompts_blocks():
    runner = Letters()
    engine = make_engine(runner, block_size=4, max_num_batched_tokens=8)
    sink = Collector()
    engine.submit(list(range(1, 33)), params(seed=1), sink, request_id="a")
    sink.wait(3)
    engine.close()
    computed = sum(span.length for plan in runner.plans for span in plan.spans[plan.num_decodes :])
    assert computed == 32 + 2 * 1  # the followers compute the last position again, no more


def test_cancelling_the_name_ends_all_and_a_choices_id_ends_that_one():
    runner = Letters()
    runner.gate = threading.Semaphore(0)
    engine = make_engine(runner)
    sink = Collector()
    engine.submit([1, 2], params(max_tokens=90), sink, request_id="one")
    engine.submit([1, 2], params(max_tokens=90), sink, request_id="all")
    engine.cancel("one-1")
    engine.cancel("all")
    runner.gate.release(1000)
    ends = sink.wait(6)
    engine.close()
    reasons = {e.request_id: e.finish_reason for e in ends}
    aborted = {"one-1", "all-0", "all-1", "all-2"}
    assert {name for name, reason in reasons.items() if reason == "abort"} == aborted
    assert reasons["one-0"] == reasons["one-2"] == "length"
    assert engine._groups._open == engine._groups._name_of == {}


def test_a_name_in_use_is_refused_choice_by_choice_and_its_owner_is_not_touched():
    runner = Letters()
    runner.gate = threading.Semaphore(0)
    engine = make_engine(runner)
    owner, late = Collector(), Collector()
    engine.submit([1, 2], params(n=1, max_tokens=20), owner, request_id="a-1")
    engine.submit([1, 2], params(), late, request_id="a")
    engine.cancel("a")
    runner.gate.release(1000)
    ends = {e.request_id: e for e in late.wait(3)}
    assert ends["a-1"].finish_reason == "error"
    assert ends["a-1"].index == 1
    assert ends["a-0"].finish_reason == ends["a-2"].finish_reason == "abort"
    assert owner.wait()[0].finish_reason == "length"
    engine.close()


def test_a_stream_goes_on_until_every_choice_has_ended(engine):
    events = list(EventStream(engine, [1, 2, 3], params()))
    assert sorted(e.index for e in events) == [0] * 5 + [1] * 5 + [2] * 5
    assert [e.index for e in events[:3]] != [0, 0, 0]  # interleaved
    with EventStream(engine, [1, 2, 3], params(max_tokens=100)) as stream:
        name = next(stream).request_id
    assert name.endswith("-0")
    engine.close()  # it takes the commands before this one first
    assert engine._groups.ids(stream.request_id) == [stream.request_id]


def test_closing_the_engine_ends_every_choice():
    runner = Letters()
    runner.gate = threading.Semaphore(0)
    engine = make_engine(runner)
    sink = Collector()
    engine.submit([1], params(max_tokens=50), sink, request_id="a")
    runner.gate.release(2)
    threading.Timer(0.05, runner.gate.release, (1000,)).start()
    engine.close()
    assert {e.index: e.finish_reason for e in sink.wait(3)} == dict.fromkeys(range(3), "abort")
    with pytest.raises(EngineClosedError):
        engine.submit([1], params(), sink)


def test_a_request_that_no_token_can_be_drawn_for_ends_and_the_others_go_on():
    error = InvalidRequestError("nothing is left", hint="ban less")
    late = RunnerError("not a number", hint="check")

    def fails(span):
        end = span.start + span.length
        return {("bad", 3): error, ("late", 5): late}.get((span.request.id, end))

    engine = make_engine(Letters(fails))
    sink = Collector()
    for name in ("good", "bad", "late"):
        engine.submit([1, 2, 3], params(n=1), sink, request_id=name)
    ends = {e.request_id: e for e in sink.wait(3)}
    engine.close()
    assert (ends["bad"].finish_reason, ends["bad"].error) == ("error", error)
    assert (ends["late"].finish_reason, ends["late"].error) == ("error", late)
    assert [e.token_id >= 0 for e in sink.of("late")] == [True, True, False]
    assert ends["good"].finish_reason == "length"
    assert ends["good"].error is None
    assert engine.stats().kv.held == 0


@pytest.mark.parametrize("budget", [2, 5, 64])
def test_prompt_logprobs_come_with_the_first_token_of_choice_0(budget):
    engine = make_engine(Letters(), max_num_batched_tokens=budget)
    sink = Collector()
    prompt = list(range(1, 20))
    engine.submit(prompt, params(prompt_logprobs=1, logprobs=0), sink, request_id="a")
    engine.submit([4], params(n=1, prompt_logprobs=1), sink, request_id="short")
    sink.wait(4)
    engine.close()
    first, *others = sink.of("a-0")
    assert first.prompt_logprobs[0] is None
    assert [entry.rank for entry in first.prompt_logprobs[1:]] == prompt[1:]
    rest = [*others, *sink.of("a-1"), *sink.of("a-2")]
    assert all(e.prompt_logprobs is None for e in rest)
    assert all(e.logprobs.rank == e.token_id for e in [first, *rest])
    assert sink.of("short")[0].prompt_logprobs == [None]


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_limit_are_refused(engine, name):
    with pytest.raises(InvalidRequestError, match=rf"^{name} is 21, but at most 20") as caught:
        engine.submit([1], params(**{name: 21}), Collector())
    assert "max_logprobs" in caught.value.hint
    wide = make_engine(max_logprobs=5000)
    with pytest.raises(InvalidRequestError, match="at most 1,000"):  # the vocabulary's size
        wide.check([1], params(**{name: 1001}))
    wide.close()


def test_a_bias_for_a_token_that_does_not_exist_is_refused(engine):
    with pytest.raises(InvalidRequestError, match="1000 is not in the vocabulary"):
        engine.submit([1], params(logit_bias={1000: 1.0}), Collector())


def test_groups_forget_what_has_ended():
    groups = Groups()
    for name in ("a-0", "a-1"):
        groups.add("a", name)
    assert groups.ids("a") == ["a-0", "a-1"]
    groups.end("a-0")
    groups.end("elsewhere")
    assert groups.ids("a") == ["a-1"]
    groups.end("a-1")
    assert groups.ids("a") == ["a"]
