"""Model families as data: what a file calls itself, and what it calls each tensor.

A family is an entry here, never a second forward pass. In: nothing. Out: name maps from canonical
names (`embed`, `layers.N.attn_norm`, `.q`, `.k`, `.v`, `.o`, `.mlp_norm`, `.gate`, `.up`, `.down`,
`final_norm`, `head`) to each format's spelling. A family that differs by more than names (biases
on q, k and v; norms on q and k; a window) gets a field here and the one place in the forward pass
that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family.

    Attributes:
        name: what `ModelSpec.family` holds.
        hf_architectures: values of "architectures" in config.json.
        gguf_architectures: values of "general.architecture" in GGUF metadata.
        hf_names: canonical name -> safetensors name; {} stands for the layer.
        gguf_names: the same for GGUF.
        hf_required: config.json key -> the one value this forward pass computes; an absent key
            has it.
        gguf_interleaved: parts whose rows GGUF stores with the two halves of each head
            interleaved, so that neighbours rotate together.
        ignored_suffixes: tensors that carry nothing the spec does not say.
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    hf_names: Mapping[str, str]
    gguf_names: Mapping[str, str]
    hf_required: Mapping[str, object]
    gguf_interleaved: tuple[str, ...]
    ignored_suffixes: tuple[str, ...]


LLAMA = Family(
    name="llama",
    hf_architectures=("LlamaForCausalLM",),
    gguf_architectures=("llama",),
    hf_names={
        "embed": "model.embed_tokens.weight",
        "layers.{}.attn_norm": "model.layers.{}.input_layernorm.weight",
        "layers.{}.q": "model.layers.{}.self_attn.q_proj.weight",
        "layers.{}.k": "model.layers.{}.self_attn.k_proj.weight",
        "layers.{}.v": "model.layers.{}.self_attn.v_proj.weight",
        "layers.{}.o": "model.layers.{}.self_attn.o_proj.weight",
        "layers.{}.mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
        "layers.{}.gate": "model.layers.{}.mlp.gate_proj.weight",
        "layers.{}.up": "model.layers.{}.mlp.up_proj.weight",
        "layers.{}.down": "model.layers.{}.mlp.down_proj.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    gguf_names={
        "embed": "token_embd.weight",
        "layers.{}.attn_norm": "blk.{}.attn_norm.weight",
        "layers.{}.q": "blk.{}.attn_q.weight",
        "layers.{}.k": "blk.{}.attn_k.weight",
        "layers.{}.v": "blk.{}.attn_v.weight",
        "layers.{}.o": "blk.{}.attn_output.weight",
        "layers.{}.mlp_norm": "blk.{}.ffn_norm.weight",
        "layers.{}.gate": "blk.{}.ffn_gate.weight",
        "layers.{}.up": "blk.{}.ffn_up.weight",
        "layers.{}.down": "blk.{}.ffn_down.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
    },
    hf_required={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    gguf_interleaved=("q", "k"),
    ignored_suffixes=("rope_freqs.weight", "rotary_emb.inv_freq"),
)

FAMILIES = (LLAMA,)


def family_of_gguf(architecture: object, source: str) -> Family:
    """The family of "general.architecture"; `source` names the file in the error.

    Raises:
        ModelError: unknown architecture; lists those known.
    """
    return _find(architecture, source, lambda family: family.gguf_architectures)


def family_of_hf(architecture: object, source: str) -> Family:
    """The family of config.json's first "architectures" entry.

    Raises:
        ModelError: unknown architecture; lists those known.
    """
    return _find(architecture, source, lambda family: family.hf_architectures)


def _find(architecture: object, source: str, names: Callable[[Family], tuple[str, ...]]) -> Family:
    for family in FAMILIES:
        if architecture in names(family):
            return family
    known = ", ".join(name for family in FAMILIES for name in names(family))
    raise ModelError(
        f"{source} holds a model of architecture {architecture!r}, which is not known",
        hint=f"known architectures: {known}",
    )
