"""Small factories for tests of the native products: random weights in each file format."""

from __future__ import annotations

from typing import NamedTuple

import gguf
import numpy as np

from evenflow import _native

F32, BF16, Q8_0, Q4_0, Q4_1 = range(5)
FORMATS = {"bf16": BF16, "q8_0": Q8_0, "q4_0": Q4_0, "q4_1": Q4_1}
GGUF_TYPES = {F32: 0, BF16: 30, Q8_0: 8, Q4_0: 2, Q4_1: 3}


class Weight(NamedTuple):
    """A packed weight, its source rows and the exact values that they stand for."""

    packed: _native.PackedWeight
    values: np.ndarray  # [columns, depth] float64
    format: int


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Round to nearest even, as uint16 bits."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def source_rows(rng: np.random.Generator, columns: int, depth: int, kind: int) -> np.ndarray:
    """Rows of a weight as a file stores them, [columns, row bytes] uint8."""
    values = rng.standard_normal((columns, depth)).astype(np.float32) / 8
    if kind == F32:
        return values.view(np.uint8)
    if kind == BF16:
        return to_bf16(values).view(np.uint8)
    return gguf.quantize(values, gguf.GGMLQuantizationType(GGUF_TYPES[kind]))


def source_values(rows: np.ndarray, kind: int) -> np.ndarray:
    if kind == F32:
        return rows.view(np.float32).astype(np.float64)
    if kind == BF16:
        return from_bf16(rows.view(np.uint16)).astype(np.float64)
    return gguf.dequantize(rows, gguf.GGMLQuantizationType(GGUF_TYPES[kind])).astype(np.float64)


def make_weight(seed: int, columns: int, depth: int, kind: int) -> Weight:
    rows = source_rows(np.random.default_rng(seed), columns, depth, kind)
    packed = _native.PackedWeight(kind, GGUF_TYPES[kind], depth, rows)
    return Weight(packed, source_values(rows, kind), kind)


def group_sums(x: np.ndarray) -> np.ndarray:
    """Sums of bf16 activations over groups of 32, [rows, depth / 32] float32."""
    wide = from_bf16(x)
    return wide.reshape(len(x), -1, 32).sum(-1, dtype=np.float32)


def product(
    isa: str,
    pool: _native.ThreadPool,
    weight: Weight,
    x: np.ndarray,
    sums: np.ndarray | None = None,
    *,
    rows_per_tile: int = 96,
    panels_per_tile: int = 2,
) -> np.ndarray:
    """x [rows, depth] bf16 bits times the weight, [rows, columns] float32."""
    out = np.full((len(x), len(weight.values)), np.nan, np.float32)
    if weight.format == Q4_1 and sums is None:
        sums = group_sums(x)
    _native.gemm(
        isa,
        pool,
        weight.packed,
        x,
        sums if weight.format == Q4_1 else None,
        out,
        rows_per_tile=rows_per_tile,
        panels_per_tile=panels_per_tile,
    )
    return out
