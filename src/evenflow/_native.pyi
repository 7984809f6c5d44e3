# What the C++ module offers; see csrc/bindings*.cpp. Absent where it could not be built.

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Bytes: TypeAlias = NDArray[np.uint8]
_Words: TypeAlias = NDArray[np.uint16]
_F32: TypeAlias = NDArray[np.float32]
_I32: TypeAlias = NDArray[np.int32]
_I64: TypeAlias = NDArray[np.int64]
_U64: TypeAlias = NDArray[np.uint64]
_Source: TypeAlias = tuple[_Bytes, _I64 | None, int]

def runnable_isas() -> list[str]: ...
def usable_cores() -> int: ...
def peak_rate(isa: str, pool: ThreadPool, iterations: int = ...) -> float: ...
def read_rate(
    pool: ThreadPool, num_bytes: int, tiles: int = ..., rounds: int = ..., repeats: int = ...
) -> float: ...
def ping_pong_ns(rounds: int = ...) -> float: ...

class ThreadPool:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...

class PackedWeight:
    def __init__(
        self, kind: int, ggml_type: int, depth: int, rows: _Bytes, up: _Bytes | None = ...
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...

def gemm(
    isa: str,
    pool: ThreadPool,
    weight: PackedWeight,
    x: _Words,
    x_sums: _F32 | None,
    out: _F32,
    add: bool = ...,
    rows_per_tile: int = ...,
    panels_per_tile: int = ...,
    repeats: int = ...,
) -> None: ...
def multiply(
    isa: str,
    pool: ThreadPool,
    weight: PackedWeight,
    x: _Words,
    out: _F32,
    repeats: int = ...,
) -> None: ...
def gemm_f32(
    isa: str,
    pool: ThreadPool,
    weight: PackedWeight,
    x: _F32,
    out: _F32,
    rows_per_tile: int = ...,
    panels_per_tile: int = ...,
) -> None: ...
def gemm_gated(
    isa: str,
    pool: ThreadPool,
    weight: PackedWeight,
    x: _Words,
    x_sums: _F32 | None,
    out: _Words,
    rows_per_tile: int = ...,
    panels_per_tile: int = ...,
    repeats: int = ...,
) -> None: ...

class Model:
    def __init__(
        self,
        sizes: Sequence[int],
        norm_eps: float,
        isa: str,
        num_threads: int,
        num_blocks: int,
        block_size: int,
        full_precision: bool,
        kv_f32: bool,
    ) -> None: ...
    def set_embedding(self, source: _Source) -> None: ...
    def add_product(
        self, layer: int, name: str, kind: int, depth: int, sources: Sequence[_Source]
    ) -> None: ...
    def set_vector(self, layer: int, name: str, values: _F32) -> None: ...
    def add_rope(self, cos: _F32, sin: _F32, rotary_dim: int) -> None: ...
    def set_number(self, name: str, value: float) -> None: ...
    def set_layer(self, layer: int, window: int, rope: int) -> None: ...
    def pack(self) -> None: ...
    def step(
        self,
        token_ids: _I32,
        positions: _I32,
        slots: _I64,
        span_offsets: _I32,
        context_lens: _I32,
        block_tables: _I32,
        block_offsets: _I32,
        logit_rows: _I32,
        temperatures: _F32,
        top_ks: _I32,
        top_ps: _F32,
        min_ps: _F32,
        seeds: _U64,
        draw_positions: _I64,
        banned_ids: _I32,
        banned_offsets: _I32,
        extras: Mapping[str, NDArray[np.generic]] | None = ...,
    ) -> list[int]: ...
    def logits(self) -> _F32: ...
    def poison_kv(self) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...

class ops:  # noqa: N801 - a submodule: single kernels, for tests and benchmarks
    @staticmethod
    def attention(
        isa: str,
        pool: ThreadPool,
        q: _Words | _F32,
        keys: _Words | _F32,
        values: _Words | _F32,
        out: _Words | _F32,
        span_offsets: _I32,
        context_lens: _I32,
        block_tables: _I32,
        block_offsets: _I32,
        scale: float,
        plan_threads: int = ...,
        repeats: int = ...,
        window: int = ...,
        soft_cap: float = ...,
    ) -> tuple[int, int]: ...
    @staticmethod
    def rms_norm(
        isa: str,
        x: _F32,
        weight: _F32,
        eps: float,
        out: _Words | _F32,
        sums: _F32 | None,
        row_ids: _I32 | None,
        begin: int,
        end: int,
    ) -> None: ...
    @staticmethod
    def rope_write(
        isa: str,
        qkv: _F32,
        positions: _I32,
        slots: _I64,
        cos: _F32,
        sin: _F32,
        q_norm: _F32 | None,
        k_norm: _F32 | None,
        norm_eps: float,
        q: _Words | _F32,
        keys: _Words | _F32,
        values: _Words | _F32,
        begin: int,
        end: int,
    ) -> None: ...
    @staticmethod
    def embed(isa: str, token_ids: _I32, table: _Bytes, ggml_type: int, out: _F32) -> None: ...
    @staticmethod
    def to_bf16(isa: str, x: _F32, out: _Words) -> None: ...
    @staticmethod
    def group_sums(isa: str, x: _Words | _F32, sums: _F32) -> None: ...
    @staticmethod
    def sample(
        isa: str,
        pool: ThreadPool,
        logits: _F32,
        arrays: Mapping[str, NDArray[np.generic]],
        repeats: int = ...,
    ) -> None: ...
