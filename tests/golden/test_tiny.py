"""Random Llama folders written by transformers: what it computes on them, ours must."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenflow.model.load import load_model
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, prefill, request_with_blocks

FOLDER = Path(__file__).parent / "tiny"
NAMES = sorted(path.name for path in FOLDER.iterdir())


def test_every_recorded_variant_is_there():
    assert NAMES == ["gqa-tied", "llama3-sharded", "mha-untied", "mqa-linear"]


@pytest.mark.parametrize("chunk", [1, 7, 64, 150])
@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_with_transformers(name, chunk):
    with np.load(FOLDER / name / "logits.npz") as golden:
        prompt, wanted = golden["prompt"], golden["logits"]
    runner = ReferenceRunner(load_model(FOLDER / name), num_blocks=40, block_size=4)
    request = request_with_blocks("r", prompt, np.random.default_rng(3).permutation(40).tolist())
    logits = prefill(runner, request, cut(len(prompt), chunk))[::10]
    assert np.abs(logits - wanted).max() <= 1e-4


def test_formats_and_shards_are_read():
    models = {name: load_model(FOLDER / name) for name in NAMES}
    types = {name: model.tensors["layers.1.q"].type.name for name, model in models.items()}
    assert types == {
        "gqa-tied": "F32",
        "llama3-sharded": "BF16",
        "mha-untied": "F16",
        "mqa-linear": "F32",
    }
    assert models["llama3-sharded"].spec.rope.kind == "llama3"
    assert models["mqa-linear"].spec.rope.factor == 4.0
    assert "head" in models["mha-untied"].tensors
    assert "head" not in models["gqa-tied"].tensors
    assert models["gqa-tied"].metadata["config.json"]["model_type"] == "llama"
