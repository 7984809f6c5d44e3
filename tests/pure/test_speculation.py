"""Drafts: where they come from, what a step does with them, and what a caller sees of it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.config import EngineConfig
from evenflow.errors import ConfigError
from evenflow.sampling import SamplingParams
from evenflow.schedule.lookup import INDEX_STEP, NgramDrafter, NgramIndex
from helpers.engines import Collector, SpellingRunner, make_engine
from helpers.scheduling import FakeRunner, make_request, make_scheduler, stream

# -- looking up -------------------------------------------------------------------------------


def index_of(tokens, shortest=2, longest=3):
    index = NgramIndex(shortest, longest)
    index.extend(tokens, len(tokens))
    return index


def test_what_followed_the_last_tokens_before_comes_next():
    tokens = [1, 2, 3, 4, 5, 9, 1, 2, 3]
    assert index_of(tokens).following(tokens, 2) == [4, 5]


def test_the_longest_run_wins_and_among_equals_the_latest():
    tokens = [7, 1, 2, 50, 8, 1, 2, 60, 7, 1, 2]
    assert index_of(tokens).following(tokens, 1) == [50]
    tokens = [1, 2, 50, 8, 1, 2, 60, 9, 1, 2]
    assert index_of(tokens).following(tokens, 1) == [60]


def test_a_loop_goes_on_as_a_loop():
    tokens = [1, 2, 3, 1, 2]
    assert index_of(tokens).following(tokens, 7) == [3, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4], [1, 1]])
def test_nothing_is_found_where_nothing_was_repeated(tokens):
    assert index_of(tokens).following(tokens, 3) == []


def slow(tokens, shortest, longest, count):
    """The same by looking through everything."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[len(tokens) - size :]:
                found = list(tokens)
                for _ in range(count):
                    found.append(found[start + size + len(found) - len(tokens)])
                return found[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), max_size=40),
    sizes=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    step=st.integers(1, 9),
)
def test_the_index_finds_what_a_search_finds(tokens, sizes, step):
    shortest, longest = sizes[0], sum(sizes)
    index = NgramIndex(shortest, longest)
    for end in range(0, len(tokens), step):
        index.extend(tokens[:end], 100)
    index.extend(tokens, 100)
    assert index.following(tokens, 5) == slow(tokens, shortest, longest, 5)


def test_a_long_prompt_is_taken_in_over_several_steps_and_let_go_at_the_end():
    request = make_request("r", [1, 2, 3, *range(10, 10 + 3 * INDEX_STEP), 1, 2])
    drafter = NgramDrafter(2, 2)
    assert drafter.propose(request, 1) == [3]  # the first part holds it
    index = drafter._indices["r"]
    sizes = [index._num_indexed]
    for _ in range(4):
        drafter.propose(request, 1)
        sizes.append(index._num_indexed)
    assert sizes == [INDEX_STEP, 2 * INDEX_STEP, 3 * INDEX_STEP, *[len(request.token_ids)] * 2]
    drafter.forget(request)
    assert not drafter._indices


# -- a step -----------------------------------------------------------------------------------


class Fixed:
    """Proposes the same tokens to everybody."""

    def __init__(self, *drafts):
        self.drafts = list(drafts)

    def propose(self, request, most):
        return self.drafts[:most]

    def forget(self, request):
        pass


class Scripted:
    """Draws `script[position]`, row by row, whatever was drafted."""

    def __init__(self, script):
        self.script = script

    def run(self, plan):
        result = FakeRunner().run(plan)
        tokens = [
            tuple(
                self.script[end]
                for end in range(s.start + s.length - s.num_logits + 1, s.start + s.length + 1)
            )
            for s in plan.spans
        ]
        return result._replace(tokens=tokens)


def speculating(drafter, requests, **options):
    scheduler = make_scheduler(num_speculative_tokens=4, **options)
    scheduler._speculation._drafter = drafter
    for request in requests:
        scheduler.add(request)
    return scheduler


def lengths(plan):
    return {s.request.id: s.length for s in plan.spans}


def one_step(scheduler, script):
    plan = scheduler.plan()
    return lengths(plan), scheduler.commit(Scripted(script).run(plan))


SCRIPT = [0, 0, 0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]


def test_tokens_are_taken_up_to_the_first_that_is_no_draft():
    request = stream("r", prompt=[1, 2, 3], max_tokens=9)
    scheduler = speculating(Fixed(11, 12, 99, 14), [request])
    assert one_step(scheduler, SCRIPT)[0] == {"r": 3}  # a prompt's chunk is never lengthened
    got, events = one_step(scheduler, SCRIPT)
    assert got == {"r": 5}
    assert [e.token for e in events] == [11, 12, 13]
    assert request.token_ids == [1, 2, 3, 10, 11, 12, 13]
    assert request.num_computed_tokens == request.num_planned_tokens == 6
    stats = scheduler.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 4, 2)
    assert stats.accepted_by_place == (1, 1, 0, 0)


def test_drafts_end_where_max_tokens_does():
    request = stream("r", prompt=[1, 2, 3], max_tokens=3)
    scheduler = speculating(Fixed(11, 12, 13, 14), [request])
    one_step(scheduler, SCRIPT)
    got, events = one_step(scheduler, SCRIPT)
    assert got == {"r": 2}
    assert [(e.token, e.finish) for e in events] == [(11, None), (12, "length")]
    assert not scheduler.has_unfinished


def test_a_stop_token_in_the_middle_of_a_run_ends_it_there():
    request = make_request("r", [1, 2, 3], max_tokens=9, stop_ids=frozenset({12}))
    scheduler = speculating(Fixed(11, 12, 13, 14), [request])
    one_step(scheduler, SCRIPT)
    _, events = one_step(scheduler, SCRIPT)
    assert [(e.token, e.finish) for e in events] == [(11, None), (12, "stop")]
    assert scheduler.stats().num_accepted_tokens == 1
    assert scheduler.stats().kv.held == 0


def test_min_tokens_lets_a_run_go_past_a_stop_token():
    request = make_request("r", [1, 2, 3], max_tokens=9, min_tokens=4, stop_ids=frozenset({12, 13}))
    scheduler = speculating(Fixed(11, 12, 13, 14), [request])
    one_step(scheduler, SCRIPT)
    _, events = one_step(scheduler, SCRIPT)
    assert [(e.token, e.finish) for e in events] == [(11, None), (12, None), (13, "stop")]


def test_drafts_take_what_prompts_leave_in_equal_shares_and_in_turns():
    streams = [stream(f"s{i}", prompt=[1, 2, 3]) for i in range(3)]
    scheduler = speculating(Fixed(1, 2, 3, 4), streams, max_num_batched_tokens=12)
    script = [99] * 200
    one_step(scheduler, script)
    assert sorted(one_step(scheduler, script)[0].values()) == [4, 4, 4]
    scheduler.add(stream("long", prompt=60))
    assert one_step(scheduler, script)[0] == {"s0": 1, "s1": 1, "s2": 1, "long": 9}
    scheduler.cancel("long")
    scheduler.add(stream("short", prompt=8))
    first = one_step(scheduler, script)[0]
    assert first.pop("short") == 8
    assert sorted(first.values()) == [1, 1, 2]


def test_too_many_decodes_draft_nothing():
    streams = [stream(f"s{i}", prompt=[1, 2, 3]) for i in range(3)]
    scheduler = speculating(
        Fixed(1, 2), streams, max_num_batched_tokens=32, speculative_disable_by_batch_size=2
    )
    one_step(scheduler, [99] * 200)
    assert set(one_step(scheduler, [99] * 200)[0].values()) == {1}
    scheduler.cancel("s1")
    assert set(one_step(scheduler, [99] * 200)[0].values()) == {3}


def test_generated_blocks_are_published_up_to_the_accepted_tokens():
    request = stream("r", prompt=[1, 2, 3], max_tokens=20)
    scheduler = speculating(Fixed(11, 12, 13, 77), [request], block_size=2)
    one_step(scheduler, SCRIPT)
    one_step(scheduler, SCRIPT)
    assert request.token_ids == [1, 2, 3, 10, 11, 12, 13, 14]
    assert request.num_computed_tokens == 7
    published = scheduler.kv._cache.published_blocks()
    assert [published[b][1] for b in request.block_ids[:3]] == [(1, 2), (3, 10), (11, 12)]
    assert len(published) == 3


# -- what a caller sees -----------------------------------------------------------------------


class RowRunner(SpellingRunner):
    """Draws a letter for each row."""

    def submit(self, plan):
        handle = super().submit(plan)
        tokens = [
            tuple(
                self.draw(s.request, end)
                for end in range(s.start + s.length - s.num_logits + 1, s.start + s.length + 1)
            )
            for s in plan.spans
        ]
        handle.outcome = handle.outcome._replace(tokens=tokens)
        return handle


LOOKUP = {"speculative": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 1}


def alphabet(request, position):
    return 1 + position % 5  # b c d e f, over and over


def params(**values):
    return SamplingParams(**({"max_tokens": 20} | values))


def spell(**values):
    """The events of one request whose text is a loop of five letters."""
    runner = RowRunner(alphabet)
    engine = make_engine(runner, **LOOKUP, num_speculative_tokens=4)
    sink = Collector()
    name = engine.submit([1, 2, 3, 4, 5, 1, 2], params(**values), sink)
    sink.wait()
    engine.close()
    return sink, name, runner


def test_a_run_reaches_the_sink_in_order_and_in_one_call():
    sink, name, runner = spell()
    assert [e.token_id for e in sink.of(name)] == [alphabet(None, p) for p in range(7, 27)]
    assert [e.finish_reason for e in sink.of(name)] == [None] * 19 + ["length"]
    assert len(runner.plans) == len(sink.batches) < 10
    assert max(map(len, sink.batches)) == 5


def test_a_stop_string_across_the_tokens_of_one_run():
    sink, name, _ = spell(stop=["fbc"])
    assert sink.text(name) == "de"
    assert sink.of(name)[-1].finish_reason == "stop"
    assert sum(e.finish_reason is not None for e in sink.of(name)) == 1


def test_a_stop_string_before_the_token_that_would_have_ended_it():
    sink, name, _ = spell(stop=["f"], max_tokens=4)
    assert sink.text(name) == "de"
    assert [e.finish_reason for e in sink.of(name)][-1] == "stop"
    assert sum(e.finish_reason is not None for e in sink.of(name)) == 1


def test_cancelling_while_drafts_are_in_flight_frees_everything():
    runner = RowRunner(alphabet)
    runner.gate = threading.Semaphore(3)
    engine = make_engine(runner, **LOOKUP, num_speculative_tokens=4)
    sink = Collector()
    name = engine.submit([1, 2, 3, 4, 5, 1, 2], params(), sink)
    engine.cancel(name)
    runner.gate.release(100)
    (end,) = sink.wait()
    assert end.finish_reason in {"abort", "length"}
    engine.close()
    assert engine.stats().kv.held == 0


def test_step_records_say_what_was_drafted_and_accepted():
    class Records:
        def __init__(self):
            self.steps = []

        def step(self, record):
            self.steps.append(record)

        def request(self, record):
            self.output_tokens = record.output_tokens

    records, sink = Records(), Collector()
    engine = make_engine(RowRunner(alphabet), [records], **LOOKUP, num_speculative_tokens=4)
    engine.submit([1, 2, 3, 4, 5, 1, 2], params(), sink)
    sink.wait()
    engine.close()
    accepted = sum(s.accepted_tokens for s in records.steps)
    assert records.output_tokens == 20 == len(records.steps) + accepted
    for step in records.steps:
        chunks = sum(c.length for c in step.chunks)
        assert step.num_tokens == step.num_decodes + step.draft_tokens + chunks
        assert step.accepted_tokens <= step.draft_tokens <= 4


# -- options ----------------------------------------------------------------------------------


def resolve(**options) -> EngineConfig:
    return EngineConfig.resolve(
        options, context_length=8192, kv_bytes_per_token=4, free_memory_bytes=2**30
    )


def settled(config):
    return (
        config.speculative,
        config.num_speculative_tokens,
        config.prompt_lookup_max,
        config.prompt_lookup_min,
    )


def test_options_have_defaults_and_vllms_json_is_the_same():
    assert settled(resolve()) == ("off", 0, 0, 0)
    assert settled(resolve(speculative="ngram")) == ("ngram", 6, 4, 2)
    assert settled(resolve(speculative="ngram", prompt_lookup_max=1)) == ("ngram", 6, 1, 1)
    assert settled(resolve(speculative="ngram", prompt_lookup_min=5)) == ("ngram", 6, 5, 5)
    json = (
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, '
        '"prompt_lookup_min": 2, "disable_by_batch_size": 9}'
    )
    config = resolve(speculative_config=json)
    assert settled(config) == ("ngram", 5, 3, 2)
    assert config.speculative_disable_by_batch_size == 9
    assert resolve(speculative_config={"num_speculative_tokens": 2}).speculative == "ngram"


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"speculative": "eagle"}, "speculative is 'eagle'"),
        ({"num_speculative_tokens": 3}, "num_speculative_tokens is given, but it has no effect"),
        (
            {"speculative": "ngram", "num_speculative_tokens": 65},
            "num_speculative_tokens is 65, outside its range of 1 to 64",
        ),
        (
            {"speculative": "ngram", "max_num_batched_tokens": 4, "num_speculative_tokens": 4},
            "num_speculative_tokens is 4, outside its range of 1 to 3",
        ),
        ({"speculative": "ngram", "max_num_batched_tokens": 1}, "no room for a draft"),
        (
            {"speculative": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min is 4, but prompt_lookup_max is 3",
        ),
        ({"speculative_config": "ngram"}, "speculative_config is not JSON"),
        ({"speculative_config": "[]"}, "speculative_config is []"),
        ({"speculative_config": {"model": "x"}}, "speculative_config has 'model'"),
        ({"speculative_config": {"method": "eagle"}}, "speculative is 'eagle'"),
        ({"speculative_config": {}, "speculative": "ngram"}, "and speculative beside it"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, fact):
    with pytest.raises(ConfigError) as caught:
        resolve(**options)
    assert fact in caught.value.message
    assert caught.value.hint
