"""Llama and the families that are Llama with a little more: Mistral, SmolLM3, Granite.

GGUF converters interleave the rows of q and k for all of them (`LlamaModel.permute` of llama.cpp's
convert_hf_to_gguf.py), and call Mistral "llama".
"""

from __future__ import annotations

from dataclasses import replace

from evenflow.model.families.family import GGUF_NAMES, HF_NAMES, Family

LLAMA = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    gguf_architectures=("llama",),
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
    hf_required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    gguf_interleaved=("q", "k"),
)
MISTRAL = replace(
    LLAMA,
    name="mistral",
    hf_architectures=("MistralForCausalLM",),
    gguf_architectures=(),
    hf_required={"hidden_act": "silu"},
)
SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    hf_architectures=("SmolLM3ForCausalLM",),
    gguf_architectures=("smollm3",),
    hf_defaults={"use_sliding_window": False, "tie_word_embeddings": True},
    no_rope_step=4,
)
GRANITE = replace(
    LLAMA,
    name="granite",
    hf_architectures=("GraniteForCausalLM",),
    gguf_architectures=("granite",),
    multipliers=True,
)
