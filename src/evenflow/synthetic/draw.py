"""Random weights, drawn at once in the format in which they are stored.

In: a generator, a number of rows and columns. Out: rows of bytes whose values are close to normal
with standard deviation `STD`. Sixteen random bits choose an entry of a table of quantiles, so a
billion weights take seconds, not minutes, and need no more memory than a few rows.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]

STD = 0.02  # GPT-2's; with norms between the layers the logits are finite and vary
_GROUP = 32  # values of a packed row that share a scale
_CODE_STD = {"q8_0": 40.0, "q4_0": 2.8, "q4_1": 2.8}  # in steps of the code: the ends are 3 away


def draw_rows(rng: np.random.Generator, kind: str, num_rows: int, num_cols: int) -> Rows:
    """Rows of one of `shapes.FORMATS`, [num_rows, row bytes].

    Args:
        rng: where the randomness comes from.
        kind: the format.
        num_rows: rows.
        num_cols: values of a row; a multiple of 32 for a packed format.
    """
    if kind == "bf16":
        return _bf16_table()[_random_u16(rng, (num_rows, num_cols))].view(np.uint8)
    groups = num_cols // _GROUP
    scales = _scales(rng, kind, (num_rows, groups))
    if kind == "q8_0":
        codes = _int8_table()[_random_u16(rng, (num_rows, groups, _GROUP))].view(np.uint8)
    else:
        codes = _nibble_table(kind)[_random_u16(rng, (num_rows, groups, _GROUP // 2))]
    heads = [scales] if kind != "q4_1" else [scales, (-7.5 * scales).astype(np.float16)]
    parts = [head[..., None].view(np.uint8) for head in heads]
    return np.concatenate([*parts, codes], axis=2).reshape(num_rows, -1)


def _random_u16(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    size = int(np.prod(shape))
    return np.frombuffer(rng.bytes(2 * size), np.uint16).reshape(shape)


def _scales(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> NDArray[np.float16]:
    """Scales that differ from group to group by up to a quarter, as those of real weights do."""
    spread = rng.random(shape, np.float32) * 0.5 + 0.75
    return (spread * np.float32(STD / _CODE_STD[kind])).astype(np.float16)


@cache
def _quantiles(count: int) -> NDArray[np.float64]:
    """The middle of each of `count` equally likely parts of a standard normal."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / count) for i in range(count)])


@cache
def _bf16_table() -> NDArray[np.uint16]:
    bits = (_quantiles(65536) * STD).astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@cache
def _int8_table() -> NDArray[np.int8]:
    codes = np.rint(_quantiles(65536) * _CODE_STD["q8_0"])
    return np.clip(codes, -127, 127).astype(np.int8)


@cache
def _nibble_table(kind: str) -> NDArray[np.uint8]:
    """Two codes a byte, each chosen by 8 of the 16 bits."""
    middle, lowest = (8.0, 1) if kind == "q4_0" else (7.5, 0)
    codes = np.rint(_quantiles(256) * _CODE_STD[kind] + middle)
    nibbles = np.clip(codes, lowest, 15).astype(np.uint8)
    return (16 * nibbles[:, None] + nibbles[None, :]).reshape(-1).astype(np.uint8)
