"""A random Llama model in memory: a real forward pass at hundreds of steps a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenflow.model.load import Model
from evenflow.model.rope import RopeSpec
from evenflow.model.spec import ModelSpec
from evenflow.model.weights import WEIGHT_TYPES, WeightTensor


def tiny_spec(**changes) -> ModelSpec:
    """A spec of a few thousand parameters; every field can be changed."""
    values = {
        "family": "llama",
        "name": "tiny",
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": 64,
        "context_length": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeSpec(),
        "tied_embeddings": True,
    } | changes
    return ModelSpec(**values)


def tiny_model(seed: int, **changes) -> Model:
    """A model whose float32 weights are a function of (seed, spec); no file is involved.

    Matrices are wide enough for attention and logits to differ clearly between positions, so a
    wrong slot or position changes the greedy token.
    """
    spec = tiny_spec(**changes)
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in spec.tensor_shapes().items():
        if len(shape) == 1:
            values = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            values = rng.normal(0, 1.5 / np.sqrt(shape[1]), shape).astype(np.float32)
        tensors[name] = weight(name, values)
    return Model(spec, tensors, {}, Path(f"tiny-{seed}"))


def weight(name: str, values: np.ndarray) -> WeightTensor:
    """Float32 values as a stored weight."""
    rows = values.reshape(-1, values.shape[-1]).view(np.uint8)
    return WeightTensor(name, values.shape, WEIGHT_TYPES["F32"], rows)
