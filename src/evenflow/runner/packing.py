"""Which format each weight is packed in, and the handing over to C++.

In: a `Model` and what the options ask for. Out: a `_native.Model` with everything packed. Stored
rows go over as they lie in the mapped file; only formats that C++ cannot read are widened here.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evenflow import _native
from evenflow.errors import ConfigError, ModelError
from evenflow.model.weights import WEIGHT_TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from evenflow.model.load import Model
    from evenflow.model.rope import RopeSpec
    from evenflow.model.spec import ModelSpec
    from evenflow.model.weights import WeightTensor

Source = tuple[NDArray[np.uint8], NDArray[np.int64] | None, int]
Vector = NDArray[np.float32]


# numbers of csrc/kernels.h's WeightFormat
WEIGHTS = ("auto", "bf16", "int8", "int4", "f32")
F32, BF16, Q8_0, Q4_0, Q4_1 = range(5)
_FOUR_BIT = {"Q4_0": Q4_0, "Q4_1": Q4_1}
_EXACT = _FOUR_BIT | {"Q8_0": Q8_0}
_READABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")  # types that C++ packs from
_GROUP = 32  # weights along a row that share a scale
_MAX_HEAD_DIM = 256
_ROW_MULTIPLE = 16  # rows of activations are walked in vectors of this many values


def pack_model(
    model: Model,
    *,
    weights: str,
    isa: str,
    num_threads: int,
    num_blocks: int,
    block_size: int,
    kv_f32: bool,
    tables: Mapping[RopeSpec, tuple[Vector, Vector]],
) -> _native.Model:
    """Make a C++ model and pack its weights on all threads.

    Args:
        model: the model; its embedding is read in place for as long as the result lives.
        weights: see `NativeRunner`.
        isa: the instruction set, or "auto".
        num_threads: compute threads.
        num_blocks: blocks of the KV pool.
        block_size: slots per block, a multiple of 64.
        kv_f32: keep keys and values in float32.
        tables: cosines and sines of each RoPE that a layer has.

    Raises:
        ConfigError: the weights cannot be had in that format.
        ModelError: sizes that the kernels do not take.
    """
    spec, tensors = model.spec, model.tensors
    choose = _Chooser(model, weights)
    check_sizes(spec, str(model.path))
    full = weights == "f32"
    native = _native.Model(
        _sizes(spec), spec.rms_norm_eps, isa, num_threads, num_blocks, block_size, full, kv_f32
    )
    keep: list[Source] = []  # C++ reads these until `pack` returns

    def add(layer: int, name: str, parts: list[WeightTensor]) -> None:
        kind, sources = choose(parts)
        keep.extend(sources)
        native.add_product(layer, name, kind, parts[0].shape[1], sources)

    native.set_embedding(_embedding(tensors["embed"]))
    for i in range(spec.num_layers):
        layer = {part: tensors[f"layers.{i}.{part}"] for part in spec.layer_shapes()}
        for run in _runs([layer["q"], layer["k"], layer["v"]]):
            add(i, "qkv", run)
        add(i, "o", [layer["o"]])
        add(i, "gate_up", [layer["gate"], layer["up"]])
        add(i, "down", [layer["down"]])
        for name, tensor in layer.items():
            if name.endswith("norm"):
                native.set_vector(i, name, _vector(tensor))
        if spec.qkv_bias:
            bias = [_vector(layer[f"{part}_bias"]) for part in "qkv"]
            native.set_vector(i, "qkv_bias", np.concatenate(bias))
        rope = spec.layer_rope(i)
        native.set_layer(i, spec.layer_window(i), -1 if rope is None else list(tables).index(rope))
    add(0, "head", [tensors.get("head", tensors["embed"])])
    native.set_vector(0, "final_norm", _vector(tensors["final_norm"]))
    for table in tables.values():
        cos, sin = (np.ascontiguousarray(part).reshape(-1) for part in table)
        native.add_rope(cos, sin, 2 * table[0].shape[1])
    for name, value in _numbers(spec).items():
        native.set_number(name, value)
    native.pack()
    _let_go_of_pages(tensors.values())
    return native


def _numbers(spec: ModelSpec) -> dict[str, float]:
    """What sets the model apart from Llama, under the names that `Model::set_number` knows."""
    numbers = {
        "embedding_scale": spec.embedding_scale,
        "residual_scale": spec.residual_scale,
        "logit_scale": spec.logit_scale,
        "attention_cap": spec.attention_soft_cap,
        "logit_cap": spec.logit_soft_cap,
        "gelu": float(spec.activation == "gelu_tanh"),
    }
    if spec.attention_scale is not None:
        numbers["attention_scale"] = spec.attention_scale
    return numbers


def check_sizes(spec: ModelSpec, source: str) -> None:
    """Refuse sizes that the kernels do not take.

    Raises:
        ModelError: names the size and the multiple.
    """
    for what, size in (
        ("hidden size", spec.hidden_size),
        ("query width", spec.q_size),
        ("intermediate size", spec.intermediate_size),
        ("head size", spec.head_dim),
    ):
        if size % _ROW_MULTIPLE:
            raise ModelError(
                f"{source}: the {what} is {size}, but the native runner takes multiples of"
                f" {_ROW_MULTIPLE}",
                hint="use the reference runner for this model",
            )
    if spec.head_dim > _MAX_HEAD_DIM:
        raise ModelError(
            f"{source}: the head size is {spec.head_dim}, but the native runner takes at most"
            f" {_MAX_HEAD_DIM}",
            hint="use the reference runner for this model",
        )


class _Chooser:
    """Chooses the format of matrices that are multiplied together, and their sources."""

    def __init__(self, model: Model, weights: str) -> None:
        if weights not in WEIGHTS:
            raise ConfigError(f"weights is {weights!r}", hint=f"weights takes {', '.join(WEIGHTS)}")
        types = {tensor.type.name for tensor in model.tensors.values()}
        if weights == "int4" and not types & _FOUR_BIT.keys():
            raise ConfigError(
                f"weights is 'int4', but {model.path} holds {', '.join(sorted(types))}",
                hint="4-bit weights come from a file of type Q4_0 or Q4_1; try int8",
            )
        self._weights = weights

    def __call__(self, parts: list[WeightTensor]) -> tuple[int, list[Source]]:
        kinds = {part.type.name for part in parts}
        kind = self._format(kinds.pop() if len(kinds) == 1 else "mixed")
        if kind == Q8_0 and parts[0].shape[1] % _GROUP:
            raise ConfigError(
                f"{parts[0].name} has rows of {parts[0].shape[1]} weights, but int8 keeps groups"
                f" of {_GROUP}",
                hint="use weights bf16 for this model",
            )
        same = len({part.type.name for part in parts}) == 1
        return kind, [_source(part, widen=not same) for part in parts]

    def _format(self, type_name: str) -> int:
        match self._weights:
            case "f32":
                return F32
            case "bf16":
                return BF16
            case "int8":
                return Q8_0
            case "int4":
                return _FOUR_BIT.get(type_name, Q8_0)
            case _:
                return _EXACT.get(type_name, BF16)


def _runs(parts: list[WeightTensor]) -> list[list[WeightTensor]]:
    """Neighbours of one type together: they become one product."""
    runs = [[parts[0]]]
    for part in parts[1:]:
        if part.type == runs[-1][-1].type:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _source(tensor: WeightTensor, *, widen: bool = False) -> Source:
    if widen or tensor.type.name not in _READABLE:
        values = np.ascontiguousarray(tensor.float32())
        return values.view(np.uint8), None, WEIGHT_TYPES["F32"].gguf_id
    return tensor.stored_rows, tensor.row_order, tensor.type.gguf_id


def _embedding(tensor: WeightTensor) -> Source:
    """The table in a type that rows can be looked up in; K-quants become bf16."""
    if tensor.type.name in _READABLE:
        return tensor.rows(), None, tensor.type.gguf_id
    bits = tensor.float32().view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).view(np.uint8), None, WEIGHT_TYPES["BF16"].gguf_id


def _let_go_of_pages(tensors: Iterable[WeightTensor]) -> None:
    """Drop the file's pages from this process; what is read again comes back from the file.

    Only mappings are advised: of them the kernel keeps the file, of other memory nothing.
    """
    owners = {}
    for tensor in tensors:
        owner: object = tensor.stored_rows
        while isinstance(owner, np.ndarray | memoryview):
            owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        owners[id(owner)] = owner
    for owner in owners.values():
        if isinstance(owner, mmap.mmap):
            owner.madvise(mmap.MADV_DONTNEED)


def _vector(tensor: WeightTensor) -> Vector:
    return np.array(tensor.float32(), np.float32).reshape(-1)


def _sizes(spec: ModelSpec) -> list[int]:
    return [
        spec.num_layers,
        spec.hidden_size,
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.intermediate_size,
        spec.vocab_size,
    ]
