"""Writes models as the files people have: a GGUF file, a Hugging Face folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from evenflow.model.families import LLAMA

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.model.load import Model


def llama_config(model: Model, **changes) -> dict:
    """The config.json of an in-memory model; a change to None leaves the key out."""
    spec = model.spec
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
    } | changes
    return {key: value for key, value in config.items() if value is not None}


def write_folder(folder: Path, model: Model, **changes) -> Path:
    """A Hugging Face folder with one safetensors file and a word-per-token tokenizer."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(llama_config(model, **changes)))
    save_file(_file_tensors(model, LLAMA.hf_names), folder / "model.safetensors")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(model.spec.vocab_size)}, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return folder


def write_gguf(
    path: Path,
    model: Model,
    *,
    architecture: str = "llama",
    keys: dict | None = None,
    extra: dict[str, np.ndarray] | None = None,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    split_max_tensors: int = 0,
) -> Path:
    """A GGUF file with Llama's q and k rows interleaved, as converters write them.

    `keys` replaces metadata (a value of None leaves a key out); `extra` adds or replaces tensors.
    With `split_max_tensors` the package writes parts, PATH-00001-of-00002.gguf and so on.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    for key, value in (llama_keys(model) | (keys or {})).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    tensors = _file_tensors(model, LLAMA.gguf_names)
    for layer in range(model.spec.num_layers):
        for part, heads in (("q", model.spec.num_heads), ("k", model.spec.num_kv_heads)):
            name = f"blk.{layer}.attn_{part}.weight"
            tensors[name] = interleave(tensors[name], heads)
    for name, values in (tensors | (extra or {})).items():
        kind = quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama_keys(model: Model) -> dict:
    """GGUF metadata of an in-memory model, without the architecture."""
    spec = model.spec
    return {
        "general.name": spec.name,
        "llama.block_count": spec.num_layers,
        "llama.context_length": spec.context_length,
        "llama.embedding_length": spec.hidden_size,
        "llama.feed_forward_length": spec.intermediate_size,
        "llama.attention.head_count": spec.num_heads,
        "llama.attention.head_count_kv": spec.num_kv_heads,
        "llama.attention.key_length": spec.head_dim,
        "llama.attention.value_length": spec.head_dim,
        "llama.attention.layer_norm_rms_epsilon": spec.rms_norm_eps,
        "llama.rope.freq_base": spec.rope.theta,
        "llama.vocab_size": spec.vocab_size,
    }


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's permutation of q and k: rows j and j + d / 2 become neighbours."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def _file_tensors(model: Model, names) -> dict[str, np.ndarray]:
    tensors = {}
    for name, tensor in model.tensors.items():
        parts = name.split(".")
        key = name if len(parts) == 1 else f"layers.{{}}.{parts[2]}"
        file_name = names[key].format(parts[1] if len(parts) > 1 else "")
        tensors[file_name] = np.array(tensor.float32())
    return tensors
