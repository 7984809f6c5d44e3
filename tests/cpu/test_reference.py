"""The reference runner's laws: chunks, neighbours, blocks and NaNs change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.errors import RunnerError
from evenflow.model.load import Model
from evenflow.runner.reference import QUERY_BLOCK, ReferenceRunner
from helpers.driving import cut, extend, plan_of, prefill, request_with_blocks
from helpers.tiny_model import tiny_model, weight

NUM_BLOCKS, BLOCK = 60, 4
TOLERANCE = 1e-4  # float32 sums in another order; the logits are of size 10
MODEL = tiny_model(7)


def make_runner(model=MODEL, **changes):
    options = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK} | changes
    return ReferenceRunner(model, **options)


def random_prompt(seed, length):
    return np.random.default_rng(seed).integers(0, MODEL.spec.vocab_size, length).tolist()


def random_blocks(seed):
    return np.random.default_rng(seed).permutation(NUM_BLOCKS).tolist()


def one_pass(prompt, model=MODEL):
    request = request_with_blocks("whole", prompt, range(NUM_BLOCKS))
    return prefill(make_runner(model), request, [len(prompt)])


@given(
    seed=st.integers(0, 2**31),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_any_boundaries_give_the_logits_of_one_pass(seed, chunks):
    prompt = random_prompt(seed, sum(chunks))
    request = request_with_blocks("r", prompt, random_blocks(seed))
    logits = prefill(make_runner(), request, chunks)
    assert np.abs(logits - one_pass(prompt)).max() <= TOLERANCE


@pytest.mark.parametrize("length", [1, QUERY_BLOCK - 1, QUERY_BLOCK, QUERY_BLOCK + 1, 200])
@pytest.mark.parametrize("chunk", [1, 16, QUERY_BLOCK + 1])
def test_lengths_around_the_query_block(length, chunk):
    prompt = random_prompt(length, length)
    request = request_with_blocks("r", prompt, random_blocks(length))
    logits = prefill(make_runner(), request, cut(length, chunk))
    assert np.abs(logits - one_pass(prompt)).max() <= TOLERANCE


@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"num_kv_heads": 4, "head_dim": 6}])
def test_neighbours_do_not_change_a_request(changes):
    """Three requests share steps that mix chunks and decodes; each is as when alone."""
    model = tiny_model(3, **changes)
    prompts = [random_prompt(i, n) for i, n in enumerate((9, 30, 1))]
    blocks = np.array_split(np.array(random_blocks(1)), 3)
    a, b, c = (
        request_with_blocks(name, prompt, mine.tolist())
        for name, prompt, mine in zip("abc", prompts, blocks, strict=True)
    )
    runner = make_runner(model)
    steps = [
        [(a, 0, 9, 1), (b, 0, 7, 0)],
        [(a, 9, 1, 1), (b, 7, 1, 0), (c, 0, 1, 1)],  # a one-token chunk between two decodes
        [(a, 10, 1, 1), (c, 1, 1, 1), (b, 8, 22, 1)],
        [(a, 11, 1, 1), (b, 30, 1, 1), (c, 2, 1, 1)],
    ]
    for serial, spans in enumerate(steps):
        result = runner.submit(plan_of(*spans, serial=serial)).result()
        assert result.serial == serial
        for (request, *_, num_logits), tokens in zip(spans, result.tokens, strict=True):
            assert len(tokens) == num_logits
            request.token_ids.extend(tokens)
    for request, prompt in ((a, prompts[0]), (b, prompts[1]), (c, prompts[2])):
        alone = request_with_blocks("alone", prompt, range(NUM_BLOCKS))
        other = make_runner(model)
        prefill(other, alone, [len(prompt)])
        alone.token_ids.append(int(other.last_logits[-1].argmax()))
        extend(other, [alone], request.num_output_tokens - 1)
        assert request.token_ids == alone.token_ids


def test_the_logits_of_a_mixed_step_are_those_of_each_span_alone():
    prompts = [random_prompt(50 + i, n) for i, n in enumerate((70, 5, 33))]
    tables = np.array_split(np.array(random_blocks(2)), 3)
    requests = [
        request_with_blocks(str(i), p, t.tolist())
        for i, (p, t) in enumerate(zip(prompts, tables, strict=True))
    ]
    runner = make_runner()
    runner.submit(plan_of(*((r, 0, r.num_tokens, r.num_tokens) for r in requests))).result()
    wanted = np.concatenate([one_pass(p) for p in prompts])
    assert np.abs(runner.last_logits - wanted).max() <= TOLERANCE


def test_seeded_draws_do_not_depend_on_chunks_or_neighbours():
    params = {"temperature": 1.3, "top_p": 0.95, "top_k": 40, "seed": 2**63 + 5}
    prompt = random_prompt(4, 21)
    alone = request_with_blocks("r", prompt, range(10), **params)
    runner = make_runner()
    alone.token_ids.extend(runner.submit(plan_of((alone, 0, 21, 1))).result().tokens[0])
    extend(runner, [alone], 15)

    mixed = request_with_blocks("r", prompt, range(30, 40), **params)
    other = request_with_blocks("o", random_prompt(5, 12), range(10), **params | {"seed": 1})
    runner = make_runner()
    runner.submit(plan_of((mixed, 0, 8, 0))).result()
    result = runner.submit(plan_of((other, 0, 12, 1), (mixed, 8, 13, 1))).result()
    other.token_ids.extend(result.tokens[0])
    mixed.token_ids.extend(result.tokens[1])
    extend(runner, [other, mixed], 15)
    assert mixed.token_ids == alone.token_ids
    assert other.token_ids[12:] != mixed.token_ids[21:]


def test_only_the_slots_of_the_span_are_written():
    request = request_with_blocks("r", random_prompt(6, 10), [5, 2, 9])
    runner = make_runner()
    runner.submit(plan_of((request, 0, 10, 1))).result()
    written = {5 * BLOCK + i for i in range(4)} | {2 * BLOCK + i for i in range(4)}
    written |= {9 * BLOCK, 9 * BLOCK + 1}
    for cache in (runner._keys, runner._values):
        slots = cache.reshape(*cache.shape[:2], NUM_BLOCKS * BLOCK, -1)
        finite = np.isfinite(slots).all(axis=(0, 1, 3))
        assert set(np.flatnonzero(finite).tolist()) == written
        assert np.isnan(np.delete(slots, sorted(written), axis=2)).all()


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e30])
def test_what_earlier_owners_left_in_a_block_is_never_read(garbage):
    prompt = random_prompt(8, 30)
    runner = make_runner()
    runner._keys[:], runner._values[:] = garbage, garbage
    request = request_with_blocks("r", prompt, random_blocks(8))
    logits = prefill(runner, request, [3, 1, 20, 6])
    assert np.abs(logits - one_pass(prompt)).max() <= TOLERANCE


def test_a_cached_position_is_computed_again_but_not_written():
    prompt = random_prompt(9, 16)
    runner = make_runner()
    request = request_with_blocks("r", prompt, [3, 1, 2, 0])
    wanted = prefill(runner, request, [16])[-1]
    before = runner._keys.copy()
    again = request_with_blocks("again", prompt, [3, 1, 2, 0])
    again.num_cached_tokens = 16  # a full hit: only the last position is computed
    result = runner.submit(plan_of((again, 15, 1, 1))).result()
    assert np.array_equal(runner._keys, before, equal_nan=True)
    assert np.abs(runner.last_logits[0] - wanted).max() <= TOLERANCE
    assert result.tokens == [(int(wanted.argmax()),)]


def poisoned(token, value=np.nan):
    """The model with one token whose embedding is not a number; the head is another matrix."""
    untied = tiny_model(7, tied_embeddings=False)
    embed = np.array(untied.tensors["embed"].float32())
    embed[token] = value
    tensors = untied.tensors | {"embed": weight("embed", embed)}
    return untied, Model(untied.spec, tensors, {}, untied.path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("chunks", [[100], [30, 70], [99, 1], [64, 36]])
def test_a_nan_position_changes_nothing_before_it_and_no_neighbour(chunks, value):
    healthy, model = poisoned(13, value)
    prompt = [t if t != 13 else 14 for t in random_prompt(10, 100)]
    prompt[80] = 13
    wanted = one_pass(prompt, healthy)
    runner = make_runner(model)
    request = request_with_blocks("r", prompt, range(30))
    neighbour = request_with_blocks("n", prompt[:20], range(30, 40))
    rows, start = [], 0
    for length in chunks:
        plan = plan_of((request, start, length, length), (neighbour, 0, 20, 20))
        handle = runner.submit(plan)
        failed = handle.result().failed
        if start + length > 80:
            assert list(failed) == [0]  # the neighbour's tokens are drawn
            with pytest.raises(RunnerError, match=f"request r: no .* {max(81, start + 1)}:"):
                raise failed[0]
        rows.append(runner.last_logits[:length])
        assert np.abs(runner.last_logits[length:] - wanted[:20]).max() <= TOLERANCE
        start += length
    logits = np.concatenate(rows)
    assert np.abs(logits[:80] - wanted[:80]).max() <= TOLERANCE
    assert np.isnan(logits[80:]).all()


def test_the_runner_is_usable_after_a_request_has_failed():
    _, model = poisoned(13)
    runner = make_runner(model)
    bad = request_with_blocks("bad", [1, 2, 13], [0])
    result = runner.submit(plan_of((bad, 0, 3, 1))).result()
    assert result.tokens == [()]
    assert "request bad" in result.failed[0].message
    good = request_with_blocks("good", [1, 2, 3], [0])  # the block now holds NaN
    assert np.isfinite(prefill(runner, good, [3])).all()


def test_a_middle_chunk_yields_no_token_and_no_logits():
    runner = make_runner()
    request = request_with_blocks("r", random_prompt(11, 8), range(2))
    result = runner.submit(plan_of((request, 0, 5, 0))).result()
    assert result.tokens == [()]
    assert runner.last_logits.shape == (0, MODEL.spec.vocab_size)


def test_min_tokens_bans_the_stop_token_until_then():
    free = request_with_blocks("free", [5], range(10), temperature=5.0, seed=1)
    held = request_with_blocks("held", [5], range(10, 20), temperature=5.0, seed=1, min_tokens=30)
    for request in (free, held):
        extend(make_runner(), [request], 30)
    assert 2 in free.token_ids[1:]  # the factory's stop id: this seed draws it
    assert 2 not in held.token_ids[1:]


def test_the_time_of_a_step_is_the_clocks():
    ticks = iter([10.0, 12.5])
    runner = make_runner(clock=lambda: next(ticks))
    request = request_with_blocks("r", [1, 2], [0])
    assert runner.submit(plan_of((request, 0, 2, 1))).result().seconds == 2.5


def test_a_closed_runner_refuses_steps():
    runner = make_runner()
    runner.close()
    request = request_with_blocks("r", [1, 2], [0])
    with pytest.raises(RunnerError, match="closed"):
        runner.submit(plan_of((request, 0, 2, 1)))


def test_scores_of_a_long_prompt_are_never_held_all_at_once():
    length = 2000
    runner = make_runner(num_blocks=length // BLOCK)
    request = request_with_blocks("r", random_prompt(12, length), range(length // BLOCK))
    prefill(runner, request, [length], all_logits=False)
    spec = MODEL.spec
    assert runner._scratch["scores"].size <= spec.num_heads * QUERY_BLOCK * length
