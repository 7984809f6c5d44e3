"""Rotary position embedding: its numbers, and the cosine and sine tables every runner uses.

In: theta, the scaling rule, the head size. Out: tables. Source: Su et al., RoFormer (2021);
linear scaling: Chen et al. (2023); llama3: the Llama 3.1 release; dynamic: NTK-aware scaling by its
authors on Reddit (2023); yarn: Peng et al. (2023); longrope: Ding et al. (2024).
Knows nothing of files or runners.

Two rules look at the length of the sequence. A cut into chunks must not change a token, so here
neither looks at what has arrived: dynamic scaling takes the scaled context as the length, longrope
its long divisors if and only if sequences may be longer than the original context. That is what
vLLM does; transformers decides again with each call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RopeKind = Literal["none", "linear", "llama3", "dynamic", "yarn", "longrope"]


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """How far each pair of a head's dimensions turns from one position to the next.

    Attributes:
        theta: the base; pair j of d dimensions turns by theta ** (-2j / d) per position.
        rotary_dim: the leading dimensions of a head that turn; 0 is all.
        kind: the scaling.
        factor: by how much the context grows; longrope has its divisors in place of it.
        low_freq_factor: llama3: pairs with a wavelength above original / low are divided.
        high_freq_factor: llama3: pairs with a wavelength below original / high are left alone.
        original_context_length: llama3, yarn, longrope: trained positions before scaling.
        beta_fast: yarn: pairs that turn more often over the original context are left alone.
        beta_slow: yarn: pairs that turn less often over the original context are divided.
        whole_pairs: yarn: the ramp between the two begins and ends at whole pairs.
        attention_factor: multiplies cosines and sines, and so each score by its square.
        freq_divisors: llama3 from GGUF, which stores the outcome of the rule, one divisor per
            pair, in place of the numbers above; longrope: the divisors of short sequences.
        long_divisors: longrope: the divisors of sequences beyond the original context.
    """

    theta: float = 10000.0
    rotary_dim: int = 0
    kind: RopeKind = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_pairs: bool = True
    attention_factor: float = 1.0
    freq_divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()

    def turned_dims(self, head_dim: int) -> int:
        """Dimensions of a head that turn."""
        return self.rotary_dim or head_dim

    def frequencies(self, head_dim: int, max_positions: int = 0) -> NDArray[np.float32]:
        """Radians per position of each pair, [turned dimensions / 2].

        `max_positions` is the longest sequence that may come; only longrope asks.
        """
        dim = self.turned_dims(head_dim)
        base, pairs = self.theta, range(dim // 2)
        if self.kind == "dynamic":
            base *= (self.factor**2 - (self.factor - 1)) ** (dim / (dim - 2))
        plain = [base ** (-2 * j / dim) for j in pairs]
        if self.kind == "linear":
            plain = [f / self.factor for f in plain]
        elif self.kind == "longrope":
            long = max_positions > self.original_context_length
            divisors = self.long_divisors if long else self.freq_divisors
            plain = [f / d for f, d in zip(plain, divisors, strict=True)]
        elif self.kind == "yarn":
            kept = self._yarn_kept(dim)
            plain = [k * f + (1 - k) * f / self.factor for k, f in zip(kept, plain, strict=True)]
        elif self.freq_divisors:
            plain = [f / d for f, d in zip(plain, self.freq_divisors, strict=True)]
        elif self.kind == "llama3":
            plain = [self._llama3(f) for f in plain]
        return np.array(plain, np.float32)

    def _llama3(self, frequency: float) -> float:
        turns = self.original_context_length * frequency / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = min(1.0, max(0.0, (turns - self.low_freq_factor) / span))
        return kept * frequency + (1 - kept) * frequency / self.factor

    def _yarn_kept(self, dim: int) -> list[float]:
        """How much of each pair's frequency is left alone: a ramp over the pairs from 1 to 0."""

        def pair_of(turns: float) -> float:
            """The pair, counted with fractions, that turns so often over the original context."""
            length = self.original_context_length / (turns * 2 * math.pi)
            return dim * math.log(length) / (2 * math.log(self.theta))

        first, last = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        span = last - first if last != first else 0.001
        return [1 - min(1.0, max(0.0, (j - first) / span)) for j in range(dim // 2)]


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """The attention factor of YaRN where a model gives none: 0.1 scale ln(factor) + 1."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original_context_length: int) -> float:
    """The attention factor of LongRoPE where a model gives none."""
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_context_length))


def rope_tables(
    rope: RopeSpec, head_dim: int, num_positions: int, max_positions: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, [num_positions, turned dimensions / 2] each.

    Angles are float32 products of position and frequency, as in the frameworks in which these
    models were trained. Dimension j pairs with j + turned dimensions / 2 (rotate-half order).
    `max_positions` is the longest sequence that may come, `num_positions` where it is 0.
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * rope.frequencies(head_dim, max_positions or num_positions)
    factor = np.float32(rope.attention_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor
