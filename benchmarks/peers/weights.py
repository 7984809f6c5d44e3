"""The same weights for every peer: SmolLM2's, expanded once to bfloat16, in the forms that peers read.

In: a model. Out, in a folder: a GGUF file in BF16 (llama.cpp), one in F16 (OpenVINO), a Hugging Face
folder (vLLM). bfloat16 rounds to the nearest, ties to even, as the native runner does. float16 has more
digits and less range: of this model's values it changes those below 2**-14 alone, by less than 2**-25.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from evenflow.model.families import family_of_gguf
from evenflow.model.gguf import read_gguf
from evenflow.model.load import load_model, resolve_model
from evenflow.model.weights import WeightTensor

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

GGUF_BF16, GGUF_F16, FOLDER = "smollm2-bf16.gguf", "smollm2-f16.gguf", "smollm2-bf16"
SCALARS = {
    str: gguf.GGUFValueType.STRING,
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
}
LEFT_OUT = ("general.file_type", "general.quantization_version", "general.architecture")


def prepare(model: str, folder: Path) -> None:
    """Write what is not there yet.

    Raises:
        ModelError: the model cannot be loaded, or is no GGUF file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in ((GGUF_BF16, _gguf_bf16), (GGUF_F16, _gguf_f16), (FOLDER, _hf_folder)):
        if not (folder / name).exists():
            part = folder / f"{name}.part"
            write(model, part)
            part.rename(folder / name)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of the nearest bfloat16; ties go to the even one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exactly the same values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _gguf_bf16(model: str, path: Path) -> None:
    _write_gguf(model, path, gguf.GGMLQuantizationType.BF16, to_bf16)


def _gguf_f16(model: str, path: Path) -> None:
    def halve(values: NDArray[np.float32]) -> NDArray[np.float16]:
        return from_bf16(to_bf16(values)).astype(np.float16)

    _write_gguf(model, path, gguf.GGMLQuantizationType.F16, halve)


def _write_gguf(model: str, path: Path, kind: gguf.GGMLQuantizationType, convert: Any) -> None:
    """The same file with its matrices in another format; vectors stay float32."""
    source = read_gguf(resolve_model(model))
    arch = str(source.metadata["general.architecture"])
    writer = gguf.GGUFWriter(str(path), arch)
    file_type = "MOSTLY_BF16" if kind == gguf.GGMLQuantizationType.BF16 else "MOSTLY_F16"
    writer.add_file_type(gguf.LlamaFileType[file_type])
    for key, value in source.metadata.items():
        if key in LEFT_OUT:
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, SCALARS[type(value)])
    for name, tensor in source.tensors.items():
        values = WeightTensor(name, tensor.shape, tensor.type, tensor.rows).float32()
        if values.ndim == 1:
            writer.add_tensor(name, np.ascontiguousarray(values))
        else:
            converted = convert(values)
            shape = tensor.shape
            if converted.dtype == np.uint16:  # which the package takes as bytes
                converted, shape = converted.view(np.uint8), (*shape[:-1], shape[-1] * 2)
            writer.add_tensor(name, converted, raw_shape=shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _hf_folder(model: str, folder: Path) -> None:
    """config.json and model.safetensors; no tokenizer, since every prompt is token ids."""
    loaded = load_model(model)
    spec = loaded.spec
    family = family_of_gguf(spec.family, str(loaded.path))
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [family.hf_architectures[0]],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts = []
    at = 0
    for name, tensor in loaded.tensors.items():
        layer, part = name.split(".")[1:] if name.startswith("layers.") else ("", name)
        key = f"layers.{{}}.{part}" if layer else name
        data = to_bf16(tensor.float32()).tobytes()
        header[family.hf_names[key].format(layer)] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(parts)
