"""OLMo 2: norms only after attention and MLP; queries and keys are normed over all heads at once.

Source: OLMo 2 (2025). Its GGUF converter leaves the rows of q and k in place.
"""

from __future__ import annotations

from evenflow.model.families.family import GGUF_NAMES, HF_NAMES, Family

OLMO2 = Family(
    name="olmo2",
    hf_architectures=("Olmo2ForCausalLM",),
    gguf_architectures=("olmo2",),
    hf_names=HF_NAMES
    | {
        "layers.{}.attn_post_norm": "model.layers.{}.post_attention_layernorm.weight",
        "layers.{}.mlp_post_norm": "model.layers.{}.post_feedforward_layernorm.weight",
    },
    gguf_names=GGUF_NAMES,
    hf_required={"hidden_act": "silu", "attention_bias": False, "sliding_window": None},
    qk_norm="all",
    pre_norms=False,
    post_norms=True,
    window_pattern=0,
)
