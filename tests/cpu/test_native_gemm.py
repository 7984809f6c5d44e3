"""The native products: the same bits for any row count, tile and thread; close to float64."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.native_gemm import (
    BF16,
    F32,
    FORMATS,
    GGUF_TYPES,
    Q4_0,
    Q4_1,
    Q8_0,
    Weight,
    from_bf16,
    group_sums,
    make_weight,
    product,
    source_rows,
    source_values,
    to_bf16,
)

_native = pytest.importorskip("evenflow._native", reason="built without a compiler")

ISAS = _native.runnable_isas()
ROW_COUNTS = [*range(1, 10), 11, 12, 13, 24, 25, 31, 32, 33, 63, 64, 65]

pytestmark = pytest.mark.parametrize("isa", ISAS)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint32)


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize(("columns", "depth"), [(96, 64), (65, 576), (31, 96)])
def test_close_to_float64(isa, kind, columns, depth):
    weight = make_weight(1, columns, depth, kind)
    x = to_bf16(np.random.default_rng(2).standard_normal((13, depth)))
    out = product(isa, _native.ThreadPool(1), weight, x)
    want = from_bf16(x).astype(np.float64) @ weight.values.T
    # a float32 sum of n terms is off by at most n roundings of the sum of absolute terms
    bound = np.abs(from_bf16(x)).astype(np.float64) @ np.abs(weight.values.T)
    assert (np.abs(out - want) <= bound * (depth + 34) * 2.0**-24 + 1e-30).all()


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
def test_any_row_count_gives_the_same_bits(isa, kind):
    weight = make_weight(3, 161, 192, kind)
    x = to_bf16(np.random.default_rng(4).standard_normal((65, 192)))
    pool = _native.ThreadPool(1)
    one_by_one = np.concatenate([product(isa, pool, weight, x[i : i + 1]) for i in range(65)])
    for rows in ROW_COUNTS:
        assert np.array_equal(bits(product(isa, pool, weight, x[:rows])), bits(one_by_one[:rows]))
        assert np.array_equal(bits(product(isa, pool, weight, x[-rows:])), bits(one_by_one[-rows:]))


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_tile_and_thread_count_gives_the_same_bits(isa, kind, threads):
    weight = make_weight(5, 225, 160, kind)
    x = to_bf16(np.random.default_rng(6).standard_normal((50, 160)))
    want = product(isa, _native.ThreadPool(1), weight, x)
    pool = _native.ThreadPool(threads)
    for rows_per_tile, panels_per_tile in [(1, 1), (5, 2), (7, 3), (50, 8), (13, 1)]:
        got = product(
            isa,
            pool,
            weight,
            x,
            rows_per_tile=rows_per_tile,
            panels_per_tile=panels_per_tile,
        )
        assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
def test_a_poisoned_row_spoils_only_itself(isa, kind):
    weight = make_weight(7, 64, 64, kind)
    x = to_bf16(np.random.default_rng(8).standard_normal((9, 64)))
    pool = _native.ThreadPool(1)
    clean = product(isa, pool, weight, x)
    x[4] = 0x7FC0
    poisoned = product(isa, pool, weight, x)
    assert np.isnan(poisoned[4]).all()
    keep = np.arange(9) != 4
    assert np.array_equal(bits(poisoned[keep]), bits(clean[keep]))


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
def test_adding_to_the_residual_stream(isa, kind):
    weight = make_weight(9, 70, 64, kind)
    rng = np.random.default_rng(10)
    x = to_bf16(rng.standard_normal((11, 64)))
    residual = rng.standard_normal((11, 70)).astype(np.float32)
    pool = _native.ThreadPool(2)
    want = residual + product(isa, pool, weight, x)
    sums = group_sums(x) if kind == Q4_1 else None
    _native.gemm(isa, pool, weight.packed, x, sums, residual, add=True)
    assert np.array_equal(bits(residual), bits(want))


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("columns", [64, 90, 31])
def test_gating_equals_silu_of_gate_times_up(isa, kind, columns):
    rng = np.random.default_rng(11)
    gate, up = (source_rows(rng, columns, 64, kind) for _ in range(2))
    packed = _native.PackedWeight(kind, GGUF_TYPES[kind], 64, gate, up)
    x = to_bf16(4 * rng.standard_normal((33, 64)))
    sums = group_sums(x) if kind == Q4_1 else None
    pool = _native.ThreadPool(1)
    out = np.zeros((33, columns), np.uint16)
    _native.gemm_gated(isa, pool, packed, x, sums, out)
    wide = from_bf16(x).astype(np.float64)
    g, u = (wide @ source_values(rows, kind).T for rows in (gate, up))
    want = g / (1 + np.exp(-g)) * u
    # bf16 keeps 8 bits; the rest is the products' own rounding
    assert np.allclose(from_bf16(out), want, rtol=2**-8, atol=2e-4)
    for rows in (1, 2, 7, 32):
        part = np.zeros((rows, columns), np.uint16)
        few = None if sums is None else sums[:rows]
        _native.gemm_gated(isa, pool, packed, x[:rows], few, part)
        assert np.array_equal(part, out[:rows])


def test_float32_weights(isa):
    weight = make_weight(12, 75, 96, F32)
    x = np.random.default_rng(13).standard_normal((65, 96)).astype(np.float32)
    pool = _native.ThreadPool(2)

    def run(x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), 75), np.nan, np.float32)
        _native.gemm_f32(isa, pool, weight.packed, x, out)
        return out

    whole = run(x)
    assert np.allclose(whole, x.astype(np.float64) @ weight.values.T, rtol=1e-5, atol=1e-5)
    for rows in ROW_COUNTS:
        assert np.array_equal(bits(run(x[:rows])), bits(whole[:rows]))


@pytest.mark.parametrize(
    "kind", [0, 1, 2, 3, 8, 30], ids=["f32", "f16", "q4_0", "q4_1", "q8_0", "bf16"]
)
def test_any_source_can_be_packed_as_bf16(isa, kind):
    rng = np.random.default_rng(14)
    values = rng.standard_normal((40, 64)).astype(np.float32)
    if kind == 0:
        rows, want = values.view(np.uint8), values
    elif kind == 1:
        rows, want = values.astype(np.float16).view(np.uint8), values.astype(np.float16)
    else:
        own = {2: 3, 3: 4, 8: 2, 30: BF16}[kind]
        rows = source_rows(rng, 40, 64, own)
        want = source_values(rows, own)
    packed = _native.PackedWeight(BF16, kind, 64, np.ascontiguousarray(rows))
    x = to_bf16(np.eye(64))
    out = np.zeros((64, 40), np.float32)
    _native.gemm(isa, _native.ThreadPool(1), packed, x, None, out)
    assert np.array_equal(out.T, from_bf16(to_bf16(want.astype(np.float32))))


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("kind", [Q8_0, Q4_0, Q4_1])
def test_every_integer_of_a_format_is_exact(isa, kind, rows):
    """Columns of one integer each, -128 included: scale 1 and activations 1 show what it became."""
    depth, one = 32, np.frombuffer(np.float16(1.0).tobytes(), np.uint8)
    integers = np.arange(256 if kind == Q8_0 else 16, dtype=np.uint8)
    if kind == Q8_0:
        data, expected = integers[:, None].repeat(depth, 1), integers.view(np.int8)
    else:
        data = (integers * 17)[:, None].repeat(depth // 2, 1)
        expected = integers.astype(int) - (8 if kind == Q4_0 else 0)
    header = np.tile(one, (len(data), 1))
    if kind == Q4_1:
        header = np.hstack([header, np.zeros_like(header)])
    packed = _native.PackedWeight(kind, GGUF_TYPES[kind], depth, np.hstack([header, data]))
    weight = Weight(packed, np.empty((len(data), depth)), kind)
    out = product(isa, _native.ThreadPool(1), weight, to_bf16(np.ones((rows, depth))))
    assert (out == depth * expected.astype(np.float32)).all()


@pytest.mark.parametrize("kind", [BF16, Q8_0, Q4_0])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_step_s_way_of_cutting_gives_the_same_bits(isa, kind, threads):
    """Threads own columns at few rows and rows at many; the last panel may be half empty."""
    weight = make_weight(9, 209, 96, kind)
    x = to_bf16(np.random.default_rng(10).standard_normal((450, 96)))
    whole = product(isa, _native.ThreadPool(1), weight, x)
    pool = _native.ThreadPool(threads)
    for rows in (1, 7, 31, 32, 63, 64, 65, 96, 97, 193, 450):
        out = np.full((rows, 209), np.nan, np.float32)
        _native.multiply(isa, pool, weight.packed, x[:rows], out)
        assert np.array_equal(bits(out), bits(whole[:rows])), rows
