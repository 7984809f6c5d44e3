"""Bugs that schedulers elsewhere had, one example each, named after what users saw."""

from __future__ import annotations

import pytest

from helpers.scheduling import (
    KvRunner,
    alone,
    chunks_of,
    decodes_of,
    finish,
    make_scheduler,
    run_to_end,
    step,
    stream,
)

# -- stages are stored, not inferred from a length ------------------------------------------


def test_the_last_token_of_a_prompt_is_not_taken_for_a_decode():
    """k x chunk + 1: the last chunk of one token was dropped and wrong KV cached."""
    scheduler = make_scheduler(max_num_batched_tokens=8)
    runner = KvRunner(scheduler)
    request = stream("r", 3, prompt=17)
    scheduler.add(request)
    plans = [step(scheduler, runner) for _ in range(5)]
    assert [chunks_of(plan) for plan in plans] == [{"r": 8}, {"r": 8}, {"r": 1}, {}, {}]
    twin = stream("twin", 3, prompt=list(request.token_ids[:17]))
    scheduler.add(twin)
    finish(scheduler, runner)
    assert twin.token_ids == request.token_ids


def test_a_first_chunk_of_one_token_is_not_taken_for_a_decode():
    scheduler = make_scheduler(max_num_batched_tokens=2, min_prefill_tokens=1)
    scheduler.add(stream("stream"))
    step(scheduler)
    scheduler.add(stream("prompt", prompt=5))
    plan = step(scheduler)
    assert (decodes_of(plan), chunks_of(plan)) == (["stream"], {"prompt": 1})
    assert plan.spans[1].num_logits == 0


def test_a_steady_decode_does_not_compute_its_sequence_again():
    scheduler = make_scheduler()
    scheduler.add(stream("r", 6, prompt=9))
    spans = [plan.spans[0] for plan, _ in run_to_end(scheduler)]
    assert [(s.start, s.length) for s in spans] == [(0, 9)] + [(9 + i, 1) for i in range(5)]


# -- stalls and fairness --------------------------------------------------------------------


def test_streams_do_not_stall_while_a_long_prompt_lands():
    scheduler = make_scheduler(max_num_batched_tokens=16, num_blocks=1000)
    for i in range(8):
        scheduler.add(stream(f"s{i}"))
    step(scheduler)
    scheduler.add(stream("long", prompt=800))
    for _ in range(90):
        plan = step(scheduler)
        assert plan.num_decodes == 8
        assert plan.num_tokens == 16


def test_a_short_prompt_does_not_wait_for_a_whole_long_one():
    scheduler = make_scheduler(num_blocks=1000)
    scheduler.add(stream("long", prompt=2000))
    step(scheduler)
    scheduler.add(stream("short", prompt=16))
    assert chunks_of(step(scheduler)) == {"long": 16, "short": 16}


def test_a_few_very_long_prompts_do_not_take_every_lane():
    scheduler = make_scheduler(num_blocks=4000, max_partial_prefills=4)
    for i in range(6):
        scheduler.add(stream(f"long{i}", prompt=1000))
    step(scheduler)
    assert scheduler.stats().num_running == 3
    scheduler.add(stream("short", prompt=5))
    assert chunks_of(step(scheduler))["short"] == 5


def test_a_request_that_finds_no_blocks_does_not_hold_up_those_that_do():
    scheduler = make_scheduler(num_blocks=8, block_size=4, max_admission_skips=2)
    scheduler.add(stream("running", 9, prompt=8))
    step(scheduler)
    scheduler.add(stream("big", 1, prompt=32))
    for i in range(3):
        scheduler.add(stream(f"small{i}", 1, prompt=4))
    plan = step(scheduler)
    assert chunks_of(plan) == {"small0": 4, "small1": 4}  # twice past it, and not once more
    assert plan.blocked == "kv"
    admitted = [name for plan, _ in run_to_end(scheduler) for name in chunks_of(plan)]
    assert admitted == ["big", "small2"]


def test_a_cold_prompt_does_not_starve_behind_hot_ones():
    """Ordering by cache hits let users with a new prompt wait for a minute."""
    scheduler = make_scheduler(max_num_batched_tokens=16, num_blocks=500, min_prefill_tokens=8)
    hot = list(range(100, 164))
    scheduler.add(stream("first", 1, prompt=hot))
    list(run_to_end(scheduler))
    scheduler.add(stream("cold", 1, prompt=64))
    cold_done = None
    for i in range(40):
        scheduler.add(stream(f"hot{i}", 1, prompt=hot))
        if "cold" in [s.request.id for s in step(scheduler).spans if s.num_logits]:
            cold_done = i
            break
    assert cold_done is not None
    assert cold_done < 8  # half of 16 tokens in every step


def test_the_cap_on_a_long_prompts_chunk_is_lifted_when_nobody_else_is_there():
    scheduler = make_scheduler(long_prefill_token_threshold=4, num_blocks=200)
    scheduler.add(stream("long", 1, prompt=100))
    assert chunks_of(step(scheduler)) == {"long": 32}
    scheduler.add(stream("other", 3, prompt=2))
    plan = step(scheduler)
    assert chunks_of(plan) == {"long": 4, "other": 2}
    assert plan.blocked == "threshold"


def test_a_prompt_that_ends_at_the_cap_is_not_called_held_back():
    scheduler = make_scheduler(long_prefill_token_threshold=4)
    scheduler.add(stream("stream"))
    step(scheduler)
    scheduler.add(stream("prompt", prompt=4))
    assert step(scheduler).blocked == ""


# -- prefix cache ---------------------------------------------------------------------------


def test_a_block_is_not_visible_before_it_is_computed():
    """A second request of the same step read keys and values that did not exist yet."""
    scheduler = make_scheduler(plan_depth=2, max_num_batched_tokens=8)
    prompt = list(range(100, 132))
    for name in ("a", "b"):
        scheduler.add(stream(name, 2, prompt=prompt))
    runner = KvRunner(scheduler)
    first, second = scheduler.plan(), scheduler.plan()
    runner.submit(first)
    runner.submit(second)
    assert [s.request.id for s in first.spans + second.spans] == ["a", "a"]
    assert not scheduler.kv._cache.published_blocks()
    scheduler.commit(runner.result(first.serial))
    assert len(scheduler.kv._cache.published_blocks()) == 2
    scheduler.commit(runner.result(second.serial))
    finish(scheduler, runner)


@pytest.mark.parametrize("boundary", range(1, 7))
@pytest.mark.parametrize("how", ["cancel", "fail", "preempt"])
def test_a_prompt_that_ends_at_a_chunk_boundary_leaves_only_good_blocks(boundary, how):
    """The tree kept pages of an aborted prompt, and every later hit was garbage."""
    scheduler = make_scheduler(max_num_batched_tokens=5, min_prefill_tokens=2)
    runner = KvRunner(scheduler)
    request = stream("gone", 4, prompt=30)
    scheduler.add(request)
    for _ in range(boundary - 1):
        step(scheduler, runner)
    plan = scheduler.plan()
    runner.submit(plan)
    if how == "cancel":
        scheduler.cancel("gone")
    result = runner.result(plan.serial)
    if how == "fail":
        assert scheduler.fail(plan.serial)[0].finish == "error"
    else:
        scheduler.commit(result)
    if how == "preempt":
        scheduler._preempt(request)
    runner.poison()
    scheduler.check()
    assert scheduler.stats().kv.held == 0
    again = stream("again", 4, prompt=list(request.token_ids[:30]))
    scheduler.add(again)
    finish(scheduler, runner)
    assert again.token_ids[30:] == alone(again)


def test_a_chunk_goes_on_when_its_block_was_published_by_somebody_else():
    """The tree refused the insert, the offset stood still, and the same chunk ran for ever."""
    scheduler = make_scheduler(max_num_batched_tokens=8, num_blocks=40)
    runner = KvRunner(scheduler)
    prompt = list(range(100, 132))
    young, old = stream("young", 2, prompt=prompt), stream("old", 2, prompt=prompt, priority=-1)
    scheduler.add(young)
    step(scheduler, runner)
    scheduler.add(old)  # comes before the one that leads, so it does not wait for it
    finish(scheduler, runner)
    assert young.token_ids == old.token_ids


def test_three_requests_with_one_prefix_compute_it_once():
    scheduler = make_scheduler()
    prompt = list(range(100, 112))
    for i in range(3):
        scheduler.add(stream(f"r{i}", 1, prompt=prompt))
    first, second = step(scheduler), step(scheduler)
    assert (chunks_of(first), first.blocked) == ({"r0": 12}, "prefix")
    assert chunks_of(second) == {"r1": 1, "r2": 1}


def test_a_full_hit_computes_one_token_again_and_no_more():
    scheduler = make_scheduler()
    runner = KvRunner(scheduler)
    for name in ("a", "b"):
        scheduler.add(stream(name, 1, prompt=list(range(100, 116))))
    finish(scheduler, runner)
    assert (runner.num_hits, runner.num_full_hits) == (1, 1)


def test_whole_prompts_with_full_hits_stay_within_the_budget():
    """A full hit was counted as nothing to compute, and the step grew past its budget."""
    scheduler = make_scheduler(policy="prefill-first", max_num_batched_tokens=8)
    runner = KvRunner(scheduler)
    cached = list(range(100, 108))
    scheduler.add(stream("first", 1, prompt=cached))
    finish(scheduler, runner)
    scheduler.add(stream("whole", 1, prompt=8))
    scheduler.add(stream("hit", 1, prompt=cached))
    assert step(scheduler, runner).num_tokens == 8


def test_a_full_hit_needs_no_free_block():
    """A prompt whose blocks are all there was kept out of a pool that was full of claims."""
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    runner = KvRunner(scheduler)
    prompt = list(range(100, 116))
    scheduler.add(stream("first", 1, prompt=prompt))
    scheduler.add(stream("again", 1, prompt=prompt, priority=1))
    plan = scheduler.plan()
    runner.submit(plan)
    scheduler.commit(runner.result(plan.serial))
    scheduler.add(stream("holder", 1, prompt=prompt))
    assert chunks_of(step(scheduler, runner)) == {"holder": 1, "again": 1}
