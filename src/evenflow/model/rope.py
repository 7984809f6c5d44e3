"""Rotary position embedding: its numbers, and the cosine and sine tables every runner uses.

In: theta, the scaling rule, the head size. Out: tables. Source: Su et al., RoFormer (2021);
linear scaling: Chen et al. (2023); llama3 scaling: the Llama 3.1 release.
Knows nothing of files or runners.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RopeKind = Literal["none", "linear", "llama3"]


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """How far each pair of a head's dimensions turns from one position to the next.

    Attributes:
        theta: the base; pair j of a head of d turns by theta ** (-2j / d) per position.
        kind: the scaling: none, linear (all angles / factor) or llama3.
        factor: the divisor of linear and llama3 scaling.
        low_freq_factor: llama3: pairs with a wavelength above original / low are divided.
        high_freq_factor: llama3: pairs with a wavelength below original / high are left alone.
        original_context_length: llama3: trained positions before scaling.
        freq_divisors: llama3 from GGUF, which stores the outcome of the rule, one divisor per
            pair, in place of the numbers above; empty otherwise.
    """

    theta: float = 10000.0
    kind: RopeKind = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0
    freq_divisors: tuple[float, ...] = ()

    def frequencies(self, head_dim: int) -> NDArray[np.float32]:
        """Radians per position of each pair, [head_dim / 2]."""
        plain = [self.theta ** (-2 * j / head_dim) for j in range(head_dim // 2)]
        if self.kind == "linear":
            plain = [f / self.factor for f in plain]
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


def rope_tables(
    rope: RopeSpec, head_dim: int, num_positions: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, [num_positions, head_dim / 2] each.

    Angles are float32 products of position and frequency, as in the frameworks in which these
    models were trained. Dimension j pairs with j + head_dim / 2 (rotate-half order).
    """
    positions = np.arange(num_positions, dtype=np.float32)
    angles = positions[:, None] * rope.frequencies(head_dim)
    return np.cos(angles), np.sin(angles)
