"""Sampling in C++ draws what the reference sampler draws, row by row, whatever else is in the batch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.runner import sampler
from evenflow.runner.batch import SamplingBatch

native = pytest.importorskip("evenflow._native")

ISAS = native.runnable_isas()


def make_params(rows, **values):
    """A SamplingBatch of `rows` rows; a value is one number for all rows or one for each."""
    defaults = {
        "temperatures": 1.0,
        "top_ks": 0,
        "top_ps": 1.0,
        "min_ps": 0.0,
        "seeds": 1,
        "positions": np.arange(rows),
    }
    types = (np.float32, np.int32, np.float32, np.float32, np.uint64, np.int64)
    arrays = {
        name: np.broadcast_to(np.asarray(values.get(name, default), kind), rows).copy()
        for (name, default), kind in zip(defaults.items(), types, strict=True)
    }
    banned = values.get("banned", [[]] * rows)
    return SamplingBatch(
        **arrays,
        banned_ids=np.array(list(itertools.chain(*banned)), np.int32),
        banned_offsets=np.cumsum([0, *map(len, banned)], dtype=np.int32),
    )


def draw(isa, logits, params, threads=1, **more):
    """Tokens of every row; `more` holds further arrays of the kernel's arguments."""
    names = (name for name in SamplingBatch.__slots__ if name != "extras")
    arrays = {name: getattr(params, name) for name in names}
    arrays["tokens"] = np.full(len(logits), -9, np.int32)
    arrays.update(more)
    native.ops.sample(isa, native.ThreadPool(threads), np.ascontiguousarray(logits), arrays)
    return arrays["tokens"]


def make_logits(seed, rows, vocab, spread=4.0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, vocab)) * spread).astype(np.float32)


PARAMS = [
    {"temperatures": 0.0},
    {},
    {"temperatures": 0.8, "top_ps": 0.95},
    {"temperatures": 1.5, "top_ps": 0.5},
    {"top_ps": 1e-6},
    {"top_ks": 1},
    {"top_ks": 7, "temperatures": 2.0},
    {"top_ks": 50, "top_ps": 0.9},
    {"top_ks": 400, "top_ps": 0.99, "temperatures": 3.0},
    {"top_ks": 10_000_000},
    {"min_ps": 0.05},
    {"min_ps": 1.0},
    {"min_ps": 0.01, "top_ps": 0.8, "top_ks": 30},
    {"temperatures": 1e-6},
    {"temperatures": 100.0, "top_ps": 0.95},
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("values", PARAMS, ids=str)
def test_draws_what_the_reference_draws(isa, vocab, values):
    logits = make_logits(vocab, 40, vocab)
    params = make_params(40, **values)
    assert np.array_equal(draw(isa, logits, params), sampler.sample(logits, params))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("values", PARAMS, ids=str)
@pytest.mark.parametrize("step", [0.25, 1.0])
def test_ties_are_broken_as_in_the_reference(isa, values, step):
    logits = np.round(make_logits(3, 40, 700) / step) * np.float32(step)
    logits = logits.astype(np.float32)
    params = make_params(40, **values)
    assert np.array_equal(draw(isa, logits, params), sampler.sample(logits, params))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("values", PARAMS, ids=str)
def test_all_logits_equal(isa, values):
    logits = np.full((20, 333), 1.5, np.float32)
    params = make_params(20, **values)
    assert np.array_equal(draw(isa, logits, params), sampler.sample(logits, params))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("values", PARAMS, ids=str)
def test_a_real_vocabulary(isa, values):
    logits = make_logits(5, 8, 49_152, 3.0)
    params = make_params(8, seeds=2**63 + 5, positions=np.arange(8) + 2**40, **values)
    assert np.array_equal(draw(isa, logits, params), sampler.sample(logits, params))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_parameters(data):
    vocab = data.draw(st.integers(1, 300))
    rows = data.draw(st.integers(1, 5))
    each = st.floats(0, 1, width=32)
    spread = data.draw(st.sampled_from([0.0, 0.5, 4.0, 60.0]))
    logits = make_logits(data.draw(st.integers(0, 99)), rows, vocab, spread)
    if data.draw(st.booleans()):
        logits[:, data.draw(st.integers(0, vocab - 1)) + 1 :] = -np.inf
    params = make_params(
        rows,
        temperatures=[data.draw(st.sampled_from([0.0, 0.3, 1.0, 7.0])) for _ in range(rows)],
        top_ks=[data.draw(st.integers(0, vocab + 2)) for _ in range(rows)],
        top_ps=[max(1e-3, data.draw(each)) for _ in range(rows)],
        min_ps=[data.draw(each) for _ in range(rows)],
        seeds=[data.draw(st.integers(0, 2**64 - 1)) for _ in range(rows)],
        positions=[data.draw(st.integers(0, 2**62)) for _ in range(rows)],
        banned=[
            sorted(data.draw(st.sets(st.integers(1, vocab), max_size=3)) - {vocab})
            for _ in range(rows)
        ],
    )
    want = sampler.sample(logits, params)
    for isa in ISAS:
        assert np.array_equal(draw(isa, logits, params, 2), want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_and_batch_mates_change_nothing(isa, threads):
    logits = make_logits(6, 20, 3000)
    params = make_params(20, temperatures=np.linspace(0, 2, 20), top_ps=0.9)
    alone = np.concatenate(
        [
            draw(
                isa,
                logits[r : r + 1],
                make_params(1, temperatures=params.temperatures[r], top_ps=0.9, positions=r),
            )
            for r in range(20)
        ]
    )
    assert np.array_equal(draw(isa, logits, params, threads), alone)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_cannot_be_drawn_from(isa):
    logits = make_logits(7, 6, 100)
    logits[0, 99] = np.nan
    logits[1, 3] = np.inf
    logits[2] = -np.inf
    logits[3, 1:] = -np.inf
    for temperature in (0.0, 1.0):
        params = make_params(
            6, temperatures=temperature, banned=[[], [], [], [0], list(range(100)), []]
        )
        tokens = draw(isa, logits, params)
        assert list(tokens[:5]) == [-1, -1, -1, -2, -2]
        assert tokens[5] >= 0
        assert np.array_equal(tokens, sampler.sample(logits, params))


def adjusted(logits, histories, prompt_lens, *, repetition, presence, frequency):
    """Penalties by their definition, one id after another, in float32."""
    out = logits.copy()
    for row, history in enumerate(histories):
        for token in set(history):
            value = out[row, token]
            if repetition[row] != 1:
                value = value / repetition[row] if value > 0 else value * repetition[row]
            count = history[prompt_lens[row] :].count(token)
            if count:
                value = value - np.float32(count) * frequency[row]
                value = value - presence[row]
            out[row, token] = value
    return out


@pytest.mark.parametrize("isa", ISAS)
def test_bias_penalties_and_masks(isa):
    rng = np.random.default_rng(8)
    rows, vocab = 12, 90
    logits = make_logits(8, rows, vocab)
    histories = [list(rng.integers(0, vocab, rng.integers(0, 60))) for _ in range(rows)]
    prompt_lens = [len(h) // 2 for h in histories]
    repetition = rng.uniform(0.5, 2, rows).astype(np.float32)
    presence = rng.uniform(-2, 2, rows).astype(np.float32)
    frequency = rng.uniform(-1, 1, rows).astype(np.float32)
    bias_ids = [sorted(rng.choice(vocab, 3, replace=False)) for _ in range(rows)]
    bias = rng.standard_normal((rows, 3)).astype(np.float32) * 3
    allowed = rng.random((2, 96)) < 0.7
    mask_rows = np.array([-1, 0, 1] * 4, np.int32)
    want_logits = logits.copy()
    for row in range(rows):
        want_logits[row, bias_ids[row]] += bias[row]
    want_logits = adjusted(
        want_logits,
        histories,
        prompt_lens,
        repetition=repetition,
        presence=presence,
        frequency=frequency,
    )
    for row, mask in enumerate(mask_rows):
        if mask >= 0:
            want_logits[row, ~allowed[mask, :vocab]] = -np.inf
    more = {
        "repetition_penalties": repetition,
        "presence_penalties": presence,
        "frequency_penalties": frequency,
        "history_ids": np.array(list(itertools.chain(*histories)), np.int32),
        "history_offsets": np.cumsum([0, *map(len, histories)], dtype=np.int32),
        "history_prompt_lens": np.array(prompt_lens, np.int32),
        "bias_ids": np.array(bias_ids, np.int32).ravel(),
        "bias_values": bias.ravel(),
        "bias_offsets": np.arange(rows + 1, dtype=np.int32) * 3,
        "allowed_masks": np.packbits(allowed, axis=1, bitorder="little").view(np.uint32),
        "allowed_mask_rows": mask_rows,
    }
    before = logits.copy()
    for temperature in (0.0, 0.7):
        params = make_params(rows, temperatures=temperature, top_ps=0.9)
        tokens = draw(isa, logits, params, **more)
        assert np.array_equal(tokens, sampler.sample(want_logits, params))
        plain = sampler.sample(logits, params)
        assert not np.array_equal(tokens, plain)
    assert np.array_equal(logits, before)  # the caller's logits are never changed


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [3, 50, 2000])
def test_log_probabilities(isa, vocab):
    logits = make_logits(9, 5, vocab)
    params = make_params(5, temperatures=0.5)
    wanted = np.array([-1, 0, 1, 3, 20], np.int32)
    more = {
        "num_logprobs": wanted,
        "token_logprobs": np.full(5, 7, np.float32),
        "token_ranks": np.full(5, -7, np.int32),
        "top_ids": np.full((5, 20), -7, np.int32).ravel(),
        "top_logprobs": np.zeros(100, np.float32),
    }
    tokens = draw(isa, logits, params, **more)
    assert more["token_ranks"][0] == -7  # nobody asked
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) + exact.max(
        1, keepdims=True
    )
    for row in range(1, 5):
        token = tokens[row]
        assert abs(more["token_logprobs"][row] - exact[row, token]) < 2e-6
        assert more["token_ranks"][row] == 1 + (logits[row] > logits[row, token]).sum()
        there = min(wanted[row], vocab)
        order = np.argsort(-logits[row], kind="stable")[:there]
        ids = more["top_ids"].reshape(5, 20)[row]
        assert list(ids[:there]) == list(order)
        assert (ids[there : wanted[row]] == -1).all()
        top = more["top_logprobs"].reshape(5, 20)[row][:there]
        assert np.abs(top - exact[row, order]).max(initial=0) < 2e-6
