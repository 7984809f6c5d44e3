"""What holds in every world: random options, arrivals, cancellations, failures, preemptions.

A failing seed is a complete recipe: `World(Random(seed), [TheLaw]).play(num_scenes)`.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import schedule_laws as laws
from helpers.schedule_world import World

ROOMY = {"num_blocks": 400, "block_size": 4}
TIGHT = {"num_blocks": 8, "block_size": 2, "policy": "chunked"}


def in_every_world(test):
    """Run a test with many seeds."""
    seeds = st.integers(0, 2**32 - 1)
    return settings(max_examples=60, deadline=None)(given(seed=seeds)(test))


@in_every_world
def test_blocks_add_up_after_every_call_and_all_are_idle_at_the_end(seed):
    World(Random(seed), [laws.BlocksAddUp]).play(80)


@in_every_world
def test_every_request_ends_in_exactly_one_terminal_event(seed):
    World(Random(seed), [laws.OneEnd]).play(80)


@in_every_world
def test_tokens_are_those_of_running_alone(seed):
    World(Random(seed), [laws.TokensAsAlone]).play(80)


@in_every_world
def test_tokens_are_those_of_running_alone_when_blocks_are_short(seed):
    World(Random(seed), [laws.TokensAsAlone], **TIGHT).play(80)


@in_every_world
def test_a_runner_never_reads_wrong_kv_and_never_writes_a_shared_block(seed):
    World(Random(seed), enable_prefix_caching=True).play(120)  # the runner itself looks


@in_every_world
def test_plans_put_decodes_first_stay_within_the_budget_and_never_change(seed):
    World(Random(seed), [laws.PlanShape]).play(80)


@in_every_world
def test_no_decode_misses_a_step_that_has_room_for_it(seed):
    World(Random(seed), [laws.NoDecodeMisses], policy="chunked").play(80)


@in_every_world
def test_decodes_that_do_not_fit_take_turns_within_the_stated_gap(seed):
    options = {"max_num_batched_tokens": 6, "min_prefill_tokens": 3, "max_num_seqs": 16}
    World(Random(seed), [laws.NoDecodeMisses], policy="chunked", **options, **ROOMY).play(80)


@in_every_world
def test_prompts_get_their_floor_while_one_of_them_can_take_it(seed):
    World(Random(seed), [laws.PromptsGetTheirFloor], policy="chunked").play(80)


@in_every_world
def test_the_oldest_prompt_gets_half_of_the_room(seed):
    World(Random(seed), [laws.TheOldestGetsHalf], policy="chunked").play(80)


@in_every_world
def test_a_step_without_chunks_says_why_and_the_reason_is_true(seed):
    World(Random(seed), [laws.WorkIsConserved]).play(80)


@in_every_world
def test_drafts_delay_nobody_and_give_back_what_they_took(seed):
    World(Random(seed), [laws.DraftsDelayNobody], num_speculative_tokens=4).play(80)


@in_every_world
def test_drafts_are_no_reason_to_give_way_when_blocks_are_short(seed):
    watchers = [laws.DraftsDelayNobody, laws.GivingWay, laws.TokensAsAlone, laws.BlocksAddUp]
    World(Random(seed), watchers, num_speculative_tokens=7, **TIGHT).play(80)


@in_every_world
def test_skips_preemptions_and_steps_stay_within_their_numbers(seed):
    World(Random(seed), [laws.GivingWay], **TIGHT).play(100)


@in_every_world
def test_cancelling_changes_nobody_elses_tokens_at_any_depth(seed):
    world = World(Random(seed), [laws.TokensAsAlone, laws.BlocksAddUp], plan_depth=3)
    world.cancel_rate = 0.3
    world.play(80)


@in_every_world
def test_failed_steps_end_their_requests_and_nobody_else(seed):
    world = World(Random(seed), [laws.TokensAsAlone, laws.BlocksAddUp, laws.OneEnd])
    world.fail_rate = 0.15
    world.play(80)


def test_the_worlds_are_worth_watching():
    """The random worlds reach what the laws are about; else the laws would say nothing."""
    seen = dict.fromkeys(
        (
            "preempted",
            "evicted",
            "hits",
            "tails",
            "full hits",
            "turns",
            "hard",
            "shares",
            "right",
            "wrong",
        ),
        0,
    )
    for seed in range(80):
        world = World(Random(seed), [laws.NoDecodeMisses, laws.TheOldestGetsHalf], policy="chunked")
        cache = world.scheduler.kv._cache
        world.play(80)
        requests = world.requests.values()
        seen["preempted"] += sum(r.num_preemptions for r in requests)
        seen["hard"] += sum(
            r.num_preemptions >= world.options.max_preemptions > 0 for r in requests
        )
        seen["right"] += world.runner.num_right
        seen["wrong"] += world.runner.num_wrong
        seen["turns"] += world.watchers[0].num_turns
        seen["shares"] += world.watchers[1].num_shares
        if cache is not None:
            seen["evicted"] += cache._last - len(cache._block_of)
            seen["hits"] += world.runner.num_hits
            seen["tails"] += world.runner.num_tails
            seen["full hits"] += world.runner.num_full_hits
    assert min(seen.values()) >= 10, seen


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_million_steps_keep_every_law(part):
    """20 parts of 50,000 steps: every third with a tight pool, every third with a roomy one."""
    num_steps, seed = 0, part * 1_000_000
    while num_steps < 50_000:
        fixed = ({}, TIGHT, ROOMY)[seed % 3]
        world = World(Random(seed), laws.EVERY_LAW, **fixed)
        num_steps += world.play(400).num_plans
        seed += 1
