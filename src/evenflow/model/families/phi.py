"""Phi-3, Phi-3.5 and Phi-4-mini: q, k, v in one tensor, gate and up in another.

llama.cpp reads the window of a GGUF file and leaves it unused; here it is computed, as in
transformers.
"""

from __future__ import annotations

from evenflow.model.families.family import GGUF_NAMES, HF_NAMES, Family

_ATTENTION = ("layers.{}.q", "layers.{}.k", "layers.{}.v")
_MLP = ("layers.{}.gate", "layers.{}.up")

PHI3 = Family(
    name="phi3",
    hf_architectures=("Phi3ForCausalLM",),
    gguf_architectures=("phi3",),
    hf_names=HF_NAMES
    | dict.fromkeys(_ATTENTION, "model.layers.{}.self_attn.qkv_proj.weight")
    | dict.fromkeys(_MLP, "model.layers.{}.mlp.gate_up_proj.weight"),
    gguf_names=GGUF_NAMES
    | dict.fromkeys(_ATTENTION, "blk.{}.attn_qkv.weight")
    | dict.fromkeys(_MLP, "blk.{}.ffn_up.weight"),
    hf_required={"hidden_act": "silu", "attention_bias": False},
)
