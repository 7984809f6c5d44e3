"""Windows and soft caps of attention: close to the oracle, and bit for bit whatever the cut."""

import numpy as np
import pytest

from helpers.native_ops import Pool, Sequence, bits, run_attention

native = pytest.importorskip("evenflow._native")

ISAS = pytest.mark.parametrize("isa", native.runnable_isas())
F32 = pytest.mark.parametrize("f32", [False, True])
SCALE = 0.125
LENGTH = 1200


def sequence_in_pool(seed, length=LENGTH, *, f32=False, spread=1.0):
    rng = np.random.default_rng(seed)
    sequence = Sequence(rng, length, 6, 2, 32, f32=f32, spread=spread)
    pool = Pool(rng, length // 64 + 3, 2, 32, f32=f32)
    table = []
    pool.write(table, 0, sequence.k, sequence.v)
    return sequence, pool, table


def attend(isa, case, first, count, *, threads=1, **options):
    """Rows first, first + 1, ... as one span."""
    sequence, pool, table = case
    spans = [(sequence.q[first : first + count], first + count, table)]
    return run_attention(isa, native.ThreadPool(threads), pool, spans, SCALE, **options)


@ISAS
@F32
@pytest.mark.parametrize(
    ("window", "soft_cap"), [(1, 0), (2, 0), (63, 0), (64, 0), (65, 3.0), (300, 0), (700, 2.0)]
)
def test_close_to_the_oracle(isa, f32, window, soft_cap):
    case = sequence_in_pool(1, f32=f32, spread=3.0)
    options = {"window": window, "soft_cap": soft_cap}
    for first, count in ((0, 40), (50, 60), (500, 130), (1199, 1)):
        got = attend(isa, case, first, count, **options)
        want = [case[0].oracle(p, SCALE, **options) for p in range(first, first + count)]
        bound = 2e-5 if f32 or isa != "avx512-bf16" else 5 * 2.0**-9
        assert np.abs(got - np.stack(want)).max() < bound


@ISAS
@F32
@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_a_soft_cap_alone_is_close_to_the_oracle(isa, f32, soft_cap):
    case = sequence_in_pool(2, 150, f32=f32, spread=20.0)
    got = attend(isa, case, 0, 150, soft_cap=soft_cap)
    want = [case[0].oracle(p, SCALE, soft_cap=soft_cap) for p in range(150)]
    bound = 5e-5 if f32 or isa != "avx512-bf16" else 5 * 2.0**-9
    assert np.abs(got - np.stack(want)).max() < bound


@ISAS
@pytest.mark.parametrize("window", [1, 33, 64, 100, 511, 512, 513, 600])
@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
def test_cuts_threads_and_splits_change_no_bit(isa, window, soft_cap):
    case = sequence_in_pool(3)
    options = {"window": window, "soft_cap": soft_cap}
    want = attend(isa, case, 1000, 200, **options)
    assert np.isfinite(want).all()
    for size in (1, 5, 13, 37, 128):
        for first in range(1000, 1200, size):
            if size == 1 and first % 7:
                continue
            count = min(size, 1200 - first)
            got = attend(isa, case, first, count, threads=2, **options)
            at = first - 1000
            assert np.array_equal(bits(got), bits(want[at : at + count])), (first, count)
    for plan_threads in (2, 7, 64):
        got = attend(isa, case, 1190, 10, plan_threads=plan_threads, **options)
        assert np.array_equal(bits(got), bits(want[190:]))


@ISAS
@F32
@pytest.mark.parametrize("window", [1, 2, 50, 64, 129, 600])
def test_what_lies_before_the_window_is_never_read(isa, f32, window):
    case = sequence_in_pool(4, f32=f32)
    first = 1000
    wanted = attend(isa, case, first, 60, window=window)
    last_hidden = first - window  # of row `first`; later rows see less
    nan = np.float32("nan") if f32 else np.uint16(0x7FC1)
    sequence = case[0]
    k, v = sequence.k.copy(), sequence.v.copy()
    k[: last_hidden + 1], v[: last_hidden + 1] = nan, nan
    poisoned = Pool(np.random.default_rng(0), LENGTH // 64 + 3, 2, 32, f32=f32)
    table = []
    poisoned.write(table, 0, k, v)
    for size in (60, 7, 1):
        for at in range(0, 60, size):
            count = min(size, 60 - at)
            got = attend(isa, (sequence, poisoned, table), first + at, count, window=window)
            assert np.array_equal(bits(got), bits(wanted[at : at + count]))


@ISAS
def test_a_window_as_long_as_the_context_is_none(isa):
    case = sequence_in_pool(5, 700)
    want = attend(isa, case, 600, 100)
    for window in (700, 701, 10**6):
        got = attend(isa, case, 600, 100, window=window)
        assert np.array_equal(bits(got), bits(want))
    other = attend(isa, case, 600, 100, window=690)
    assert not np.array_equal(bits(other), bits(want))
