"""Every length around an edge: chunks, blocks, budgets, pools that hold one request."""

from __future__ import annotations

import random

import pytest

from evenflow.errors import InvalidRequestError
from helpers.scheduling import (
    KvRunner,
    OracleDrafter,
    alone,
    chunks_of,
    decodes_of,
    make_request,
    make_scheduler,
    step,
)

NEVER_STOPS = frozenset()


def run(scheduler, *requests, runner=None):
    """Run requests on simulated KV, that of an earlier run if given; returns the plans."""
    for request in requests:
        scheduler.add(request)
    runner = runner or KvRunner(scheduler)
    plans = []
    while (plan := scheduler.plan()) is not None:
        plans.append(plan)
        scheduler.commit(runner.run(plan))
        scheduler.check()
    assert not scheduler.has_unfinished
    for request in requests:
        assert request.token_ids[request.num_prompt_tokens :] == alone(request)
    return plans


def lengths_around(budget):
    """Every prompt length within 3 of 1, 2 and 3 chunks."""
    around = {k * budget + delta for k in (1, 2, 3) for delta in range(-3, 4)}
    return sorted(length for length in around | {1} if length >= 1)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 8, 16, 31])
def test_a_prompt_alone_is_cut_into_whole_budgets(budget, block_size):
    for length in lengths_around(budget):
        scheduler = make_scheduler(
            max_num_batched_tokens=budget,
            min_prefill_tokens=budget // 2,
            block_size=block_size,
            num_blocks=-(-(length + 4) // block_size),
        )
        plans = run(scheduler, make_request("r", length, max_tokens=3, stop_ids=NEVER_STOPS))
        chunks = [chunks_of(plan)["r"] for plan in plans if not plan.num_decodes]
        assert chunks == [budget] * (length // budget) + [length % budget] * (length % budget > 0)
        logits = [plan.spans[0].num_logits for plan in plans]
        assert logits == [0] * (len(chunks) - 1) + [1, 1, 1]


@pytest.mark.parametrize("budget", [2, 5, 16])
def test_a_prompt_beside_decodes_and_beside_its_twin(budget):
    for length in lengths_around(budget):
        scheduler = make_scheduler(max_num_batched_tokens=budget, min_prefill_tokens=1)
        run(
            scheduler,
            make_request("a", 1, max_tokens=12),
            make_request("b", length, max_tokens=5),
            make_request("c", list(make_request("b", length).token_ids), max_tokens=3),
        )


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_prompt_of_exactly_full_blocks_hits_fully(length):
    scheduler = make_scheduler(block_size=4)
    runner = KvRunner(scheduler)
    prompt = list(range(100, 100 + length))
    run(scheduler, make_request("first", prompt, max_tokens=1), runner=runner)
    again = make_request("again", prompt, max_tokens=3, stop_ids=NEVER_STOPS)
    plans = run(scheduler, again, runner=runner)
    assert [plan.num_tokens for plan in plans] == [1, 1, 1]
    assert again.num_recomputed_tokens == 0


@pytest.mark.parametrize("length", range(1, 14))
def test_a_hit_of_every_length(length):
    scheduler = make_scheduler(block_size=4, max_num_batched_tokens=3, min_prefill_tokens=1)
    runner = KvRunner(scheduler)
    document = list(range(100, 113))
    run(scheduler, make_request("first", document, max_tokens=1), runner=runner)
    tail = [7, 8, 9]
    again = make_request("again", document[:length] + tail, max_tokens=2)
    plans = run(scheduler, again, runner=runner)
    computed = sum(sum(chunks_of(plan).values()) for plan in plans)
    found = length if length == len(document) else length // 4 * 4  # its end is kept as well
    assert computed == length + len(tail) - found


@pytest.mark.parametrize("num_decodes", [5, 8, 9, 17])
def test_more_decodes_than_budget(num_decodes):
    scheduler = make_scheduler(max_num_batched_tokens=4, min_prefill_tokens=1, max_num_seqs=32)
    requests = [
        make_request(f"r{i}", 1, max_tokens=6, stop_ids=NEVER_STOPS) for i in range(num_decodes)
    ]
    plans = run(scheduler, *requests)
    assert max(plan.num_tokens for plan in plans) == 4
    assert sum(plan.num_decodes for plan in plans) == num_decodes * 5


def test_a_budget_of_two_lets_prompts_and_decodes_go_on():
    scheduler = make_scheduler(max_num_batched_tokens=2, min_prefill_tokens=1)
    stream = make_request("stream", 1, max_tokens=20, stop_ids=NEVER_STOPS)
    plans = run(scheduler, stream, make_request("prompt", 10, max_tokens=1))
    assert [decodes_of(plan) for plan in plans[1:]] == [["stream"]] * 19


def test_a_floor_above_the_budget_still_leaves_a_decode_its_turn():
    scheduler = make_scheduler(max_num_batched_tokens=2, min_prefill_tokens=16)
    stream = make_request("stream", 1, max_tokens=20, stop_ids=NEVER_STOPS)
    plans = run(scheduler, stream, make_request("prompt", 10, max_tokens=1))
    assert [decodes_of(plan) for plan in plans[1:]] == [["stream"]] * 19


def test_a_floor_of_zero_lets_decodes_fill_the_step():
    scheduler = make_scheduler(max_num_batched_tokens=2, min_prefill_tokens=0)
    scheduler.add(make_request("a", 1, max_tokens=4, stop_ids=NEVER_STOPS))
    scheduler.add(make_request("b", 1, max_tokens=4, stop_ids=NEVER_STOPS))
    plans = run(scheduler, make_request("prompt", 4, max_tokens=1))
    assert [plan.num_decodes for plan in plans[:4]] == [0, 2, 2, 2]
    assert plans[1].blocked == "budget"


@pytest.mark.parametrize("policy", ["chunked", "prefill-first", "decode-first"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_pool_that_holds_one_request_serves_one_after_the_other(policy, depth):
    scheduler = make_scheduler(num_blocks=4, block_size=4, policy=policy, plan_depth=depth)
    requests = [make_request(f"r{i}", 12, max_tokens=5, stop_ids=NEVER_STOPS) for i in range(3)]
    run(scheduler, *requests)


@pytest.mark.parametrize("prompt", [1, 15, 16])
def test_a_pool_is_filled_to_the_last_slot(prompt):
    scheduler = make_scheduler(num_blocks=4, block_size=4)
    request = make_request("r", prompt, max_tokens=17 - prompt, stop_ids=NEVER_STOPS)
    run(scheduler, request)
    too_long = make_request("s", prompt, max_tokens=18 - prompt)
    with pytest.raises(InvalidRequestError, match=r"need 17 KV slots, but the pool holds 16"):
        scheduler.add(too_long)
    assert not scheduler.has_unfinished


@pytest.mark.parametrize("length", [1, 4, 5, 40])
def test_max_tokens_one_ends_with_the_prompt(length):
    plans = run(make_scheduler(), make_request("r", length, max_tokens=1))
    assert sum(plan.num_decodes for plan in plans) == 0


def test_one_lane_serves_prompts_in_order():
    scheduler = make_scheduler(max_partial_prefills=1, max_num_batched_tokens=8)
    plans = run(scheduler, *[make_request(f"r{i}", 20, max_tokens=1) for i in range(3)])
    order = [name for plan in plans for name in chunks_of(plan)]
    assert order == sorted(order)
    assert [plan.num_tokens for plan in plans] == [8] * 7 + [4]


def test_the_context_of_one_token_prompts():
    requests = [make_request(f"r{i}", [5], max_tokens=4) for i in range(5)]
    run(make_scheduler(block_size=1), *requests)


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 5])
@pytest.mark.parametrize("budget", [4, 7])
def test_every_prompt_length_beside_every_number_of_drafts(budget, num_drafts):
    """A chunk as long as a decode with its drafts was once replayed as one, and gave garbage."""
    for length in range(1, 2 * budget + num_drafts + 3):
        scheduler = make_scheduler(
            max_num_batched_tokens=budget,
            min_prefill_tokens=budget // 2,
            num_speculative_tokens=num_drafts,
        )
        scheduler._speculation._drafter = OracleDrafter(random.Random(length))
        streams = [make_request(f"s{i}", 2, max_tokens=30, stop_ids=NEVER_STOPS) for i in range(2)]
        late = make_request("late", length, max_tokens=12, stop_ids=NEVER_STOPS)
        runner = KvRunner(scheduler)
        for request in streams:
            scheduler.add(request)
        for _ in range(3):
            step(scheduler, runner)
        plans = run(scheduler, late, runner=runner)
        chunks = [s for p in plans for s in p.spans[p.num_decodes :] if s.request is late]
        assert sum(s.length for s in chunks) == length
        assert [s.num_logits for s in chunks] == [0] * (len(chunks) - 1) + [1]
        for request in streams:
            assert request.token_ids[request.num_prompt_tokens :] == alone(request)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", range(1, 8))
def test_a_prompt_that_is_left_after_any_chunk_leaves_only_good_blocks(num_steps, depth):
    """Its computed blocks once stayed in the cache after they were given back and used again."""
    document = list(range(100, 131))
    scheduler = make_scheduler(
        max_num_batched_tokens=5, block_size=4, num_blocks=12, plan_depth=depth
    )
    runner = KvRunner(scheduler)
    scheduler.add(make_request("left", document, max_tokens=4))
    plans = []
    for _ in range(num_steps):
        if (plan := scheduler.plan()) is not None:
            runner.submit(plan)
            plans.append(plan)
        if len(plans) == depth:
            scheduler.commit(runner.result(plans.pop(0).serial))
    scheduler.cancel("left")
    for plan in plans:
        scheduler.commit(runner.result(plan.serial))
    scheduler.check()
    assert scheduler.kv.usage().held == 0
    # others take the blocks that are free, and then some of those that are cached
    run(scheduler, make_request("other", 24, max_tokens=2), runner=runner)
    again = make_request("again", document, max_tokens=4)
    run(scheduler, again, runner=runner)
    runner.poison()
