"""Times attention and sampling by themselves, for the table of `evenflow bench kernels`.

In: an instruction set, a pool of threads, shapes. Out: seconds, and the operations or bytes that
they stand for. Keys, values and logits are random: what they hold does not change the time, except
in sampling, whose logits have the spread of a small language model's.
"""

from __future__ import annotations

import math
import mmap
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenflow import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.runner.batch import F32

KEYS_PER_BLOCK = 64


class AttentionShape(NamedTuple):
    """`num_spans` spans of `tokens` tokens, each at the end of a context of `context` positions."""

    tokens: int
    context: int
    num_spans: int = 1
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64

    @property
    def flops(self) -> float:
        """Operations of the visible keys: scores and values, two per multiply-add."""
        visible = self.tokens * (self.context - self.tokens) + self.tokens * (self.tokens + 1) // 2
        return 4.0 * self.num_spans * self.num_heads * self.head_dim * visible

    @property
    def kv_bytes(self) -> float:
        """Bytes of the keys and values in bf16, each read once."""
        return 4.0 * self.num_spans * self.num_kv_heads * self.head_dim * self.context


def in_huge_pages(values: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """A copy where the engine would keep it: in memory that huge pages cover, as far as there are any."""
    size = 2 << 20
    memory = mmap.mmap(-1, (values.nbytes // size + 2) * size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    skip = -np.frombuffer(memory, np.uint8).ctypes.data % size
    copy = np.frombuffer(memory, values.dtype, values.size, skip).reshape(values.shape)
    copy[...] = values
    return copy


def attention_seconds(
    isa: str, pool: _native.ThreadPool, shape: AttentionShape, *, repeats: int
) -> float:
    """The best of `repeats` times of one layer's attention, bf16, blocks in random order."""
    rng = np.random.default_rng(0)
    blocks_each = -(-shape.context // KEYS_PER_BLOCK)
    num_blocks = blocks_each * shape.num_spans

    def bf16(*dims: int) -> NDArray[np.uint16]:
        drawn = rng.integers(0, 2**16, dims, np.uint16)
        return (drawn & np.uint16(0x807F)) | np.uint16(0x3F80)  # of magnitude 1 to 2, either sign

    heads, dim = shape.num_kv_heads, shape.head_dim
    keys = in_huge_pages(bf16(num_blocks, heads, dim // 2, KEYS_PER_BLOCK, 2))
    values = in_huge_pages(bf16(num_blocks, heads, KEYS_PER_BLOCK // 2, dim, 2))
    q = bf16(shape.tokens * shape.num_spans, shape.num_heads, shape.head_dim)
    out = np.empty_like(q)
    spans = np.arange(shape.num_spans + 1, dtype=np.int32)
    seconds = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        _native.ops.attention(
            isa,
            pool,
            q,
            keys,
            values,
            out,
            spans * np.int32(shape.tokens),
            np.full(shape.num_spans, shape.context, np.int32),
            rng.permutation(num_blocks).astype(np.int32),
            spans * np.int32(blocks_each),
            1.0 / math.sqrt(shape.head_dim),
        )
        seconds = min(seconds, time.perf_counter() - begin)
    return seconds


def model_like_logits(rows: int, vocab: int) -> F32:
    """Logits with a few likely tokens above a broad floor, as a small language model's are."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 3.0, (rows, vocab)).astype(np.float32)
    top = rng.integers(0, vocab, (rows, 40))
    np.put_along_axis(logits, top, rng.normal(14.0, 3.0, (rows, 40)).astype(np.float32), axis=1)
    return logits


def sampling_seconds(
    isa: str,
    pool: _native.ThreadPool,
    logits: F32,
    *,
    temperature: float,
    top_p: float,
    repeats: int,
) -> float:
    """The best of `repeats` times of drawing one token for every row."""
    rows = len(logits)
    arrays: dict[str, NDArray[Any]] = {
        "temperatures": np.full(rows, temperature, np.float32),
        "top_ks": np.zeros(rows, np.int32),
        "top_ps": np.full(rows, top_p, np.float32),
        "min_ps": np.zeros(rows, np.float32),
        "seeds": np.arange(rows, dtype=np.uint64),
        "positions": np.arange(rows, dtype=np.int64),
        "banned_ids": np.empty(0, np.int32),
        "banned_offsets": np.zeros(rows + 1, np.int32),
        "tokens": np.empty(rows, np.int32),
    }
    seconds = math.inf
    for _ in range(repeats):
        begin = time.perf_counter()
        _native.ops.sample(isa, pool, logits, arrays)
        seconds = min(seconds, time.perf_counter() - begin)
    return seconds
