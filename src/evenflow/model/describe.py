"""Turns a file's own description, GGUF metadata or config.json, into a `ModelSpec`.

In: parsed key/values and the family. Out: a spec. Every number that is missing or that this
forward pass does not compute is an error here; nothing is guessed. Reads no tensor data but GGUF's
RoPE divisors, which are handed in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError
from evenflow.model.describe_rope import Divisors, gguf_ropes, hf_ropes
from evenflow.model.fields import Fields
from evenflow.model.spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model.families import Family


def spec_from_gguf(
    metadata: Mapping[str, Any],
    family: Family,
    *,
    embed_rows: int,
    tied: bool,
    divisors: Divisors,
    source: str,
) -> ModelSpec:
    """The spec of a GGUF model.

    Args:
        metadata: the file's key/values.
        family: the entry for its architecture.
        embed_rows: rows of the embedding; the vocabulary where no key gives it.
        tied: whether the file has no output matrix.
        divisors: the RoPE divisor tensors that the file has, by name.
        source: the file, for errors.

    Raises:
        ModelError: a key is missing, out of range, or asks for what is not computed here.
    """
    keys = Fields(metadata, source, f"{metadata['general.architecture']}.")
    experts = keys.get("expert_count")
    if experts:
        raise ModelError(
            f"{source} holds a mixture of {experts} experts, which is not computed here",
            hint="pick a model without experts",
        )
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim, layers = (
        keys.integer("attention.key_length", hidden // heads),
        keys.integer("block_count"),
    )
    keys.expect(
        "attention.value_length", keys.integer("attention.value_length", head_dim), head_dim
    )
    rope, local_rope = gguf_ropes(keys, family, head_dim, divisors)
    return _checked(
        ModelSpec(
            **_of_family(family, hidden),
            name=str(metadata.get("general.name", source)),
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=keys.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=keys.integer("feed_forward_length"),
            vocab_size=keys.integer("vocab_size", embed_rows),
            context_length=keys.integer("context_length"),
            rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope=rope,
            local_rope=local_rope,
            windows=_gguf_windows(keys, family, layers),
            unrotated_layers=_every(family.no_rope_step, layers),
            tied_embeddings=tied,
            **_gguf_scales(keys, family, hidden, heads, layers),
        ),
        source,
    )


def _gguf_windows(keys: Fields, family: Family, layers: int) -> tuple[int, ...]:
    name = "attention.sliding_window"
    size, pattern = int(keys.optional(name)), keys.get("attention.sliding_window_pattern")
    if not size or (family.window_pattern == 0 and size >= keys.integer("context_length")):
        return ()
    if isinstance(pattern, list):
        return tuple(size if windowed else 0 for windowed in pattern[:layers])
    if family.window_pattern == 0:
        keys.expect(name, size, 0)
    return _patterned(size, pattern or family.window_pattern, layers)


def _gguf_scales(
    keys: Fields, family: Family, hidden: int, heads: int, layers: int
) -> dict[str, Any]:
    scales: dict[str, Any] = {"attention_scale": keys.optional("attention.scale") or None}
    if layers == family.gguf_plain_scale_layers and not scales["attention_scale"]:
        scales["attention_scale"] = (hidden / heads) ** -0.5
    if family.multipliers:
        scales["embedding_scale"] = keys.optional("embedding_scale") or 1.0
        scales["residual_scale"] = keys.optional("residual_scale") or 1.0
        scales["logit_scale"] = 1 / (keys.optional("logit_scale") or 1.0)
    if family.soft_caps:
        scales["attention_soft_cap"] = keys.optional("attn_logit_softcapping")
        scales["logit_soft_cap"] = keys.optional("final_logit_softcapping")
    return scales


def spec_from_config(
    config: Mapping[str, Any], family: Family, *, name: str, source: str
) -> ModelSpec:
    """The spec of a Hugging Face folder's config.json.

    Raises:
        ModelError: a key is missing, out of range, or asks for what is not computed here.
    """
    config = {**family.hf_defaults, **config}
    keys = Fields(config, source)
    for key, value in family.hf_required.items():
        given = config.get(key, value)
        keys.expect(key, value if given is None else given, value)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    head_dim, layers = keys.integer("head_dim", hidden // heads), keys.integer("num_hidden_layers")
    rope, local_rope = hf_ropes(config, family, head_dim, source)
    context = keys.integer("max_position_embeddings")
    if rope.kind in ("linear", "dynamic") and not family.scaled_context:
        context = int(context * rope.factor)
    elif rope.kind == "yarn":
        context = max(context, int(rope.original_context_length * rope.factor))
    unrotated = _unrotated(keys, family, layers)
    return _checked(
        ModelSpec(
            **_of_family(family, hidden),
            name=name,
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=keys.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            intermediate_size=keys.integer("intermediate_size"),
            vocab_size=keys.integer("vocab_size"),
            context_length=context,
            rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
            rope=rope,
            local_rope=local_rope,
            windows=_hf_windows(keys, family, layers, unrotated),
            unrotated_layers=unrotated,
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            **_hf_scales(keys, family),
        ),
        source,
    )


def _unrotated(keys: Fields, family: Family, layers: int) -> tuple[int, ...]:
    """SmolLM3's "no_rope_layers" holds 1 for each layer that has RoPE."""
    listed = keys.get("no_rope_layers") if family.no_rope_step else None
    if listed is None:
        step = keys.integer("no_rope_layer_interval", family.no_rope_step)
        return _every(step if family.no_rope_step else 0, layers)
    if not isinstance(listed, list) or len(listed) != layers:
        raise keys.wrong("no_rope_layers", listed, f"a list of {layers} entries")
    return tuple(i for i, rotates in enumerate(listed) if not rotates)


def _hf_windows(
    keys: Fields, family: Family, layers: int, unrotated: tuple[int, ...]
) -> tuple[int, ...]:
    types = keys.get("layer_types")
    if keys.get("use_sliding_window") is False:
        return ()
    if isinstance(types, list):
        known = {"full_attention": False, "sliding_attention": True}
        if len(types) != layers or not known.keys() >= set(types):
            raise keys.wrong("layer_types", types, f"a list of {layers} of {', '.join(known)}")
        windowed = [known[kind] for kind in types]
    elif keys.get("sliding_window") is None:
        return ()
    elif keys.get("use_sliding_window"):
        first = keys.get("max_window_layers") or 0
        windowed = [i in unrotated if family.no_rope_step else i >= first for i in range(layers)]
    else:
        pattern = keys.integer("sliding_window_pattern", family.window_pattern)
        return _patterned(keys.integer("sliding_window"), pattern, layers)
    if not any(windowed):
        return ()
    size = keys.integer("sliding_window")
    return tuple(size if w else 0 for w in windowed)


def _hf_scales(keys: Fields, family: Family) -> dict[str, Any]:
    scales: dict[str, Any] = {}
    if family.multipliers:
        scales["attention_scale"] = keys.number("attention_multiplier", 1.0)
        scales["embedding_scale"] = keys.number("embedding_multiplier", 1.0)
        scales["residual_scale"] = keys.number("residual_multiplier", 1.0)
        scales["logit_scale"] = 1 / keys.number("logits_scaling", 1.0)
    if family.query_scalar:
        scales["attention_scale"] = keys.number("query_pre_attn_scalar") ** -0.5
    if family.soft_caps:
        scales["attention_soft_cap"] = keys.optional("attn_logit_softcapping")
        scales["logit_soft_cap"] = keys.optional("final_logit_softcapping")
    return scales


def _of_family(family: Family, hidden: int) -> dict[str, Any]:
    """What the family alone decides."""
    fields: dict[str, Any] = {
        "family": family.name,
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
        "pre_norms": family.pre_norms,
        "post_norms": family.post_norms,
        "activation": family.activation,
    }
    if family.scaled_embedding:
        fields["embedding_scale"] = math.sqrt(hidden)
    return fields


def _patterned(size: int, pattern: int, layers: int) -> tuple[int, ...]:
    """The window everywhere, but for every `pattern`-th layer where that is above 1."""
    if pattern == 0:
        return ()
    seeing_all = _every(pattern if pattern > 1 else 0, layers)
    return tuple(0 if i in seeing_all else size for i in range(layers))


def _every(step: int, layers: int) -> tuple[int, ...]:
    """Every `step`-th layer, the first of them being number step - 1; none for step 0."""
    return tuple(range(step - 1, layers, step)) if step else ()


def _checked(spec: ModelSpec, source: str) -> ModelSpec:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{source} has {spec.num_heads} query heads, which {spec.num_kv_heads} KV heads cannot"
            " share evenly",
            hint="the file is damaged: download it again",
        )
    return spec
