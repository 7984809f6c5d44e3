"""Factories for tests of single native kernels: bf16 as bits, paged pools, float64 oracles."""

from __future__ import annotations

import numpy as np
import pytest

KEYS = 64  # slots of a block as the kernels see it


def to_bf16(x):
    """Round float32 to bf16 bits, to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    """The float32 values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def as_float(x):
    """Floats of an array that is float32 or bf16 bits."""
    return from_bf16(x) if x.dtype == np.uint16 else x


def bits(x):
    """An array as unsigned integers, for comparisons without tolerance."""
    return x if x.dtype == np.uint16 else x.view(np.uint32)


class Sequence:
    """Queries, keys and values of one sequence: [positions, heads or kv_heads, head_dim]."""

    def __init__(self, rng, length, num_heads, num_kv_heads, head_dim, *, f32=False, spread=1.0):
        def draw(heads):
            return rng.standard_normal((length, heads, head_dim)).astype(np.float32)

        make = (lambda x: x) if f32 else to_bf16
        self.q = make(draw(num_heads) * np.float32(spread))
        self.k = make(draw(num_kv_heads))
        self.v = make(draw(num_kv_heads))

    def __len__(self):
        return len(self.q)

    def oracle(self, position, scale, *, window=0, soft_cap=0.0):
        """The attention of one position in float64, [heads, head_dim]."""
        first = max(0, position + 1 - window) if window else 0
        q = as_float(self.q[position]).astype(np.float64)
        k = as_float(self.k[first : position + 1]).astype(np.float64)
        v = as_float(self.v[first : position + 1]).astype(np.float64)
        group = q.shape[0] // k.shape[1]
        out = np.empty_like(q)
        for head in range(q.shape[0]):
            scores = k[:, head // group] @ q[head] * scale
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            weights = np.exp(scores - scores.max())
            out[head] = weights @ v[:, head // group] / weights.sum()
        return out


class Pool:
    """KV pools of one layer, every slot NaN until written, blocks handed out in random order."""

    def __init__(self, rng, num_blocks, num_kv_heads, head_dim, *, f32=False):
        nan = np.float32("nan") if f32 else np.uint16(0x7FC1)
        self.keys = np.full((num_blocks, num_kv_heads, head_dim // 2, KEYS, 2), nan)
        self.values = np.full((num_blocks, num_kv_heads, KEYS // 2, head_dim, 2), nan)
        self.free = list(rng.permutation(num_blocks))

    def write(self, table, start, k, v):
        """Positions start, start + 1, ... of a sequence whose blocks are `table`, extended here."""
        for i in range(len(k)):
            position = start + i
            if position // KEYS == len(table):
                table.append(int(self.free.pop()))
            block, at = table[position // KEYS], position % KEYS
            self.keys[block, :, :, at, :] = k[i].reshape(*k[i].shape[:-1], -1, 2)
            self.values[block, :, at // 2, :, at % 2] = v[i]


def run_attention(
    isa, threads, pool, spans, scale, *, plan_threads=0, out_f32=True, window=0, soft_cap=0.0
):
    """Attention of `spans`, each (queries [n, heads, dim], context length, block table)."""
    q = np.concatenate([s[0] for s in spans])
    out = np.full(q.shape, np.nan, np.float32) if out_f32 else np.full(q.shape, 0x7FC1, np.uint16)
    lengths = [len(s[0]) for s in spans]
    tables = [s[2][: -(-s[1] // KEYS)] for s in spans]
    ops = pytest.importorskip("evenflow._native").ops
    ops.attention(
        isa,
        threads,
        q,
        pool.keys,
        pool.values,
        out,
        np.cumsum([0, *lengths], dtype=np.int32),
        np.array([s[1] for s in spans], np.int32),
        np.concatenate(tables).astype(np.int32),
        np.cumsum([0, *map(len, tables)], dtype=np.int32),
        scale,
        plan_threads,
        window=window,
        soft_cap=soft_cap,
    )
    return out
