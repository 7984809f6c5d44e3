"""The loop's promises: one terminal event each, one call per sink and step, nothing is lost."""

from __future__ import annotations

import threading

import pytest

from evenflow.errors import EngineClosedError, InvalidRequestError, TraceError
from evenflow.sampling import SamplingParams
from helpers.engines import EOS, Collector, SpellingRunner, make_engine, step_failure


@pytest.fixture
def engine():
    made = make_engine()
    yield made
    made.close()


def params(**values) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 5} | values))


def test_a_request_gets_its_tokens_and_one_end(engine):
    sink = Collector()
    name = engine.submit([1, 2, 3], params(), sink)
    (end,) = sink.wait()
    events = sink.of(name)
    assert [e.finish_reason for e in events] == [None] * 4 + ["length"]
    assert end is events[-1]
    assert all(e.token_id >= 0 for e in events)
    assert len(sink.text(name)) == 5


def test_tokens_do_not_depend_on_the_neighbours(engine):
    alone, crowd = Collector(), Collector()
    first = engine.submit([5, 6, 7], params(), alone)
    alone.wait()
    names = [engine.submit([5, 6, 7], params(), crowd) for _ in range(20)]
    crowd.wait(20)
    for name in names:
        assert crowd.text(name) == alone.text(first)


def test_all_events_of_a_step_reach_a_sink_in_one_call():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    engine = make_engine(runner)
    sink = Collector()
    first = engine.submit([1], params(), sink)  # the engine may start on this one alone
    names = [first] + [engine.submit([1, 2], params(), sink) for _ in range(7)]
    runner.gate.release(1000)
    sink.wait(8)
    engine.close()
    for batch, plan in zip(sink.batches, runner.plans, strict=False):
        assert len(batch) == sum(bool(s.num_logits) for s in plan.spans)
    assert {e.request_id for b in sink.batches for e in b} == set(names)


def test_eos_ends_with_stop_and_adds_no_text():
    engine = make_engine(SpellingRunner(lambda r, p: EOS if p == 5 else 1))
    sink = Collector()
    name = engine.submit([1, 2, 3], params(), sink)
    (end,) = sink.wait()
    engine.close()
    assert end.finish_reason == "stop"
    assert end.token_id == EOS
    assert sink.text(name) == "bb"


def test_ignore_eos_goes_on():
    engine = make_engine(SpellingRunner(lambda r, p: EOS))
    sink = Collector()
    engine.submit([1], params(ignore_eos=True), sink)
    (end,) = sink.wait()
    engine.close()
    assert end.finish_reason == "length"


def test_a_stop_string_ends_the_request_and_frees_its_blocks():
    engine = make_engine(SpellingRunner(lambda r, p: p))  # spells the alphabet
    sink = Collector()
    name = engine.submit([1], params(max_tokens=20, stop=("de",)), sink)
    (end,) = sink.wait()
    assert end.finish_reason == "stop"
    assert sink.text(name) == "bc"
    assert len(sink.of(name)) == 4
    again = engine.submit([1], params(max_tokens=20), sink)
    sink.wait()
    engine.close()
    assert sink.text(again) == "bcdefghijklmnopqrstu"
    assert engine._scheduler.kv.usage().held == 0


def test_a_seed_is_chosen_from_the_engines_and_recorded():
    runner = SpellingRunner()
    engine = make_engine(runner, seed=7)
    sink = Collector()
    engine.submit([1], params(), sink)
    engine.submit([1], params(), sink)
    engine.submit([1], params(seed=3), sink)
    sink.wait(3)
    engine.close()
    seeds = {s.request.id: s.request.params.seed for p in runner.plans for s in p.spans}
    assert seeds["req-2"] == 3
    assert len(set(seeds.values())) == 3


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1] * 128, "128 tokens, but this model's context holds 128"),
        ([1000], "1000 is not in the vocabulary"),
        ([-1], "-1 is not in the vocabulary"),
        ([True], "True is not in the vocabulary"),
        (["a"], "'a' is not in the vocabulary"),
        ([1.0], "1.0 is not in the vocabulary"),
    ],
)
def test_bad_prompts_are_refused_and_the_engine_goes_on(engine, prompt, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.submit(prompt, params(), Collector())
    assert caught.value.hint
    sink = Collector()
    engine.submit([1], params(), sink)
    assert sink.wait()[0].finish_reason == "length"
    assert engine._scheduler.kv.usage().held == 0


def test_max_tokens_ends_at_the_context(engine):
    sink = Collector()
    name = engine.submit([1] * 120, params(max_tokens=None), sink)
    sink.wait()
    assert len(sink.of(name)) == 8


def test_cancel_gives_one_end_and_frees_everything():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(3)
    engine = make_engine(runner)
    sink = Collector()
    name = engine.submit([1] * 40, params(max_tokens=80), sink)
    other = engine.submit([2], params(max_tokens=30), sink)
    engine.cancel(name)
    engine.cancel(name)
    engine.cancel("nobody")
    runner.gate.release(1000)
    sink.wait(2)
    ends = [e for e in sink.of(name) if e.finish_reason]
    assert [e.finish_reason for e in ends] == ["abort"]
    assert sink.of(other)[-1].finish_reason == "length"
    engine.close()
    assert engine._scheduler.kv.usage().held == 0


def test_a_failed_step_ends_its_requests_and_no_others():
    engine = make_engine(SpellingRunner(fail_at={1: step_failure()}))
    sink = Collector()
    name = engine.submit([1], params(), sink)
    (end,) = sink.wait()
    assert (end.finish_reason, end.token_id) == ("error", -1)
    assert "went wrong" in str(end.error)
    assert sink.of(name)[0].token_id >= 0
    engine.submit([1], params(), sink)
    assert sink.wait()[0].finish_reason == "length"
    engine.close()


def test_a_crash_ends_every_request_and_later_ones_are_told_why():
    runner = SpellingRunner(fail_at={2: ZeroDivisionError("a bug")})
    engine = make_engine(runner)
    sink = Collector()
    for _ in range(5):
        engine.submit([1], params(max_tokens=50), sink)
    ends = sink.wait(5)
    assert {e.finish_reason for e in ends} == {"error"}
    assert all("a bug" in str(e.error) for e in ends)
    engine._thread.join()
    with pytest.raises(EngineClosedError, match="a bug"):
        engine.submit([1], params(), sink)
    assert runner.closed


def test_close_ends_what_runs_and_what_waits():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(2)
    engine = make_engine(runner, max_num_seqs=1)
    sink = Collector()
    for _ in range(4):
        engine.submit([1], params(max_tokens=100), sink)
    closer = threading.Thread(target=engine.close)
    closer.start()
    runner.gate.release(1000)
    ends = sink.wait(4)
    closer.join()
    assert {e.finish_reason for e in ends} == {"abort"}
    with pytest.raises(EngineClosedError, match="closed"):
        engine.submit([1], params(), sink)
    engine.close()
    assert not engine._thread.is_alive()


def test_a_taken_id_is_refused_with_an_event():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    engine = make_engine(runner)
    first, second = Collector(), Collector()
    engine.submit([1], params(), first, request_id="x")
    engine.submit([1], params(), second, request_id="x")
    runner.gate.release(1000)
    (end,) = second.wait()
    assert end.finish_reason == "error"
    assert "'x'" in str(end.error)
    assert first.wait()[0].finish_reason == "length"
    engine.close()


class Recorder:
    def __init__(self) -> None:
        self.steps, self.requests = [], []

    def step(self, record) -> None:
        self.steps.append(record)

    def request(self, record) -> None:
        self.requests.append(record)


def test_the_first_token_says_what_the_prefix_cache_had():
    engine = make_engine(max_num_batched_tokens=8, min_prefill_tokens=2)
    told = []
    for name in ("a", "b"):
        sink = Collector()
        engine.submit([1] * 21, params(), sink, request_id=name)
        sink.wait()
        told.append([e.num_cached_tokens for batch in sink.batches for e in batch])
    engine.close()
    assert told == [[0, None, None, None, None], [20, None, None, None, None]]


def test_records_add_up():
    recorder = Recorder()
    engine = make_engine(observers=[recorder], max_num_batched_tokens=8, min_prefill_tokens=2)
    sink = Collector()
    engine.submit([1] * 21, params(), sink, request_id="a")
    sink.wait()
    engine.submit([1] * 21, params(), sink, request_id="b")
    sink.wait()
    engine.close()
    a, b = recorder.requests
    assert (a.prompt_tokens, a.cached_tokens, a.output_tokens) == (21, 0, 5)
    assert (b.cached_tokens, b.finish_reason) == (20, "length")
    assert len(b.token_times_s) == 5
    assert b.arrival_s < b.first_scheduled_s < b.first_token_s <= b.finish_s
    chunks = [c for s in recorder.steps for c in s.chunks]
    assert [(c.request_id, c.start, c.length, c.cached) for c in chunks] == [
        ("a", 0, 8, 0),
        ("a", 8, 8, 0),
        ("a", 16, 5, 0),
        ("b", 20, 1, 20),
    ]
    assert sum(s.num_decodes for s in recorder.steps) == 8
    for step in recorder.steps:
        assert step.num_tokens == step.num_decodes + sum(c.length for c in step.chunks)
        assert step.kv_blocks_used + step.kv_blocks_cached + step.kv_blocks_free == 64


def test_an_observer_that_fails_is_dropped_and_the_streams_go_on(caplog):
    class Full(Recorder):
        def step(self, record) -> None:
            raise TraceError("the disk is full")

    recorder = Recorder()
    engine = make_engine(observers=[Full(), recorder])
    sink = Collector()
    engine.submit([1], params(), sink)
    assert sink.wait()[0].finish_reason == "length"
    engine.close()
    assert "disk is full" in caplog.text
    assert len(recorder.steps) == 5
