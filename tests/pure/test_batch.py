"""A plan as flat arrays, on plans that the real scheduler made."""

from __future__ import annotations

import dataclasses
import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.runner.batch import SamplingMemory, build_batch
from helpers.schedule_world import Watcher, World
from helpers.scheduling import FakeRunner, make_request, make_scheduler

SIZE = 4


def first_plans(scheduler, num_plans, *requests):
    """The first plans of a scheduler and the batches they make."""
    for request in requests:
        scheduler.add(request)
    made = []
    for _ in range(num_plans):
        plan = scheduler.plan()
        made.append((plan, build_batch(plan, SIZE)))
        scheduler.commit(FakeRunner().run(plan))
    return made


def test_a_chunked_prompt_step_by_step():
    request = make_request("r", list(range(100, 106)), max_tokens=3)
    scheduler = make_scheduler(max_num_batched_tokens=4, block_size=SIZE)
    (_, first), (_, last), (_, decode) = first_plans(scheduler, 3, request)
    blocks = request.block_ids

    assert first.token_ids.tolist() == [100, 101, 102, 103]
    assert first.positions.tolist() == [0, 1, 2, 3]
    assert first.slots.tolist() == [blocks[0] * SIZE + i for i in range(4)]
    assert first.span_offsets.tolist() == [0, 4]
    assert first.context_lens.tolist() == [4]
    assert first.block_tables.tolist() == blocks[:1]
    assert first.logit_rows.tolist() == first.row_spans.tolist() == []
    assert first.sampling.temperatures.shape == (0,)
    assert first.sampling.banned_offsets.tolist() == [0]

    assert last.token_ids.tolist() == [104, 105]
    assert last.positions.tolist() == [4, 5]
    assert last.slots.tolist() == [blocks[1] * SIZE, blocks[1] * SIZE + 1]
    assert last.block_tables.tolist() == blocks[:2]
    assert (last.logit_rows.tolist(), last.row_spans.tolist()) == ([1], [0])
    assert last.sampling.positions.tolist() == [6]

    assert decode.token_ids.tolist() == [request.token_ids[6]]
    assert decode.positions.tolist() == [6]
    assert decode.slots.tolist() == [blocks[1] * SIZE + 2]
    assert decode.context_lens.tolist() == [7]
    assert decode.sampling.positions.tolist() == [7]


def test_decodes_and_chunks_of_one_step_lie_side_by_side():
    scheduler = make_scheduler(max_num_batched_tokens=8, block_size=SIZE)
    scheduler.add(make_request("a", 3, max_tokens=9, temperature=0.5, top_k=7, seed=11))
    scheduler.add(make_request("b", 2, max_tokens=9, top_p=0.25, min_p=0.125, seed=2**64 - 1))
    scheduler.commit(FakeRunner().run(scheduler.plan()))
    ((plan, batch),) = first_plans(scheduler, 1, make_request("c", 20, max_tokens=1))
    a, b, c = (span.request for span in plan.spans)
    assert batch.span_offsets.tolist() == [0, 1, 2, 8]
    assert batch.positions.tolist() == [3, 2, 0, 1, 2, 3, 4, 5]
    assert batch.context_lens.tolist() == [4, 3, 6]
    assert batch.block_offsets.tolist() == [0, 1, 2, 4]
    assert batch.block_tables.tolist() == a.block_ids + b.block_ids + c.block_ids[:2]
    assert (batch.logit_rows.tolist(), batch.row_spans.tolist()) == ([0, 1], [0, 1])
    sampling = batch.sampling
    assert sampling.temperatures.tolist() == [0.5, 1.0]
    assert sampling.top_ks.tolist() == [7, 0]
    assert sampling.top_ps.tolist() == [1.0, 0.25]
    assert sampling.min_ps.tolist() == [0.0, 0.125]
    assert sampling.seeds.tolist() == [11, 2**64 - 1]
    assert sampling.positions.tolist() == [4, 3]


def test_the_one_token_of_a_full_hit_is_computed_and_not_written():
    scheduler = make_scheduler(block_size=SIZE)
    prompt = list(range(100, 108))
    first_plans(scheduler, 1, make_request("first", prompt, max_tokens=1))
    again = make_request("again", prompt, max_tokens=4)
    (_, hit), (_, decode) = first_plans(scheduler, 2, again)
    assert hit.token_ids.tolist() == [107]
    assert hit.positions.tolist() == [7]
    assert hit.slots.tolist() == [-1]
    assert hit.context_lens.tolist() == [8]
    assert hit.block_tables.tolist() == again.block_ids[:2]
    assert decode.slots.tolist() == [again.block_ids[2] * SIZE]


def test_stop_ids_are_banned_until_min_tokens_were_drawn():
    plain = make_request("plain", 2, max_tokens=4, stop_ids=frozenset({9}))
    late = make_request("late", 2, max_tokens=4, min_tokens=2, stop_ids=frozenset({9, 3, 5}))
    scheduler = make_scheduler(block_size=SIZE)
    banned = []
    for plan, batch in first_plans(scheduler, 3, plain, late):
        assert [span.request.id for span in plan.spans] == ["plain", "late"]
        offsets, ids = batch.sampling.banned_offsets.tolist(), batch.sampling.banned_ids.tolist()
        banned.append([ids[first:last] for first, last in itertools.pairwise(offsets)])
    assert banned == [[[], [3, 5, 9]], [[], [3, 5, 9]], [[], []]]


def test_after_a_preemption_the_same_position_keys_the_same_draw():
    request = make_request("r", 5, max_tokens=9, min_tokens=6, seed=3, stop_ids=frozenset({1}))
    scheduler = make_scheduler(block_size=SIZE)
    first_plans(scheduler, 3, request)
    scheduler._preempt(request)
    ((plan, batch),) = first_plans(scheduler, 1)
    assert plan.spans[0].start + plan.spans[0].length == 8
    assert batch.sampling.positions.tolist() == [8]
    assert batch.sampling.banned_ids.tolist() == [1]  # three drawn so far, of six


class BatchesAreRight(Watcher):
    """Every array against the slow way of saying the same."""

    num_kept = 0

    def __init__(self, world) -> None:
        super().__init__(world)
        self.memory = SamplingMemory()

    def planned(self, plan):
        size = self.world.options.block_size
        batch = build_batch(plan, size)
        token_ids, positions, slots, tables, rows, owners = [], [], [], [], [], []
        for index, span in enumerate(plan.spans):
            request = span.request
            for position in range(span.start, span.start + span.length):
                token_ids.append((request.token_ids + request.draft_ids)[position])
                positions.append(position)
                slot = request.block_ids[position // size] * size + position % size
                slots.append(-1 if position < request.num_cached_tokens else slot)
            tables += request.block_ids[: -(-(span.start + span.length) // size)]
            rows += range(len(positions) - span.num_logits, len(positions))
            owners += [index] * span.num_logits
        assert batch.token_ids.tolist() == token_ids
        assert batch.positions.tolist() == positions
        assert batch.slots.tolist() == slots
        assert batch.block_tables.tolist() == tables
        assert batch.logit_rows.tolist() == rows
        assert batch.row_spans.tolist() == owners
        assert batch.context_lens.tolist() == [s.start + s.length for s in plan.spans]
        assert (
            batch.span_offsets.tolist() == np.cumsum([0] + [s.length for s in plan.spans]).tolist()
        )
        assert batch.block_offsets[-1] == len(tables)
        written = [slot for slot in slots if slot >= 0]
        assert len(set(written)) == len(written), "two tokens go to one slot"
        self.check_sampling(plan, batch, positions)
        before = self.memory._last
        kept = build_batch(plan, size, self.memory).sampling
        BatchesAreRight.num_kept += before is not None and kept.seeds is before.seeds
        for field in dataclasses.fields(kept):
            ours, fresh = getattr(kept, field.name), getattr(batch.sampling, field.name)
            if field.name != "extras":
                assert ours.dtype == fresh.dtype
                assert ours.tolist() == fresh.tolist(), field.name
        assert (kept.extras is None) == (batch.sampling.extras is None)

    def check_sampling(self, plan, batch, positions):
        sampling = batch.sampling
        assert sampling.positions.tolist() == [positions[r] + 1 for r in batch.logit_rows]
        offsets = sampling.banned_offsets.tolist()
        for row, owner in enumerate(batch.row_spans):
            request = plan.spans[owner].request
            drawn = positions[batch.logit_rows[row]] + 1 - request.num_prompt_tokens
            few = drawn < request.params.min_tokens
            banned = sampling.banned_ids[offsets[row] : offsets[row + 1]].tolist()
            assert banned == (sorted(request.stop_ids) if few else [])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_batches_of_every_world_say_what_their_plans_say(seed):
    World(Random(seed), [BatchesAreRight]).play(50)


def test_how_rows_draw_is_kept_while_the_same_plain_streams_decode():
    BatchesAreRight.num_kept = 0
    for seed in range(20):
        World(Random(seed), [BatchesAreRight]).play(50)
    assert BatchesAreRight.num_kept > 20


@pytest.mark.parametrize("name", ["token_ids", "positions", "span_offsets", "logit_rows"])
def test_index_arrays_are_32_bits_wide(name):
    scheduler = make_scheduler(block_size=SIZE)
    ((_, batch),) = first_plans(scheduler, 1, make_request("r", 3))
    assert getattr(batch, name).dtype == np.int32
    assert batch.slots.dtype == np.int64
    assert batch.sampling.seeds.dtype == np.uint64
