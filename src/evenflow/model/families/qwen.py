"""Qwen2 and Qwen2.5 (biases on q, k and v), Qwen3 (norms on the heads of q and k)."""

from __future__ import annotations

from evenflow.model.families.family import GGUF_NAMES, HF_NAMES, Family

QWEN2 = Family(
    name="qwen2",
    hf_architectures=("Qwen2ForCausalLM",),
    gguf_architectures=("qwen2",),
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
    hf_required={"hidden_act": "silu"},
    hf_defaults={"use_sliding_window": False},
    qkv_bias=True,
    window_pattern=0,
)
QWEN3 = Family(
    name="qwen3",
    hf_architectures=("Qwen3ForCausalLM",),
    gguf_architectures=("qwen3",),
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
    hf_required={"hidden_act": "silu", "attention_bias": False},
    hf_defaults={"use_sliding_window": False},
    qk_norm="head",
    window_pattern=0,
)
