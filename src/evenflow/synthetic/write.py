"""Writes a GGUF model of random weights, tensor by tensor, in little memory.

In: a shape, a format, a seed. Out: a file that loads like any other and says that it is random. It
is written under another name and renamed when it is whole, so a broken run leaves no model behind.
The same seed gives the same weights; each tensor's depend on its name and the seed alone.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from evenflow.errors import ModelError
from evenflow.model.describe import spec_from_gguf
from evenflow.model.families import family_of_gguf
from evenflow.model.gguf import DEFAULT_ALIGNMENT
from evenflow.model.load import RANDOM_SEED_KEY
from evenflow.model.weights import WEIGHT_TYPES, WeightType
from evenflow.synthetic.draw import STD, draw_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from evenflow.model.places import RandomName
    from evenflow.model.shapes import Shape

_PIECE_VALUES = 4 << 20  # values drawn at a time
_HEADER_BYTES = 32 << 20  # more than any vocabulary here takes


class _Planned(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: WeightType

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.type.row_bytes(self.shape[-1])


def write_random(
    name: RandomName,
    shape: Shape,
    tokenizer: Mapping[str, Any],
    *,
    seed: int,
    wrote: Callable[[int, int], None],
) -> Path:
    """Write the model's file, or replace it.

    Args:
        name: the model.
        shape: its numbers.
        tokenizer: GGUF key/values; see `tokens`.
        seed: 0 to 2**32 - 1.
        wrote: called with the bytes of weights written so far, and of all.

    Returns:
        The file.

    Raises:
        ModelError: too little room on the disk (with both numbers), or somebody else writes it.
    """
    path = name.path()
    planned = _plan(shape, name)
    total = sum(tensor.num_bytes for tensor in planned)
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < total + _HEADER_BYTES:
        raise ModelError(
            f"{name} needs {_gigabytes(total + _HEADER_BYTES)} in {path.parent}, which has"
            f" {_gigabytes(free)} free",
            hint="free some room, or set EVENFLOW_MODELS to a folder on another disk",
        )
    with _unfinished(path) as part:
        about = {
            "general.name": str(name),
            "general.description": f"random weights, normal with deviation {STD}; for speed only",
            RANDOM_SEED_KEY: seed,
        }
        _write_header(part, shape, planned, {**about, **tokenizer})
        with part.open("r+b") as file:
            done = 0
            file.seek(0, os.SEEK_END)
            for tensor in planned:
                _pad(file)
                for piece in _pieces(tensor, seed, shape):
                    file.write(piece.data)
                    done += piece.nbytes
                    wrote(done, total)
            _pad(file)
    return path


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """The file under its temporary name, ours alone; afterwards it is in place, or gone."""
    part = path.with_suffix(".part")
    with part.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(
                f"{part} is being written by another process", hint="wait for it to end"
            ) from None
        try:
            os.truncate(part, 0)  # what a killed run left
            yield part
            part.replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                part.unlink()
            raise


def _plan(shape: Shape, name: RandomName) -> list[_Planned]:
    """Names, shapes and types of the file's tensors, as the family's map has them."""
    metadata = shape.metadata()
    family = family_of_gguf(shape.architecture, str(name))
    divisors = shape.freq_divisors()
    spec = spec_from_gguf(
        metadata,
        family,
        embed_rows=int(shape.keys["vocab_size"]),
        tied=shape.tied,
        divisors={"rope_freqs": divisors} if divisors else {},
        source=str(name),
    )
    matrix, vector = WEIGHT_TYPES[name.format.upper()], WEIGHT_TYPES["F32"]
    planned = [_Planned("rope_freqs.weight", (len(divisors),), vector)] if divisors else []
    for canonical, size in spec.tensor_shapes().items():
        layer, part = canonical.split(".")[1:] if "." in canonical else ("", "")
        key = f"layers.{{}}.{part}" if layer else canonical
        kind = matrix if len(size) > 1 else vector
        planned.append(_Planned(family.gguf_names[key].format(layer), size, kind))
    return planned


def _write_header(
    part: Path, shape: Shape, planned: list[_Planned], extra: Mapping[str, Any]
) -> None:
    # imported here: only this needs the package's writer
    import gguf  # noqa: PLC0415

    writer = gguf.GGUFWriter(part, shape.architecture)
    for key, value in {**shape.metadata(), **extra}.items():
        if key == "general.architecture":
            continue  # the writer has it
        match value:
            case bool():
                writer.add_bool(key, value)
            case str():
                writer.add_string(key, value)
            case float():
                writer.add_float32(key, value)
            case int():
                writer.add_uint32(key, value)
            case _:
                writer.add_array(key, value)
    for tensor in planned:
        kind = gguf.GGMLQuantizationType(tensor.type.gguf_id)
        # the writer takes a packed tensor's shape in bytes
        stored = (*tensor.shape[:-1], tensor.type.row_bytes(tensor.shape[-1]))
        writer.add_tensor_info(
            tensor.name, stored, np.dtype(np.uint8), tensor.num_bytes, raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))


def _pieces(tensor: _Planned, seed: int, shape: Shape) -> Iterator[np.ndarray[Any, Any]]:
    """The tensor's bytes, some rows at a time."""
    if tensor.name == "rope_freqs.weight":
        yield np.array(shape.freq_divisors(), np.float32)
        return
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
    if len(tensor.shape) == 1:
        is_bias = tensor.name.endswith(".bias")
        drawn = rng.normal(0 if is_bias else 1, STD, tensor.shape)
        yield drawn.astype(np.float32)
        return
    num_rows, num_cols = tensor.shape
    step = max(1, _PIECE_VALUES // num_cols)
    for first in range(0, num_rows, step):
        count = min(step, num_rows - first)
        yield draw_rows(rng, tensor.type.name.lower(), count, num_cols)
