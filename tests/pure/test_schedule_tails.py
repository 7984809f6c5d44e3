"""The end of a sequence is kept for whoever goes on with it, and for nobody else."""

from __future__ import annotations

import pytest

from evenflow.schedule.tails import MAX_TAILS, Tails
from helpers.scheduling import KvRunner, chunks_of, finish, make_request, make_scheduler, stream


def cached_of(scheduler, runner, *requests):
    """What each request finds, when they come one after the other and run to their end."""
    found = []
    for request in requests:
        scheduler.add(request)
        plan = scheduler.plan()
        found.append(request.num_cached_tokens)
        scheduler.commit(runner.run(plan))
        runner.poison()
        finish(scheduler, runner)
        runner.poison()
    return found


def world(**options):
    scheduler = make_scheduler(**({"block_size": 8} | options))
    return scheduler, KvRunner(scheduler)


def test_the_next_turn_computes_its_own_tokens_and_the_last_one_drawn():
    scheduler, runner = world()
    first = stream("first", prompt=list(range(100, 121)), max_tokens=8)
    assert cached_of(scheduler, runner, first) == [0]
    history = list(first.token_ids)  # 29 tokens; the last was drawn and never computed
    second = stream("second", prompt=[*history, 7, 8, 9], max_tokens=1)
    scheduler.add(second)
    plan = scheduler.plan()
    assert second.num_cached_tokens == 28
    assert chunks_of(plan) == {"second": 4}
    scheduler.commit(runner.run(plan))
    finish(scheduler, runner)


def test_a_history_that_differs_at_its_end_uses_what_agrees():
    scheduler, runner = world()
    first = stream("first", prompt=list(range(100, 121)), max_tokens=8)
    cached_of(scheduler, runner, first)
    history = [*first.token_ids[:27], 5, 6, 7]
    assert cached_of(scheduler, runner, stream("second", prompt=history, max_tokens=1)) == [27]


def test_a_request_that_agrees_in_little_leaves_the_tail_to_its_own():
    scheduler, runner = world()
    first = stream("first", prompt=list(range(100, 122)), max_tokens=1)
    cached_of(scheduler, runner, first)  # 22 tokens computed: the tail holds 6
    other = stream("other", prompt=[*range(100, 118), 1, 2, 3], max_tokens=1)
    again = stream("again", prompt=[*range(100, 122), 9], max_tokens=1)
    assert cached_of(scheduler, runner, other, again) == [16, 22]


def test_whoever_comes_second_computes_the_tail_itself():
    scheduler, runner = world(max_num_batched_tokens=64)
    document = list(range(100, 122))
    cached_of(scheduler, runner, stream("first", prompt=document, max_tokens=1))
    both = [stream(f"r{i}", prompt=[*document, i], max_tokens=9) for i in range(2)]
    for request in both:
        scheduler.add(request)
    scheduler.commit(runner.run(scheduler.plan()))
    assert [r.num_cached_tokens for r in both] == [22, 16]
    finish(scheduler, runner)
    scheduler.check()


def test_a_full_hit_of_a_tail_computes_its_last_token_and_does_not_write_it():
    scheduler, runner = world()
    document = list(range(100, 122))
    first, again = (stream(n, prompt=document, max_tokens=1) for n in ("first", "again"))
    assert cached_of(scheduler, runner, first, again) == [0, 22]
    assert again.num_computed_tokens == 22
    assert runner.num_full_hits == 1


def test_a_preempted_request_goes_on_where_it_was():
    scheduler, runner = world()
    request = stream("r", prompt=list(range(100, 121)), max_tokens=8)
    scheduler.add(request)
    for _ in range(3):
        scheduler.commit(runner.run(scheduler.plan()))
    scheduler._preempt(request)
    runner.poison()
    plan = scheduler.plan()
    assert request.num_cached_tokens == 23
    assert chunks_of(plan) == {"r": 1}
    assert request.num_recomputed_tokens == 0
    scheduler.commit(runner.run(plan))
    finish(scheduler, runner)


def test_what_a_cancelled_request_had_in_flight_is_no_part_of_its_tail():
    scheduler, runner = world(max_num_batched_tokens=10)
    request = stream("r", prompt=list(range(100, 121)), max_tokens=8)
    scheduler.add(request)
    scheduler.commit(runner.run(scheduler.plan()))
    plan = scheduler.plan()  # positions 10 to 19
    runner.submit(plan)
    scheduler.cancel("r")
    scheduler.commit(runner.result(plan.serial))
    runner.poison()
    again = stream("again", prompt=list(range(100, 121)), max_tokens=1)
    assert cached_of(scheduler, runner, again) == [10]


def test_tails_are_evicted_like_other_cached_blocks_and_none_is_kept_without_a_cache():
    scheduler, runner = world(num_blocks=6)
    cached_of(scheduler, runner, stream("first", prompt=list(range(100, 122)), max_tokens=1))
    assert len(scheduler.kv._tails) == 1
    cached_of(scheduler, runner, stream("big", prompt=list(range(48)), max_tokens=1))
    assert len(scheduler.kv._tails) == 0
    assert scheduler.kv.usage().free + scheduler.kv.usage().cached == 6
    scheduler, runner = world(enable_prefix_caching=False)
    cached_of(scheduler, runner, stream("first", prompt=list(range(100, 122)), max_tokens=1))
    assert len(scheduler.kv._tails) == 0
    assert scheduler.kv.usage().free == scheduler.kv.num_blocks


def test_the_oldest_of_many_tails_makes_room_and_a_double_is_not_kept():
    tails = Tails()
    for block in range(MAX_TAILS):
        assert tails.add(3, (block, 1), block) is None
    assert tails.add(3, (2, 1), 50) == 50
    assert tails.add(3, (99, 1), 51) == 0
    assert 0 not in tails
    assert len(tails) == MAX_TAILS
    assert tails.find(3, [7, 7, 99, 1, 5], 2, 5) == (51, 2)
    assert tails.find(4, [99, 1], 0, 2) is None
    assert tails.remove(51)
    assert not tails.remove(51)


@pytest.mark.parametrize("length", range(1, 18))
def test_a_next_turn_of_every_length(length):
    scheduler, runner = world(block_size=4)
    first = make_request("first", list(range(100, 100 + length)), max_tokens=1)
    second = make_request("second", [*range(100, 100 + length), 7, 8], max_tokens=2)
    assert cached_of(scheduler, runner, first, second) == [0, length]
