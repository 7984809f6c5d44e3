"""Paged attention: close to a float64 oracle, and bit for bit the same whatever the cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.native_ops import Pool, Sequence, bits, from_bf16, run_attention, to_bf16

native = pytest.importorskip("evenflow._native")

ISAS = native.runnable_isas()
SHAPES = [(9, 3, 64), (4, 4, 32), (8, 2, 80), (4, 1, 96), (8, 4, 128), (7, 1, 16), (2, 2, 256)]


def sequence_in_pool(seed, length, shape=(9, 3, 64), *, f32=False, spread=1.0):
    """A sequence, a pool that holds all its keys and values, and its block table."""
    rng = np.random.default_rng(seed)
    sequence = Sequence(rng, length, *shape, f32=f32, spread=spread)
    pool = Pool(rng, length // 64 + 3, *shape[1:], f32=f32)
    table = []
    pool.write(table, 0, sequence.k, sequence.v)
    return sequence, pool, table


def whole(isa, sequence, pool, table, scale, **options):
    threads = native.ThreadPool(1)
    spans = [(sequence.q, len(sequence), table)]
    return run_attention(isa, threads, pool, spans, scale, **options)


def in_chunks(isa, sequence, pool, table, scale, *, chunks, threads=1, **options):
    """The same positions, chunk by chunk, one call each."""
    workers = native.ThreadPool(threads)
    parts, start = [], 0
    for size in chunks:
        stop = min(len(sequence), start + size)
        spans = [(sequence.q[start:stop], stop, table)]
        parts.append(run_attention(isa, workers, pool, spans, scale, **options))
        start = stop
        if start == len(sequence):
            break
    return np.concatenate(parts)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f32", [False, True])
def test_close_to_the_oracle(isa, shape, f32):
    sequence, pool, table = sequence_in_pool(1, 200, shape, f32=f32)
    scale = shape[2] ** -0.5
    got = whole(isa, sequence, pool, table, scale)
    want = np.stack([sequence.oracle(p, scale) for p in range(len(sequence))])
    # bf16: weights are rounded to 8 bits, and 2 ** -9 of a sum of weights times |v| < 5 bounds it
    bound = 2e-5 if f32 else 5 * 2.0**-9 if isa == "avx512-bf16" else 2e-5
    assert np.abs(got - want).max() < bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1000, 1100])
def test_last_row_close_at_every_cut(isa, length):
    sequence, pool, table = sequence_in_pool(2, length)
    threads = native.ThreadPool(1)
    last = [(sequence.q[-1:], length, table)]
    got = run_attention(isa, threads, pool, last, 0.125)
    assert np.abs(got[0] - sequence.oracle(length - 1, 0.125)).max() < 5 * 2.0**-9


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("f32", [False, True])
def test_chunks_change_no_bit(isa, shape, f32):
    sequence, pool, table = sequence_in_pool(3, 150, shape, f32=f32)
    want = whole(isa, sequence, pool, table, 0.11)
    assert not np.isnan(want).any()
    for size in (1, 5, 12, 13, 33, 64, 149):
        got = in_chunks(isa, sequence, pool, table, 0.11, chunks=[size] * 150)
        assert np.array_equal(bits(got), bits(want)), f"chunks of {size}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [63, 64, 65, 129, 577, 1100])
@pytest.mark.parametrize(
    "rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 32, 33, 63, 64, 65]
)
def test_the_last_rows_of_any_count_have_the_same_bits(isa, length, rows):
    rows = min(rows, length)
    sequence, pool, table = sequence_in_pool(4, length)
    want = whole(isa, sequence, pool, table, 0.125)[-rows:]
    threads = native.ThreadPool(1)
    spans = [(sequence.q[-rows:], length, table)]
    got = run_attention(isa, threads, pool, spans, 0.125)
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_and_split_keys_change_no_bit(isa, threads):
    sequence, pool, table = sequence_in_pool(5, 2100)
    workers = native.ThreadPool(threads)
    for rows in (1, 4, 40):
        spans = [(sequence.q[-rows:], 2100, table)]
        want = run_attention(isa, native.ThreadPool(1), pool, spans, 0.125)
        for plan_threads in (0, 2, 7, 64):
            got = run_attention(isa, workers, pool, spans, 0.125, plan_threads=plan_threads)
            assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("isa", ISAS)
def test_splits_really_happen(isa):
    sequence, pool, table = sequence_in_pool(5, 2100)
    out = np.empty((1, 9, 64), np.float32)
    num_tasks, num_groups = native.ops.attention(
        isa,
        native.ThreadPool(2),
        sequence.q[-1:],
        pool.keys,
        pool.values,
        out,
        np.array([0, 1], np.int32),
        np.array([2100], np.int32),
        np.array(table, np.int32),
        np.array([0, len(table)], np.int32),
        0.125,
        8,
    )
    assert num_groups == 3
    assert num_tasks == 15  # five sections of 512 keys for each KV head


@pytest.mark.parametrize("isa", ISAS)
def test_batch_mates_change_no_bit(isa):
    rng = np.random.default_rng(6)
    pool = Pool(rng, 60, 3, 64)
    spans, want = [], []
    for length, rows in ((1, 1), (700, 1), (65, 65), (300, 37), (128, 1), (1000, 3)):
        sequence = Sequence(rng, length, 9, 3, 64)
        table = []
        pool.write(table, 0, sequence.k, sequence.v)
        spans.append((sequence.q[-rows:], length, table))
    alone = native.ThreadPool(1)
    want = [run_attention(isa, alone, pool, [s], 0.125) for s in spans]
    got = run_attention(isa, native.ThreadPool(3), pool, spans, 0.125)
    assert np.array_equal(bits(got), bits(np.concatenate(want)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("f32", [False, True])
def test_what_lies_behind_the_causal_edge_is_never_read(isa, f32):
    sequence, pool, table = sequence_in_pool(7, 140, f32=f32)
    clean = whole(isa, sequence, pool, table, 0.125)
    poison = np.float32("nan") if f32 else np.uint16(0x7FC0)
    for edge in (1, 2, 63, 64, 77, 101, 139):
        again, pool2, table2 = sequence_in_pool(7, 140, f32=f32)
        again.k[edge:] = poison
        again.v[edge:] = poison
        pool2.write(table2, edge, again.k[edge:], again.v[edge:])
        got = whole(isa, again, pool2, table2, 0.125)
        assert np.array_equal(bits(got[:edge]), bits(clean[:edge])), edge


@pytest.mark.parametrize("isa", ISAS)
def test_large_scores_and_a_late_maximum(isa):
    sequence, pool, table = sequence_in_pool(8, 1200, spread=40.0)
    got = whole(isa, sequence, pool, table, 1.0)
    for position in (0, 600, 1199):
        want = sequence.oracle(position, 1.0)
        assert np.abs(got[position] - want).max() < 5 * 2.0**-8
    chunked = in_chunks(isa, sequence, pool, table, 1.0, chunks=[7, 1, 500, 33, 700])
    assert np.array_equal(bits(chunked), bits(got))


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_output_is_the_rounded_float_output(isa):
    sequence, pool, table = sequence_in_pool(9, 100)
    floats = whole(isa, sequence, pool, table, 0.125)
    assert np.array_equal(whole(isa, sequence, pool, table, 0.125, out_f32=False), to_bf16(floats))


@pytest.mark.parametrize("isa", ISAS)
def test_equal_scores_give_the_mean(isa):
    sequence, pool, table = sequence_in_pool(10, 130)
    sequence.q[:] = 0
    got = whole(isa, sequence, pool, table, 0.125)
    mean = (
        np.cumsum(from_bf16(sequence.v).astype(np.float64), axis=0)
        / np.arange(1, 131)[:, None, None]
    )
    assert np.abs(got.reshape(130, 3, 3, 64) - mean[:, :, None]).max() < 1e-5


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_cut_gives_the_same_bits(data):
    isa = data.draw(st.sampled_from(ISAS))
    shape = data.draw(st.sampled_from(SHAPES))
    length = data.draw(st.integers(1, 700))
    f32 = data.draw(st.booleans())
    sequence, pool, table = sequence_in_pool(11, length, shape, f32=f32)
    want = whole(isa, sequence, pool, table, 0.2)
    chunks = [*data.draw(st.lists(st.integers(1, 200), max_size=8)), length]
    got = in_chunks(
        isa, sequence, pool, table, 0.2, chunks=chunks, threads=data.draw(st.integers(1, 3))
    )
    assert np.array_equal(bits(got), bits(want))


def test_bad_arguments_are_refused():
    sequence, pool, table = sequence_in_pool(12, 70)
    threads = native.ThreadPool(1)
    with pytest.raises(ValueError, match="no such block"):
        run_attention("auto", threads, pool, [(sequence.q, 70, [0, 99])], 0.125)
    with pytest.raises(ValueError, match="longer than its blocks"):
        run_attention("auto", threads, pool, [(sequence.q, 70, table[:1])], 0.125)
    with pytest.raises(ValueError, match="longer than its context"):
        run_attention("auto", threads, pool, [(sequence.q, 64, table)], 0.125)
