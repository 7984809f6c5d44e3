"""What a family is: names of tensors, and how its layers differ from Llama's. Data only.

In: nothing. Out: the `Family` type, and the names that most families share. A family never has a
forward pass of its own; each field here is read in one place of the one that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model.spec import Activation, QkNorm


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    Canonical names of tensors are `embed`, `final_norm`, `head` and, under `layers.N`, those of
    `ModelSpec.layer_shapes`. Parts that share a file's name lie in that tensor one after the other.

    Attributes:
        name: what `ModelSpec.family` holds.
        hf_architectures: values of "architectures" in config.json.
        gguf_architectures: values of "general.architecture" in GGUF metadata.
        hf_names: canonical name -> safetensors name; {} stands for the layer.
        gguf_names: the same for GGUF.
        hf_required: config.json key -> the one value that is computed; an absent key has it.
        hf_defaults: config.json key -> the value of an absent key, where transformers' differs
            from this reader's.
        gguf_interleaved: parts whose rows GGUF stores with the two halves of each head
            interleaved, so that neighbours rotate together.
        ignored_suffixes: tensors that carry nothing the spec does not say.
        qkv_bias: q, k and v have biases.
        qk_norm: norms on queries and keys: per head, or over all heads together.
        pre_norms: attention and MLP read a norm of the residual stream.
        post_norms: what attention and MLP give is normed before it is added.
        norm_offset: added to the norm weights of a Hugging Face folder. (GGUF stores the sum.)
        activation: of the gate.
        scaled_embedding: embeddings are multiplied by sqrt(hidden size).
        multipliers: the description has Granite's four multipliers.
        soft_caps: the description has soft caps for scores and logits.
        query_scalar: scores are divided by sqrt("query_pre_attn_scalar").
        gguf_plain_scale_layers: GGUF does not say the former: a file of this many layers divides
            by sqrt(hidden size / heads), every other by sqrt(head size), as llama.cpp does.
        window_pattern: every n-th layer sees all, the others have the description's window; 1: all
            layers have it; 0: none has, unless config.json names the layers.
        local_theta: RoPE's base in layers with a window, where it is another one.
        no_rope_step: every n-th layer has no RoPE; 0: all have it.
        scaled_context: the context given is that after RoPE scaling.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    hf_names: Mapping[str, str]
    gguf_names: Mapping[str, str]
    hf_required: Mapping[str, object] = field(default_factory=dict)
    hf_defaults: Mapping[str, object] = field(default_factory=dict)
    gguf_interleaved: tuple[str, ...] = ()
    ignored_suffixes: tuple[str, ...] = (
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
        "rotary_emb.inv_freq",
    )
    qkv_bias: bool = False
    qk_norm: QkNorm = "none"
    pre_norms: bool = True
    post_norms: bool = False
    norm_offset: float = 0.0
    activation: Activation = "silu"
    scaled_embedding: bool = False
    multipliers: bool = False
    soft_caps: bool = False
    query_scalar: bool = False
    gguf_plain_scale_layers: int = 0
    window_pattern: int = 1
    local_theta: float = 0.0
    no_rope_step: int = 0
    scaled_context: bool = False


HF_NAMES = {
    "embed": "model.embed_tokens.weight",
    "layers.{}.attn_norm": "model.layers.{}.input_layernorm.weight",
    "layers.{}.q": "model.layers.{}.self_attn.q_proj.weight",
    "layers.{}.k": "model.layers.{}.self_attn.k_proj.weight",
    "layers.{}.v": "model.layers.{}.self_attn.v_proj.weight",
    "layers.{}.q_bias": "model.layers.{}.self_attn.q_proj.bias",
    "layers.{}.k_bias": "model.layers.{}.self_attn.k_proj.bias",
    "layers.{}.v_bias": "model.layers.{}.self_attn.v_proj.bias",
    "layers.{}.q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "layers.{}.k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "layers.{}.o": "model.layers.{}.self_attn.o_proj.weight",
    "layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "layers.{}.gate": "model.layers.{}.mlp.gate_proj.weight",
    "layers.{}.up": "model.layers.{}.mlp.up_proj.weight",
    "layers.{}.down": "model.layers.{}.mlp.down_proj.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "layers.{}.attn_norm": "blk.{}.attn_norm.weight",
    "layers.{}.q": "blk.{}.attn_q.weight",
    "layers.{}.k": "blk.{}.attn_k.weight",
    "layers.{}.v": "blk.{}.attn_v.weight",
    "layers.{}.q_bias": "blk.{}.attn_q.bias",
    "layers.{}.k_bias": "blk.{}.attn_k.bias",
    "layers.{}.v_bias": "blk.{}.attn_v.bias",
    "layers.{}.q_norm": "blk.{}.attn_q_norm.weight",
    "layers.{}.k_norm": "blk.{}.attn_k_norm.weight",
    "layers.{}.o": "blk.{}.attn_output.weight",
    "layers.{}.attn_post_norm": "blk.{}.post_attention_norm.weight",
    "layers.{}.mlp_norm": "blk.{}.ffn_norm.weight",
    "layers.{}.gate": "blk.{}.ffn_gate.weight",
    "layers.{}.up": "blk.{}.ffn_up.weight",
    "layers.{}.down": "blk.{}.ffn_down.weight",
    "layers.{}.mlp_post_norm": "blk.{}.post_ffw_norm.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
}
