"""Turns a file's own description, GGUF metadata or config.json, into a `ModelSpec`.

In: parsed key/values and the family. Out: a spec. Every number that is missing or that this
forward pass does not compute is an error here; nothing is guessed. Reads no tensor data but GGUF's
RoPE divisors, which are handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError
from evenflow.model.rope import RopeSpec
from evenflow.model.spec import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.model.families import Family

_MISSING = object()


class _Fields:
    """Typed look-ups in key/values whose errors name the file and the key."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values, self.source, self.prefix = values, source, prefix

    def integer(self, key: str, default: object = _MISSING) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: object = _MISSING) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(self.prefix + key)
        if value is not None:
            return value
        if default is _MISSING:
            raise ModelError(
                f"{self.source} does not give {self.prefix}{key}",
                hint="the file is incomplete: convert or download it again",
            )
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> ModelError:
        return ModelError(
            f"{self.source} gives {self.prefix}{key} as {value!r}, but it takes {wanted}",
            hint="the model is damaged, or of a variant that is not supported",
        )


def spec_from_gguf(
    metadata: Mapping[str, Any],
    family: Family,
    *,
    embed_rows: int,
    tied: bool,
    freq_divisors: tuple[float, ...],
    source: str,
) -> ModelSpec:
    """The spec of a GGUF model.

    Args:
        metadata: the file's key/values.
        family: the entry for its architecture.
        embed_rows: rows of the embedding; the vocabulary where no key gives it.
        tied: whether the file has no output matrix.
        freq_divisors: the tensor rope_freqs.weight, empty where absent.
        source: the file, for errors.

    Raises:
        ModelError: a key is missing or out of range.
    """
    keys = _Fields(metadata, source, f"{metadata['general.architecture']}.")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        _expect(source, keys.prefix + key, keys.integer(key, head_dim), head_dim)
    return _checked(
        ModelSpec(
            family=family.name,
            name=str(metadata.get("general.name", source)),
            num_layers=keys.integer("block_count"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=keys.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate_size=keys.integer("feed_forward_length"),
            vocab_size=keys.integer("vocab_size", embed_rows),
            context_length=keys.integer("context_length"),
            rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            rope=_gguf_rope(keys, freq_divisors),
            tied_embeddings=tied,
        ),
        source,
    )


def _gguf_rope(keys: _Fields, freq_divisors: tuple[float, ...]) -> RopeSpec:
    theta = keys.number("rope.freq_base", 10000.0)
    kind = keys.values.get(keys.prefix + "rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if freq_divisors:
        return RopeSpec(theta=theta, kind="llama3", freq_divisors=freq_divisors)
    if kind == "linear" or (kind == "none" and factor != 1.0):
        return RopeSpec(theta=theta, kind="linear", factor=factor)
    if kind != "none":
        raise _unknown_rope(keys.source, kind)
    return RopeSpec(theta=theta)


def spec_from_config(
    config: Mapping[str, Any], family: Family, *, name: str, source: str
) -> ModelSpec:
    """The spec of a Hugging Face folder's config.json.

    Raises:
        ModelError: a key is missing, out of range, or asks for what is not computed here.
    """
    keys = _Fields(config, source)
    for key, value in family.hf_required.items():
        _expect(source, key, config.get(key, value), value)
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    return _checked(
        ModelSpec(
            family=family.name,
            name=name,
            num_layers=keys.integer("num_hidden_layers"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=keys.integer("num_key_value_heads", heads),
            head_dim=keys.integer("head_dim", hidden // heads),
            intermediate_size=keys.integer("intermediate_size"),
            vocab_size=keys.integer("vocab_size"),
            context_length=keys.integer("max_position_embeddings"),
            rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
            rope=_hf_rope(config, source),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        ),
        source,
    )


def _hf_rope(config: Mapping[str, Any], source: str) -> RopeSpec:
    """RoPE from "rope_parameters" (newer files) or "rope_theta" and "rope_scaling"."""
    newer = config.get("rope_parameters") or {}
    scaling = newer or config.get("rope_scaling") or {}
    theta = _Fields(config, source).number("rope_theta", newer.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    keys = _Fields(scaling, source)
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=keys.number("factor"))
    if kind == "llama3":
        return RopeSpec(
            theta=theta,
            kind="llama3",
            factor=keys.number("factor"),
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
            original_context_length=keys.integer("original_max_position_embeddings"),
        )
    raise _unknown_rope(source, kind)


def _unknown_rope(source: str, kind: object) -> ModelError:
    return ModelError(
        f"{source} asks for RoPE scaling {kind!r}, which is not supported",
        hint="supported are none, linear and llama3",
    )


def _expect(source: str, key: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise ModelError(
            f"{source} gives {key} as {value!r}, but only {wanted!r} is supported",
            hint="this variant of the architecture is not supported: pick another model",
        )


def _checked(spec: ModelSpec, source: str) -> ModelSpec:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{source} has {spec.num_heads} query heads, which {spec.num_kv_heads} KV heads cannot"
            " share evenly",
            hint="the file is damaged: download it again",
        )
    if spec.head_dim % 2:
        raise ModelError(
            f"{source} has heads of {spec.head_dim} dimensions, but RoPE turns them in pairs",
            hint="the file is damaged: download it again",
        )
    return spec
