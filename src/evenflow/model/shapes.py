"""Shapes of known models, for models of random weights: speed without a download.

The numbers are those of each model's published config.json, under GGUF's names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from evenflow.model.rope import RopeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS = ("bf16", "q8_0", "q4_0", "q4_1")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape.

    Attributes:
        architecture: GGUF's "general.architecture".
        format: how its weights are stored unless a name says otherwise; one of `FORMATS`.
        keys: GGUF keys without the architecture, vocab_size included.
        tied: whether the head is the embedding.
        rope: gives the file's RoPE divisors where the model has scaled frequencies.
    """

    architecture: str
    keys: Mapping[str, int | float]
    tied: bool
    format: str = "bf16"
    rope: RopeSpec | None = field(default=None)

    def metadata(self) -> dict[str, str | int | float]:
        """The keys as a file has them, architecture included."""
        keys = {f"{self.architecture}.{key}": value for key, value in self.keys.items()}
        return {"general.architecture": self.architecture, **keys}

    def freq_divisors(self) -> tuple[float, ...]:
        """By how much each RoPE frequency is divided, head_dim / 2 of them; empty for none."""
        if self.rope is None:
            return ()
        dim = int(self.keys["attention.key_length"])
        plain = RopeSpec(theta=self.rope.theta).frequencies(dim)
        return tuple(float(d) for d in plain / self.rope.frequencies(dim))


class _Series(NamedTuple):
    """What models of one series share."""

    vocab: int
    context: int
    theta: float
    epsilon: float


def _keys(
    layers: int,
    hidden: int,
    wide: int,
    heads: tuple[int, int, int],
    *,
    of: _Series,
) -> dict[str, int | float]:
    """Heads are: query heads, KV heads, dimensions of each."""
    return {
        "block_count": layers,
        "embedding_length": hidden,
        "feed_forward_length": wide,
        "attention.head_count": heads[0],
        "attention.head_count_kv": heads[1],
        "attention.key_length": heads[2],
        "attention.value_length": heads[2],
        "rope.dimension_count": heads[2],
        "vocab_size": of.vocab,
        "context_length": of.context,
        "rope.freq_base": of.theta,
        "attention.layer_norm_rms_epsilon": of.epsilon,
    }


def _llama3_rope(factor: float) -> RopeSpec:
    return RopeSpec(
        theta=500000.0,
        kind="llama3",
        factor=factor,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context_length=8192,
    )


_LLAMA3 = _Series(128256, 131072, 500000.0, 1e-5)
_QWEN25 = _Series(151936, 32768, 1000000.0, 1e-6)
_TINY = _Series(512, 512, 10000.0, 1e-5)

SHAPES: dict[str, Shape] = {
    "tiny": Shape(
        architecture="llama",
        keys=_keys(2, 64, 128, (4, 2, 16), of=_TINY),
        tied=True,
    ),
    "llama-3.2-1b": Shape(
        architecture="llama",
        keys=_keys(16, 2048, 8192, (32, 8, 64), of=_LLAMA3),
        tied=True,
        rope=_llama3_rope(32.0),
    ),
    "llama-3.1-8b": Shape(
        architecture="llama",
        keys=_keys(32, 4096, 14336, (32, 8, 128), of=_LLAMA3),
        tied=False,
        format="q4_0",
        rope=_llama3_rope(8.0),
    ),
    "qwen2.5-0.5b": Shape(
        architecture="qwen2",
        keys=_keys(24, 896, 4864, (14, 2, 64), of=_QWEN25),
        tied=True,
    ),
    "qwen2.5-1.5b": Shape(
        architecture="qwen2",
        keys=_keys(28, 1536, 8960, (12, 2, 128), of=_QWEN25),
        tied=True,
    ),
}
