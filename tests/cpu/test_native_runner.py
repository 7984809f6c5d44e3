"""The native runner: logits are the same bits however a step is cut, packed, or threaded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow import _native
from evenflow.runner.adjust import report
from evenflow.runner.batch import build_batch
from evenflow.runner.reference import ReferenceRunner
from evenflow.runner.sampler import sample
from helpers.driving import cut, extend, plan_of, prefill, request_with_blocks
from helpers.native_models import FORMATS, native_runner, prompt, stored_model

ISAS = _native.runnable_isas()
ALL_FORMATS = pytest.mark.parametrize("format_name", FORMATS)
ALL_ISAS = pytest.mark.parametrize("isa", ISAS)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


def request(tokens, first_block=0, request_id="r", **params):
    blocks = range(first_block, first_block + len(tokens) // 64 + 2)
    return request_with_blocks(request_id, tokens, blocks, **params)


def one_pass(runner, tokens, first_block=0) -> np.ndarray:
    return prefill(runner, request(tokens, first_block), [len(tokens)])


@ALL_ISAS
@ALL_FORMATS
def test_chunks_give_the_bits_of_one_pass(isa, format_name):
    runner = native_runner(format_name, isa=isa)
    tokens = prompt(1, 200)
    whole = one_pass(runner, tokens)
    assert np.isfinite(whole).all()
    for i, size in enumerate([1, 5, 37, 64, 100]):
        runner.poison_kv()
        chunked = prefill(runner, request(tokens, first_block=5 * i), cut(200, size))
        assert np.array_equal(bits(chunked), bits(whole)), f"chunks of {size}"


@ALL_ISAS
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000])
def test_every_cut_of_the_keys(isa, length):
    runner = native_runner("bf16", isa=isa)
    tokens = prompt(2, length)
    whole = one_pass(runner, tokens)
    runner.poison_kv()
    # the last tokens alone: a decode must see what the chunk saw
    tail = min(3, length - 1)
    chunks = [length - tail, *[1] * tail]
    last = prefill(runner, request(tokens, first_block=20), chunks)
    assert np.array_equal(bits(last), bits(whole))


@ALL_FORMATS
def test_thread_count_does_not_matter(format_name):
    tokens = prompt(3, 150)
    outcomes = []
    for threads in (1, 2, 3, 7):
        runner = native_runner(format_name, num_threads=threads)
        assert runner.num_threads == threads
        outcomes.append(prefill(runner, request(tokens), [100, 49, 1]))
        runner.close()
    for other in outcomes[1:]:
        assert np.array_equal(bits(other), bits(outcomes[0]))


@ALL_ISAS
@ALL_FORMATS
def test_batch_mates_do_not_matter(isa, format_name):
    runner = native_runner(format_name, isa=isa)
    tokens = prompt(4, 70)
    alone = one_pass(runner, tokens)
    runner.poison_kv()
    ours = request(tokens, 10, "ours")
    prefill(runner, ours, [68, 1, 1], all_logits=False)
    for mates in (1, 4, 8, 31):
        runner.poison_kv()
        ours = request(tokens, 60, "ours")
        others = [request(prompt(50 + i, 2), i, f"mate {i}") for i in range(mates)]
        for other in others:
            other.block_ids = [other.block_ids[0]]
        for start, length in ((0, 37), (37, 32), (69, 1)):
            spans = [(o, start // 37, 1, 1) for o in others if start < 69]
            middle = len(spans) // 2
            spans.insert(middle, (ours, start, length, length))
            runner.submit(plan_of(*spans)).result()
            rows = runner.last_logits[middle : middle + length]
            assert np.array_equal(bits(rows), bits(alone[start : start + length])), mates


def test_a_changed_token_changes_the_logits_after_it():
    # the control for all equalities above
    runner = native_runner("bf16")
    tokens = prompt(5, 100)
    whole = one_pass(runner, tokens)
    tokens[50] += 1
    other = one_pass(runner, tokens)
    assert np.array_equal(bits(other[:50]), bits(whole[:50]))
    assert (bits(other[50:]) != bits(whole[50:])).any(axis=1).all()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from(["bf16", "q4_1"]),
)
def test_two_requests_in_any_chunks(runners, first, second, format_name):
    runner = runners[format_name]
    wanted = {}
    for name, chunks, block in (("a", first, 0), ("b", second, 8)):
        tokens = prompt(len(name) + block, sum(chunks))
        wanted[name] = (one_pass(runner, tokens, block), tokens)
    runner.poison_kv()
    a, b = (request(wanted[n][1], block, n) for n, block in (("a", 20), ("b", 40)))
    done = {"a": 0, "b": 0}
    for i in range(max(len(first), len(second))):
        spans = [
            (r, done[n], chunks[i], chunks[i])
            for n, r, chunks in (("b", b, second), ("a", a, first))
            if i < len(chunks)
        ]
        runner.submit(plan_of(*spans)).result()
        logits, at = runner.last_logits, 0
        for r, start, length, _ in spans:
            assert np.array_equal(
                bits(logits[at : at + length]), bits(wanted[r.id][0][start : start + length])
            )
            at += length
            done[r.id] += length


@pytest.fixture(scope="module")
def runners():
    return {name: native_runner(name) for name in ("bf16", "q4_1")}


def test_cached_positions_are_computed_but_not_written():
    runner = native_runner("bf16")
    tokens = prompt(6, 128)
    leader = request(tokens, 0, "leader")
    whole = prefill(runner, leader, [128])
    follower = request(tokens, 0, "follower")  # the same blocks, a full hit
    follower.num_cached_tokens = 128
    plan = plan_of((follower, 127, 1, 1))
    assert build_batch(plan, 64).slots.tolist() == [-1]
    runner.submit(plan).result()
    assert np.array_equal(bits(runner.last_logits), bits(whole[127:]))


@pytest.mark.parametrize("block_size", [64, 128, 256])
def test_larger_blocks_give_the_same_bits(block_size):
    tokens = prompt(7, 300)
    runner = native_runner("bf16", block_size=block_size, num_blocks=1024 // block_size)
    blocks = [2, 0, 3, 1, 5][: -(-300 // block_size)]
    ours = request_with_blocks("r", tokens, blocks)
    logits = prefill(runner, ours, [290, 10])
    assert np.array_equal(bits(logits), bits(one_pass(native_runner("bf16"), tokens)))


@ALL_ISAS
def test_float32_is_close_to_the_reference(isa):
    model = stored_model("F32")
    reference = ReferenceRunner(model, num_blocks=64, block_size=64)
    runner = native_runner("f32", isa=isa)
    tokens = prompt(8, 300)
    want = one_pass(reference, tokens)
    assert np.abs(one_pass(runner, tokens) - want).max() <= 2e-4 * np.abs(want).max()


@ALL_ISAS
@pytest.mark.parametrize("format_name", ["bf16", "int8", "q4_0", "q4_1"])
@pytest.mark.parametrize("kv_f32", [False, True], ids=["kv-bf16", "kv-f32"])
def test_rounded_activations_stay_close_to_the_reference(isa, format_name, kv_f32):
    model = stored_model(FORMATS[format_name][1])
    reference = ReferenceRunner(model, num_blocks=64, block_size=64)
    runner = native_runner(format_name, isa=isa, kv_f32=kv_f32)
    tokens = prompt(9, 130)
    want = one_pass(reference, tokens)
    error = np.sqrt(((one_pass(runner, tokens) - want) ** 2).mean())
    assert error <= 0.02 * np.sqrt((want**2).mean())


@ALL_ISAS
def test_draws_the_token_that_the_reference_draws_from_the_same_logits(isa):
    runner = native_runner("bf16", isa=isa)
    params = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95, "seed": 1},
        {"temperature": 1.3, "top_k": 7, "seed": 2},
        {"temperature": 0.5, "min_p": 0.1, "seed": 2**63 + 5},
        {"temperature": 1.0, "seed": 4, "min_tokens": 30},
        {"temperature": 2.0, "top_k": 40, "top_p": 0.5, "min_p": 0.01, "seed": 5},
        {"temperature": 0.9, "seed": 6, "repetition_penalty": 1.3, "logprobs": 3},
        {"temperature": 0.9, "seed": 7, "presence_penalty": 1.5, "frequency_penalty": -0.5},
        {"temperature": 0.0, "logit_bias": {7: 5.0, 8: -100.0}, "logprobs": 0},
    ]
    requests = [request(prompt(60 + i, 3), 2 * i, f"{i}", **p) for i, p in enumerate(params)]
    for r in requests:
        prefill(runner, r, [3], all_logits=False)
        r.token_ids.append(5)
    for _ in range(20):
        plan = plan_of(*[(r, r.num_tokens - 1, 1, 1) for r in requests])
        result = runner.submit(plan).result()
        sampling = build_batch(plan, 64).sampling
        want = sample(runner.last_logits, sampling)
        assert [t for (t,) in result.tokens] == want.tolist()
        counts = sampling.extras.num_logprobs
        wanted = report(runner.last_logits, want, counts).entries(counts)
        for (entry,), expected in zip(result.logprobs, wanted, strict=True):
            assert (entry is None) == (expected is None)
            if entry is not None:
                assert abs(entry.logprob - expected.logprob) < 1e-5
                assert entry.rank == expected.rank
                assert [t for t, _ in entry.top] == [t for t, _ in expected.top]
                assert dict(entry.top) == pytest.approx(dict(expected.top), abs=1e-5)
        for r, (token,) in zip(requests, result.tokens, strict=True):
            r.token_ids.append(token)


@pytest.mark.parametrize("num_rows", [127, 128, 129, 300])
def test_rows_beyond_those_whose_logits_are_made_together_are_drawn_as_the_first(num_rows):
    """The head is computed for 128 rows at a time."""
    runner = native_runner("bf16")
    scored = request(prompt(70, num_rows), 0, "scored", temperature=0.9, seed=3, logprobs=2)
    plan = plan_of((scored, 0, num_rows, num_rows))
    result = runner.submit(plan).result()
    sampling = build_batch(plan, 64).sampling
    logits = runner.last_logits
    want = sample(logits, sampling)
    assert list(result.tokens[0]) == want.tolist()
    wanted = report(logits, want, sampling.extras.num_logprobs).entries(
        sampling.extras.num_logprobs
    )
    for entry, expected in zip(result.logprobs[0], wanted, strict=True):
        assert abs(entry.logprob - expected.logprob) < 1e-5
        assert entry.rank == expected.rank
    alone = native_runner("bf16")
    again = request(scored.token_ids, 0, "again")
    assert np.array_equal(bits(logits[-20:]), bits(prefill(alone, again, [num_rows])[-20:]))
    assert np.array_equal(bits(logits), bits(runner.last_logits))


def test_generation_continues_its_own_sequence():
    runner = native_runner("bf16")
    grown = request(prompt(10, 60), 0, "grown")
    prefill(runner, grown, [60], all_logits=False)
    grown.token_ids.append(7)
    extend(runner, [grown], 20)
    assert grown.num_tokens == 81
    again = one_pass(runner, grown.token_ids, first_block=30)
    assert grown.token_ids[61:] == again[60:80].argmax(axis=1).tolist()


@ALL_ISAS
@ALL_FORMATS
def test_rows_that_are_left_out_change_nothing(isa, format_name):
    """The last layer computes only the rows whose logits are wanted, whichever those are."""
    runner = native_runner(format_name, isa=isa)
    first, second = request(prompt(6, 90), 0, "a"), request(prompt(7, 70), 10, "b")

    def logits(of_first: int, of_second: int) -> np.ndarray:
        plan = plan_of((first, 0, 90, of_first), (second, 0, 70, of_second))
        assert len(runner.submit(plan).result().tokens) == 2
        return runner.last_logits

    every = logits(90, 70)
    for counts in [(0, 1), (1, 0), (1, 1), (1, 70), (90, 1), (33, 12), (89, 70)]:
        wanted = np.concatenate([every[90 - counts[0] : 90], every[160 - counts[1] :]])
        assert np.array_equal(bits(logits(*counts)), bits(wanted)), counts
    assert logits(0, 0).shape == (0, every.shape[1])
    # and what came to lie in the pool is complete
    for r, length in ((first, 90), (second, 70)):
        r.token_ids.append(5)
        assert runner.submit(plan_of((r, length, 1, 1))).result().tokens
        decoded = runner.last_logits
        assert np.array_equal(bits(decoded), bits(one_pass(runner, r.token_ids, 30)[-1:]))
