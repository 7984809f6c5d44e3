"""A Hugging Face folder as a GGUF file, by the conventions of llama.cpp's converter.

Tensor names come from the `gguf` package's own map, keys from its writer, so that a mistake in our
tables of names cannot hide. What GGUF has no key for must not be in the folder's config.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import gguf
import numpy as np

from evenflow.model.safetensors import read_safetensors
from evenflow.model.weights import WeightTensor

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "Olmo2ForCausalLM": "olmo2",
    "SmolLM3ForCausalLM": "smollm3",
    "GraniteForCausalLM": "granite",
}
PERMUTED = ("llama", "smollm3", "granite")  # the classes that inherit the converter's LlamaModel


def write_converted(folder: Path, path: Path) -> Path:
    """Convert `folder` to the float32 GGUF file `path`."""
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, arch, config)
    for name, values in tensors_of(folder, arch, config).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(folder: Path, arch: str, config: dict) -> dict[str, np.ndarray]:
    (kind,) = (m for m, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    tensors = {}
    for name, stored in read_safetensors(folder).items():
        values = np.array(WeightTensor(name, stored.shape, stored.type, stored.rows).float32())
        if arch in PERMUTED and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permute(values, heads[name[-len("q_proj.weight")]])
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = values
    rope = config.get("rope_parameters") or {}
    for which in ("long", "short"):
        if f"{which}_factor" in rope:
            values = np.array(rope[f"{which}_factor"], np.float32)
            tensors[f"rope_factors_{which}.weight"] = values
    return tensors


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows j and j + d / 2 of a head become neighbours."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def add_keys(writer: gguf.GGUFWriter, arch: str, config: dict) -> None:
    head_dim = config.get("head_dim")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if head_dim:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config["sliding_window"] or 0)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    add_rope_keys(writer, config)


def add_rope_keys(writer: gguf.GGUFWriter, config: dict) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        share = rope["partial_rotary_factor"]
        size = config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(share * size))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
