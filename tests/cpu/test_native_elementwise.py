"""Norms, RoPE with the write into the pool, embedding rows, rounding: right, and row by row."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from helpers.native_ops import Pool, bits, from_bf16, to_bf16

native = pytest.importorskip("evenflow._native")

ISAS = native.runnable_isas()
WIDTHS = [32, 64, 96, 160, 576, 1536]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rms_norm(isa, x, weight, *, f32=True, sums=None, row_ids=None, eps=1e-5, rows=None):
    count = len(x) if row_ids is None else len(row_ids)
    out = np.zeros((count, x.shape[1]), np.float32 if f32 else np.uint16)
    begin, end = rows or (0, count)
    native.ops.rms_norm(isa, x, weight, eps, out, sums, row_ids, begin, end)
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [*WIDTHS, 33, 47])
def test_rms_norm_is_close_to_float64(isa, width):
    x, weight = draw(1, 5, width) * 30, draw(2, width)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    got = rms_norm(isa, x, weight)
    # five roundings, and a sum of squares that is off by less than 2 ** -20 of itself
    assert (np.abs(got - want) <= np.abs(want) * 2.0**-20).all()
    narrow = rms_norm(isa, x, weight, f32=False)
    assert np.array_equal(narrow, to_bf16(got))


@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm_of_a_row_does_not_depend_on_the_others(isa):
    x, weight = draw(3, 70, 576), draw(4, 576)
    want = rms_norm(isa, x, weight)
    for row in (0, 1, 31, 32, 69):
        assert np.array_equal(bits(rms_norm(isa, x[row : row + 1], weight)[0]), bits(want[row]))
    part = rms_norm(isa, x, weight, rows=(7, 33))
    assert np.array_equal(bits(part[7:33]), bits(want[7:33]))
    assert not part[:7].any()
    assert not part[33:].any()
    ids = np.array([69, 3, 3], np.int32)
    assert np.array_equal(bits(rms_norm(isa, x, weight, row_ids=ids)), bits(want[ids]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("f32", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_group_sums_are_the_same_on_either_way(isa, f32, width):
    x, weight = draw(5, 9, width), draw(6, width)
    sums = np.zeros((9, width // 32), np.float32)
    out = rms_norm(isa, x, weight, f32=f32, sums=sums)
    again = np.zeros_like(sums)
    native.ops.group_sums(isa, out, again)
    assert np.array_equal(bits(sums), bits(again))
    values = (out if f32 else from_bf16(out)).astype(np.float64).reshape(9, -1, 32)
    bound = np.abs(values).sum(2) * 5 * 2.0**-24  # five additions deep, at most
    assert (
        np.abs(sums - values.sum(2)) <= np.maximum(bound, np.abs(values).sum(2) * 31 * 2.0**-24)
    ).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [0, 1, 3, 15, 16, 17, 100])
def test_to_bf16_rounds_to_nearest_even(isa, count):
    x = draw(7, count)
    x[: count // 2] = (np.arange(count // 2, dtype=np.uint32) * 0x8000 + 0x3F800000).view(
        np.float32
    )
    out = np.zeros(count, np.uint16)
    native.ops.to_bf16(isa, x, out)
    assert np.array_equal(out, to_bf16(x))
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38], np.float32)
    out = np.zeros(6, np.uint16)
    native.ops.to_bf16(isa, special, out)
    assert np.isnan(from_bf16(out)[0])
    assert list(out[1:]) == [0x7F80, 0xFF80, 0, 0x8000, 0x7F80]


def rope(x, cos, sin):
    """Rotate-half of [heads, dim] with [rotary_dim / 2] cosines and sines, float32 throughout."""
    half = len(cos)
    a, b = x[:, :half], x[:, half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[:, 2 * half :]], axis=1)


class RopeCase:
    """Tokens of random QKV rows with positions and slots, and what must come of them."""

    def __init__(self, shape, *, f32=False, rotary_dim=None, normed=False, tokens=70):
        self.num_heads, self.num_kv_heads, self.dim = shape
        rng = np.random.default_rng(8)
        half = (rotary_dim or self.dim) // 2
        self.qkv = draw(9, tokens, (self.num_heads + 2 * self.num_kv_heads) * self.dim)
        self.positions = rng.permutation(400)[:tokens].astype(np.int32)
        self.slots = rng.permutation(4 * 64)[:tokens].astype(np.int64)
        self.slots[::5] = -1
        angles = np.arange(400)[:, None] * 10000.0 ** (-np.arange(half) / half)
        self.cos = np.cos(angles).astype(np.float32)
        self.sin = np.sin(angles).astype(np.float32)
        self.q_norm = draw(10, self.dim) if normed else None
        self.k_norm = draw(11, self.dim) if normed else None
        self.pool = Pool(rng, 4, self.num_kv_heads, self.dim, f32=f32)
        self.q = np.zeros((tokens, self.num_heads, self.dim), np.float32 if f32 else np.uint16)
        self.f32 = f32

    def run(self, isa, begin=0, end=None):
        native.ops.rope_write(
            isa, self.qkv, self.positions, self.slots, self.cos, self.sin, self.q_norm, self.k_norm,
            1e-6, self.q, self.pool.keys, self.pool.values, begin, len(self.q) if end is None else end,
        )  # fmt: skip
        return self

    def heads(self, token):
        """The token's queries, keys and values, [heads, dim] each."""
        rows = self.qkv[token].reshape(-1, self.dim)
        return np.split(rows, [self.num_heads, self.num_heads + self.num_kv_heads])

    def expected(self, token, isa):
        q, k, v = self.heads(token)
        if self.q_norm is not None:
            q = rms_norm(isa, np.ascontiguousarray(q), self.q_norm, eps=1e-6)
            k = rms_norm(isa, np.ascontiguousarray(k), self.k_norm, eps=1e-6)
        at = self.positions[token]
        make = (lambda x: x) if self.f32 else to_bf16
        return [
            make(rope(q, self.cos[at], self.sin[at])),
            make(rope(k, self.cos[at], self.sin[at])),
            make(v),
        ]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 4, 32), (8, 2, 80), (4, 1, 96), (2, 1, 128)])
@pytest.mark.parametrize("f32", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_writes_queries_and_pool(isa, shape, f32, normed):
    case = RopeCase(shape, f32=f32, normed=normed).run(isa)
    wanted = Pool(np.random.default_rng(0), 4, shape[1], shape[2], f32=f32)
    for token in range(len(case.q)):
        q, k, v = case.expected(token, isa)
        assert np.array_equal(bits(case.q[token]), bits(q))
        slot = case.slots[token]
        if slot >= 0:
            block, at = divmod(slot, 64)
            wanted.keys[block, :, :, at] = k.reshape(shape[1], -1, 2)
            wanted.values[block, :, at // 2, :, at % 2] = v
    # nothing but the slots named was touched: the rest still holds its NaN
    assert np.array_equal(bits(case.pool.keys), bits(wanted.keys))
    assert np.array_equal(bits(case.pool.values), bits(wanted.values))


@pytest.mark.parametrize("isa", ISAS)
def test_partial_rotation_leaves_the_rest_alone(isa):
    case = RopeCase((4, 2, 80), f32=True, rotary_dim=32).run(isa)
    for token in range(len(case.q)):
        assert np.array_equal(bits(case.q[token]), bits(case.expected(token, isa)[0]))


@pytest.mark.parametrize("isa", ISAS)
def test_rope_in_parts_gives_the_same_bits(isa):
    whole, parts = RopeCase((9, 3, 64)).run(isa), RopeCase((9, 3, 64))
    for begin, end in ((33, 70), (0, 1), (1, 33)):
        parts.run(isa, begin, end)
    assert np.array_equal(whole.q, parts.q)
    assert np.array_equal(whole.pool.keys, parts.pool.keys)
    assert np.array_equal(whole.pool.values, parts.pool.values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_embedding_rows_are_what_gguf_says(isa, kind):
    kind = GGMLQuantizationType[kind]
    table = draw(12, 50, 96)
    table[3] *= 1e-6  # subnormal scales
    rows = quantize(table, kind)
    ids = np.array([49, 0, 3, 3, 17], np.int32)
    out = np.zeros((5, 96), np.float32)
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(50, -1)
    native.ops.embed(isa, ids, raw, int(kind), out)
    assert np.array_equal(bits(out), bits(dequantize(rows, kind)[ids].astype(np.float32)))


def test_bad_arguments_are_refused():
    table = np.zeros((4, 64), np.uint8)
    out = np.zeros((1, 32), np.float32)
    with pytest.raises(ValueError, match="no such token"):
        native.ops.embed("auto", np.array([4], np.int32), table, 30, out)
    with pytest.raises(ValueError, match="converted at load"):
        native.ops.embed("auto", np.array([0], np.int32), table, 12, out)
    case = RopeCase((4, 2, 32))
    case.slots[0] = 256
    with pytest.raises(ValueError, match="no such slot"):
        case.run("auto")
