"""Reads a GGUF file: key/values and where each tensor lies, memory-mapped.

In: a path. Out: plain Python metadata and `StoredTensor`s under the file's own names. The format
is ggml's GGUF, versions 2 and 3, little-endian. The `gguf` package's reader builds an array per
token and takes seconds for a vocabulary; this one takes tens of milliseconds, and a test holds the
two together. Knows nothing of model families.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evenflow.errors import ModelError
from evenflow.model.weights import WEIGHT_TYPES, WeightType

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

_STRING, _ARRAY, _BOOL = 8, 9, 7
# value type -> little-endian struct code
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TYPES_BY_ID = {t.gguf_id: t for t in WEIGHT_TYPES.values()}
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor under the name its file gives it.

    `shape` is outermost first; `rows` is [rows, row bytes] uint8, mapped and read-only.
    """

    name: str
    shape: tuple[int, ...]
    type: WeightType
    rows: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A GGUF file's contents; metadata values are int, float, bool, str or lists of them."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Map `path` and parse its header.

    Raises:
        ModelError: not a GGUF file, an unknown version or type, or cut short.
    """
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
        if head != MAGIC:
            raise ModelError(
                f"{path} is not a GGUF file: it starts with {head!r}, not {MAGIC!r}",
                hint="give a .gguf file, or a folder with config.json and *.safetensors",
            )
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data)
    try:
        return _parse(path, cursor)
    except struct.error:
        raise _cut_short(path, f"its header needs more than {cursor.at:,}", len(data)) from None
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path} holds a name or token that is not UTF-8 near byte {cursor.at:,}: {error}",
            hint="the file is damaged: download it again",
        ) from None


def _cut_short(path: Path, needs: str, size_bytes: int) -> ModelError:
    return ModelError(
        f"{path} is cut short: {needs} bytes, but the file has {size_bytes:,}",
        hint="the download broke off: fetch the file again",
    )


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    cursor.at = len(MAGIC)
    version = cursor.scalar("I")
    if version not in VERSIONS:
        raise ModelError(
            f"{path} is GGUF version {version}, but versions {VERSIONS[0]} and {VERSIONS[1]}"
            " (little-endian) are known",
            hint="convert the model again with a current converter",
        )
    num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(path, key)
    infos = [cursor.tensor_info(path) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(
            f"{path}: general.alignment is {alignment!r}, but it counts bytes",
            hint="the file is damaged: download it again",
        )
    base = -(-cursor.at // alignment) * alignment
    everything = np.frombuffer(cursor.data, np.uint8)
    tensors = {}
    for name, shape, kind, offset in infos:
        row_bytes = kind.row_bytes(shape[-1])
        num_rows = math.prod(shape[:-1])
        start, end = base + offset, base + offset + num_rows * row_bytes
        if end > everything.size:
            raise _cut_short(path, f"tensor {name} ends at {end:,}", everything.size)
        rows = everything[start:end].reshape(num_rows, row_bytes)
        tensors[name] = StoredTensor(name, shape, kind, rows)
    return GgufFile(path, metadata, tensors)


class _Cursor:
    """A read position in the mapped header; running past the end raises `struct.error`."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, at, unpack, size = self.data, self.at, _U64.unpack_from, len(self.data)
        found: list[str] = []
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            if end > size:
                raise struct.error
            found.append(data[at + 8 : end].decode())
            self.at = at = end
        return found

    def value(self, path: Path, key: str) -> Any:
        kind = self.scalar("I")
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_scalar_code(path, key, kind))
        item_kind, count = self.scalar("I"), self.scalar("Q")
        if item_kind == _STRING:
            return self.strings(count)
        item = np.dtype("<" + _scalar_code(path, key, item_kind))
        end = self.at + count * item.itemsize
        if end > len(self.data):
            raise struct.error
        values = np.frombuffer(self.data, item, count, self.at).tolist()
        self.at = end
        return values

    def tensor_info(self, path: Path) -> tuple[str, tuple[int, ...], WeightType, int]:
        name, num_dims = self.string(), self.scalar("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise ModelError(
                f"{path}: tensor {name} has {num_dims} dimensions, but GGUF allows 1 to {MAX_DIMS}",
                hint="the file is damaged: download it again",
            )
        shape = tuple(reversed([self.scalar("Q") for _ in range(num_dims)]))
        type_id, offset = self.scalar("I"), self.scalar("Q")
        kind = _TYPES_BY_ID.get(type_id)
        if kind is None:
            raise ModelError(
                f"{path}: tensor {name} has the unsupported type {_type_name(type_id)}",
                hint=f"supported are {', '.join(WEIGHT_TYPES)}: pick another quantisation",
            )
        if shape[-1] % kind.block_values:
            raise ModelError(
                f"{path}: tensor {name} has rows of {shape[-1]} values, but {kind.name} packs"
                f" {kind.block_values} together",
                hint="the file is damaged: download it again",
            )
        return name, shape, kind, offset


def _type_name(type_id: int) -> str:
    # imported here: only an error needs the names of types that are not read
    import gguf  # noqa: PLC0415

    try:
        return f"{gguf.GGMLQuantizationType(type_id).name} (number {type_id})"
    except ValueError:
        return f"number {type_id}"


def _scalar_code(path: Path, key: str, kind: int) -> str:
    code = _SCALARS.get(kind)
    if code is None:
        raise ModelError(
            f"{path}: key {key} has the unknown value type {kind}",
            hint="the file is damaged, or newer than this reader: convert the model again",
        )
    return code
