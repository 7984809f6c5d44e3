"""Reads the tensors of a Hugging Face folder: one *.safetensors file, or shards with an index.

In: a folder. Out: memory-mapped `StoredTensor`s under the files' own names. The format is eight
bytes of header length, a JSON header and the bytes, so it is parsed here: the library's NumPy
front copies every tensor and has no bfloat16. Knows nothing of model families.
"""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from evenflow.errors import ModelError
from evenflow.model.gguf import StoredTensor
from evenflow.model.weights import WEIGHT_TYPES

if TYPE_CHECKING:
    from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LENGTH_BYTES = 8


def read_json(path: Path, purpose: str) -> dict[str, Any]:
    """Parse a JSON object; `purpose` completes the error of a missing file.

    Raises:
        ModelError: the file is missing, is not JSON, or holds no object.
    """
    try:
        content = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(
            f"{path.parent} has no {path.name}, {purpose}",
            hint="give a whole Hugging Face folder: config.json, tokenizer.json, *.safetensors",
        ) from None
    except orjson.JSONDecodeError as error:
        raise ModelError(
            f"{path} is not valid JSON: {error}", hint="download the file again"
        ) from None
    if not isinstance(content, dict):
        raise ModelError(
            f"{path} holds a {type(content).__name__}, not an object", hint="download it again"
        )
    return content


def read_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """Map every tensor of `folder`.

    Raises:
        ModelError: no weights, a shard missing, a tensor that is not in the shard that the index
            names, a file cut short or not safetensors.
    """
    if (folder / INDEX).exists():
        return _read_shards(folder)
    files = (
        [folder / SINGLE] if (folder / SINGLE).exists() else sorted(folder.glob("*.safetensors"))
    )
    if len(files) != 1:
        raise ModelError(
            f"{folder} has {len(files)} *.safetensors files and no {INDEX}",
            hint=f"the folder needs {SINGLE}, or shards with their {INDEX}",
        )
    return read_safetensors_file(files[0])


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor that the index lists, from the shard that it names."""
    weight_map = read_json(folder / INDEX, "which lists the shards").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise ModelError(
            f"{folder / INDEX} has no weight_map from tensors to files", hint="fetch it again"
        )
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not (folder / shard).is_file():
            held = sum(1 for file in weight_map.values() if file == shard)
            raise ModelError(
                f"{folder} has no {shard}, which {INDEX} names for {held} of"
                f" {len(weight_map)} tensors",
                hint="fetch the missing shard",
            )
        for name, tensor in read_safetensors_file(folder / shard).items():
            tensors[name] = tensor
            if name in weight_map and weight_map[name] != shard:
                raise ModelError(
                    f"{folder}: tensor {name} is in {shard}, but {INDEX} says {weight_map[name]}",
                    hint="index and shards do not belong together: fetch all of them again",
                )
    for name, shard in weight_map.items():
        if name not in tensors:
            raise ModelError(
                f"{folder / shard} has no tensor {name}, which {INDEX} says it holds",
                hint="index and shards do not belong together: fetch all of them again",
            )
    return tensors


def read_safetensors_file(path: Path) -> dict[str, StoredTensor]:
    """Map every tensor of one file.

    Raises:
        ModelError: not a safetensors file, an unsupported type, or cut short.
    """
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        raise _not_safetensors(path, f"it has {size} bytes")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    base = _LENGTH_BYTES + header_bytes
    if base > size:
        raise _not_safetensors(path, f"its header would end at {base:,} of {size:,} bytes")
    try:
        header = orjson.loads(data[_LENGTH_BYTES:base])
    except orjson.JSONDecodeError as error:
        raise _not_safetensors(path, f"its header is not JSON: {error}") from None
    content = np.frombuffer(data, np.uint8)[base:]
    return {
        name: _tensor(path, name, info, content)
        for name, info in header.items()
        if name != "__metadata__"
    }


def _not_safetensors(path: Path, why: str) -> ModelError:
    return ModelError(f"{path} is not a whole safetensors file: {why}", hint="fetch the file again")


def _tensor(path: Path, name: str, info: Any, content: np.ndarray[Any, Any]) -> StoredTensor:
    try:
        type_name, shape = info["dtype"], tuple(int(n) for n in info["shape"])
        start, end = info["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _not_safetensors(path, f"its entry for {name} is {info!r}") from None
    kind = WEIGHT_TYPES.get(type_name)
    if kind is None or kind.block_values > 1:
        raise ModelError(
            f"{path}: tensor {name} has the unsupported type {type_name}",
            hint="supported are F32, F16, BF16 and F64: take the unquantised weights of this model,"
            " or a GGUF file of it (Q8_0, Q4_K, ...)",
        )
    needed = math.prod(shape) * kind.block_bytes
    if end - start != needed:
        raise ModelError(
            f"{path}: tensor {name} of shape {shape} needs {needed:,} bytes, but its entry covers"
            f" {end - start:,}",
            hint="fetch the file again",
        )
    if end > len(content):
        raise ModelError(
            f"{path} is cut short: tensor {name} ends at {end:,} bytes of data, but the file has"
            f" {len(content):,}",
            hint="the download broke off: fetch the file again",
        )
    num_rows = math.prod(shape[:-1])
    return StoredTensor(name, shape, kind, content[start:end].reshape(num_rows, -1))
