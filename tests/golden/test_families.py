"""Random tiny models of every family, written by transformers: what it computes, ours must.

Prompts are longer than every window and than RoPE's original context.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evenflow.model.families import FAMILIES
from evenflow.model.load import load_model
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, prefill, request_with_blocks
from helpers.gguf_converter import ARCHITECTURES, write_converted

FOLDER = Path(__file__).parent / "families"
NAMES = sorted(path.name for path in FOLDER.iterdir())
SHORT = 50  # within phi3's original context of 64
# what GGUF files do not say, as llama.cpp takes it for granted
IN_GGUF = {
    "mistral": {"sliding_window": None},
    "qwen2-yarn": {"use_sliding_window": False, "layer_types": None},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
}


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / name / "logits.npz") as file:
        return dict(file)


def reference_logits(model, prompt, chunk: int, num_blocks: int = 40) -> np.ndarray:
    runner = ReferenceRunner(model, num_blocks=num_blocks, block_size=4)
    blocks = np.random.default_rng(3).permutation(num_blocks).tolist()
    return prefill(runner, request_with_blocks("r", prompt, blocks), cut(len(prompt), chunk))


def test_every_family_is_recorded():
    recorded = {load_model(FOLDER / name).spec.family for name in NAMES}
    assert recorded == {family.name for family in FAMILIES}
    assert set(ARCHITECTURES) == {a for family in FAMILIES for a in family.hf_architectures}
    assert set(ARCHITECTURES.values()) == {a for f in FAMILIES for a in f.gguf_architectures}


@pytest.mark.parametrize("chunk", [7, 64, 150])
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_agrees_with_transformers(name, chunk):
    recorded = golden(name)
    logits = reference_logits(load_model(FOLDER / name), recorded["prompt"], chunk)[::10]
    assert np.abs(logits - recorded["logits"]).max() <= 2e-4


def test_longrope_takes_its_short_divisors_where_no_sequence_can_be_longer():
    recorded = golden("phi3")
    model, prompt = load_model(FOLDER / "phi3"), recorded["prompt"][:SHORT]
    logits = reference_logits(model, prompt, SHORT, num_blocks=16)[::10]
    assert np.abs(logits - recorded["short_logits"]).max() <= 2e-4
    long = reference_logits(model, prompt, SHORT)[::10]
    assert np.abs(long - recorded["short_logits"]).max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_in_chunks_draws_the_tokens_of_one_pass(name):
    model, prompt = load_model(FOLDER / name), golden(name)["prompt"]
    whole = reference_logits(model, prompt, len(prompt))
    best = np.sort(whole, axis=1)[:, -2:]
    sure = best[:, 1] - best[:, 0] > 1e-3
    assert sure.sum() > 100
    for chunk in (1, 33, 100):
        chunked = reference_logits(model, prompt, chunk)
        assert np.array_equal(chunked.argmax(1)[sure], whole.argmax(1)[sure])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "llama-dynamic"])
def test_a_gguf_file_is_the_same_model(name, tmp_path):
    folder = tmp_path / "hf"
    shutil.copytree(FOLDER / name, folder)
    config = json.loads((folder / "config.json").read_text()) | IN_GGUF.get(name, {})
    (folder / "config.json").write_text(json.dumps(config))
    ours, theirs = load_model(folder), load_model(write_converted(folder, tmp_path / "m.gguf"))
    assert theirs.tensors.keys() == ours.tensors.keys()
    for part, tensor in theirs.tensors.items():
        assert np.array_equal(tensor.float32(), ours.tensors[part].float32()), part
    named = {"name": "m", "family": "m", "context_length": 1, "attention_scale": None}
    close = {
        "rms_norm_eps": 1e-6,
        "logit_scale": 1.0,
        "residual_scale": 1.0,
        "rope": ours.spec.rope,
    }
    same = replace(theirs.spec, **named, **close)
    assert same == replace(ours.spec, **named, **close)
    prompt = golden(name)["prompt"]
    logits = [reference_logits(m, prompt, len(prompt)) for m in (ours, theirs)]
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4  # keys are float32 there


def test_the_rows_of_a_fused_tensor_are_views_of_the_file():
    tensors = load_model(FOLDER / "phi3").tensors
    starts = [
        tensors[f"layers.0.{part}"].stored_rows.__array_interface__["data"][0] for part in "qkv"
    ]
    sizes = [tensors[f"layers.0.{part}"].num_bytes for part in "qk"]
    assert np.diff(starts).tolist() == sizes
    assert all(not t.stored_rows.flags.owndata for t in tensors.values())
