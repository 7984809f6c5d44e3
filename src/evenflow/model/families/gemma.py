"""Gemma 2 and Gemma 3, text only: norms before and after, GELU gates, alternating windows.

Source: the Gemma 2 and Gemma 3 reports (2024, 2025), and their configurations in transformers.
Norm weights are stored less one, except in GGUF, whose converter adds it.
"""

from __future__ import annotations

from evenflow.model.families.family import GGUF_NAMES, HF_NAMES, Family

_NAMES = HF_NAMES | {
    "layers.{}.attn_post_norm": "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
    "layers.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}
_REQUIRED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
}
_DEFAULTS = {"tie_word_embeddings": True, "query_pre_attn_scalar": 256}

GEMMA2 = Family(
    name="gemma2",
    hf_architectures=("Gemma2ForCausalLM",),
    gguf_architectures=("gemma2",),
    hf_names=_NAMES,
    gguf_names=GGUF_NAMES,
    hf_required=_REQUIRED,
    hf_defaults=_DEFAULTS
    | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096},
    post_norms=True,
    norm_offset=1.0,
    activation="gelu_tanh",
    scaled_embedding=True,
    soft_caps=True,
    query_scalar=True,
    gguf_plain_scale_layers=46,  # the 27B model
    window_pattern=2,
)
GEMMA3 = Family(
    name="gemma3",
    hf_architectures=("Gemma3ForCausalLM",),
    gguf_architectures=("gemma3",),
    hf_names=_NAMES,
    gguf_names=GGUF_NAMES,
    hf_required=_REQUIRED | {"use_bidirectional_attention": False, "attn_logit_softcapping": None},
    hf_defaults=_DEFAULTS | {"rope_theta": 1000000.0, "sliding_window": 4096},
    qk_norm="head",
    post_norms=True,
    norm_offset=1.0,
    activation="gelu_tanh",
    scaled_embedding=True,
    soft_caps=True,
    query_scalar=True,
    gguf_plain_scale_layers=62,  # the 27B model
    window_pattern=6,
    local_theta=10000.0,
    scaled_context=True,
)
