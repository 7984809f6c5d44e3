"""RoPE as a file describes it, in all spellings, as a `RopeSpec`.

In: GGUF keys and divisor tensors, or config.json. Out: the RoPE of a model, and of its layers with
a window where that is another one. An unknown kind of scaling is an error that lists those known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError
from evenflow.model.fields import Fields
from evenflow.model.rope import RopeSpec, longrope_attention_factor, yarn_attention_factor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model.families import Family
    from evenflow.model.rope import RopeKind

Divisors = dict[str, tuple[float, ...]]


def gguf_ropes(
    keys: Fields, family: Family, head_dim: int, divisors: Divisors
) -> tuple[RopeSpec, RopeSpec | None]:
    """The RoPE of a GGUF file, and that of its layers with a window, if another.

    Keys as llama.cpp reads them. `divisors` holds the tensors "rope_freqs", "rope_factors_long" and
    "rope_factors_short" that the file has.
    """
    turned = keys.integer("rope.dimension_count", head_dim)
    if family.gguf_interleaved:
        keys.expect("rope.dimension_count", turned, head_dim)
    plain: dict[str, Any] = {
        "theta": keys.number("rope.freq_base", 10000.0),
        "rotary_dim": 0 if turned == head_dim else turned,
    }
    local = None
    if family.local_theta:
        local = RopeSpec(**plain | {"theta": keys.number("rope.freq_base_swa", family.local_theta)})
    return _checked(_gguf_rope(keys, plain, divisors), head_dim, keys.source), local


def _gguf_rope(keys: Fields, plain: dict[str, Any], divisors: Divisors) -> RopeSpec:
    kind = keys.get("rope.scaling.type") or "none"
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    original, attention = "rope.scaling.original_context_length", "rope.scaling.attn_factor"
    if kind == "longrope" or "rope_factors_long" in divisors:
        for name in ("rope_factors_long", "rope_factors_short"):
            if name not in divisors:
                raise ModelError(
                    f"{keys.source} asks for longrope, but has no tensor {name}.weight",
                    hint="the file is incomplete: convert or download it again",
                )
        return RopeSpec(
            **plain,
            kind="longrope",
            freq_divisors=divisors["rope_factors_short"],
            long_divisors=divisors["rope_factors_long"],
            original_context_length=keys.integer(original),
            attention_factor=keys.number(attention, 1.0),
        )
    if "rope_freqs" in divisors:
        return RopeSpec(**plain, kind="llama3", freq_divisors=divisors["rope_freqs"])
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeSpec(**plain, kind="linear", factor=factor)
    if kind == "yarn":
        multiplier = "rope.scaling.yarn_log_multiplier"
        keys.expect(multiplier, keys.optional(multiplier), 0.0)
        return RopeSpec(
            **plain,
            kind="yarn",
            factor=factor,
            original_context_length=keys.integer(original, keys.integer("context_length")),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=yarn_attention_factor(factor) * keys.number(attention, 1.0),
        )
    if kind != "none":
        raise _unknown(keys.source, kind)
    return RopeSpec(**plain)


def hf_ropes(
    config: Mapping[str, Any], family: Family, head_dim: int, source: str
) -> tuple[RopeSpec, RopeSpec | None]:
    """The RoPE of a config.json, and that of its layers with a window, if another.

    Newer files have "rope_parameters", perhaps one set for each kind of layer; older ones
    "rope_theta", "rope_scaling" and "rope_local_base_freq".
    """
    newer = config.get("rope_parameters") or {}
    per_kind = {
        kind: newer[kind] for kind in ("full_attention", "sliding_attention") if newer.get(kind)
    }
    scaling = per_kind.get("full_attention") or newer or config.get("rope_scaling") or {}
    rope = _checked(_hf_rope(config, scaling, head_dim, source), head_dim, source)
    if not family.local_theta:
        return rope, None
    local = per_kind.get("sliding_attention") or {
        "rope_theta": config.get("rope_local_base_freq") or family.local_theta
    }
    return rope, _checked(_hf_rope(config, local, head_dim, source), head_dim, source)


def _hf_rope(
    config: Mapping[str, Any], scaling: Mapping[str, Any], head_dim: int, source: str
) -> RopeSpec:
    top, keys = Fields(config, source), Fields(scaling, source)
    share = keys.number("partial_rotary_factor", top.number("partial_rotary_factor", 1.0))
    turned = int(head_dim * share)
    theta = keys.number("rope_theta", top.number("rope_theta", 10000.0))
    plain: dict[str, Any] = {"theta": theta, "rotary_dim": 0 if turned == head_dim else turned}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if "long_factor" in scaling:  # Phi-3 has called it "su", and "yarn"
        kind = "longrope"
    if kind == "default":
        return RopeSpec(**plain)
    if kind in ("linear", "dynamic"):
        grown: RopeKind = "linear" if kind == "linear" else "dynamic"
        return RopeSpec(**plain, kind=grown, factor=keys.number("factor"))
    context = top.integer("max_position_embeddings")
    name = "original_max_position_embeddings"
    if kind == "llama3":
        return RopeSpec(
            **plain,
            kind="llama3",
            factor=keys.number("factor"),
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
            original_context_length=keys.integer(name),
        )
    original = top.integer(name, keys.integer(name, context))
    factor = keys.number("factor", context / original)
    if kind == "longrope":
        return RopeSpec(
            **plain,
            kind="longrope",
            freq_divisors=keys.numbers("short_factor"),
            long_divisors=keys.numbers("long_factor"),
            original_context_length=original,
            attention_factor=keys.number(
                "attention_factor", longrope_attention_factor(factor, original)
            ),
        )
    if kind == "yarn":
        return RopeSpec(
            **plain,
            kind="yarn",
            factor=factor,
            original_context_length=original,
            beta_fast=keys.number("beta_fast", 32.0),
            beta_slow=keys.number("beta_slow", 1.0),
            whole_pairs=scaling.get("truncate") is not False,
            attention_factor=keys.number("attention_factor", _yarn_attention(keys, factor)),
        )
    raise _unknown(source, kind)


def _yarn_attention(keys: Fields, factor: float) -> float:
    scale, scale_all = keys.optional("mscale"), keys.optional("mscale_all_dim")
    if scale and scale_all:
        return yarn_attention_factor(factor, scale) / yarn_attention_factor(factor, scale_all)
    return yarn_attention_factor(factor)


def _unknown(source: str, kind: object) -> ModelError:
    return ModelError(
        f"{source} asks for RoPE scaling {kind!r}, which is not supported",
        hint="supported are none, linear, dynamic, llama3, yarn and longrope",
    )


def _checked(rope: RopeSpec, head_dim: int, source: str) -> RopeSpec:
    turned = rope.turned_dims(head_dim)
    if turned % 2 or turned > head_dim:
        raise ModelError(
            f"{source} turns {turned} of {head_dim} dimensions of a head, but RoPE turns them in"
            " pairs",
            hint="the file is damaged: download it again",
        )
    for divisors in (rope.freq_divisors, rope.long_divisors):
        if divisors and len(divisors) != turned // 2:
            raise ModelError(
                f"{source} gives {len(divisors)} divisors for RoPE, but {turned // 2} pairs turn",
                hint="the file is damaged: download it again",
            )
    return rope
