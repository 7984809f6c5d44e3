"""Tiny models in every weight format, and native runners for them."""

from __future__ import annotations

import gguf
import numpy as np

from evenflow.model.load import Model
from evenflow.model.weights import WEIGHT_TYPES, WeightTensor
from helpers.tiny_model import tiny_model

SIZES = {
    "hidden_size": 64,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 160,
    "context_length": 4096,
}
# what the weights option is, and the type of the file's matrices
FORMATS = {
    "f32": ("f32", "F32"),
    "bf16": ("bf16", "F32"),
    "int8": ("auto", "Q8_0"),
    "q4_0": ("int4", "Q4_0"),
    "q4_1": ("auto", "Q4_1"),
}


def stored_model(kind: str, seed: int = 1, **changes) -> Model:
    """A tiny model whose matrices are stored as `kind`."""
    model = tiny_model(seed, **(SIZES | changes))
    if kind == "F32":
        return model
    tensors = {
        name: quantized(tensor, kind) if len(tensor.shape) == 2 else tensor
        for name, tensor in model.tensors.items()
    }
    return Model(model.spec, tensors, {}, model.path)


def quantized(tensor: WeightTensor, kind: str) -> WeightTensor:
    weight_type = WEIGHT_TYPES[kind]
    rows = gguf.quantize(tensor.float32(), gguf.GGMLQuantizationType(weight_type.gguf_id))
    return WeightTensor(tensor.name, tensor.shape, weight_type, rows)


def native_runner(format_name: str = "bf16", **options):
    """A runner of a tiny model, its KV pool full of NaN."""
    from evenflow.runner.native import NativeRunner

    weights, kind = FORMATS[format_name]
    model = stored_model(kind, **options.pop("changes", {}))
    values = {"num_blocks": 64, "num_threads": 2, "weights": weights} | options
    runner = NativeRunner(model, **values)
    runner.poison_kv()
    return runner


def prompt(seed: int, length: int, vocab: int = 160) -> list[int]:
    return np.random.default_rng(seed).integers(3, vocab, length).tolist()
