"""What a model is, in numbers: shapes, parameters, bytes, and the arithmetic of a span.

In: nothing but the numbers. Out: sizes for runners, simulator and advice. Knows nothing of files,
tensors or devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenflow.model.rope import RopeSpec


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The numbers of a decoder-only transformer.

    `family` names the entry of `families.py` and `name` is for people. `context_length` is the
    trained one, in positions. With `tied_embeddings` the head is the embedding matrix.
    """

    family: str
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool

    @property
    def q_size(self) -> int:
        """Width of all query heads together, in values."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together, in values."""
        return self.num_kv_heads * self.head_dim

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's tensors by the last part of their canonical names."""
        hidden, wide = self.hidden_size, self.intermediate_size
        return {
            "attn_norm": (hidden,),
            "q": (self.q_size, hidden),
            "k": (self.kv_size, hidden),
            "v": (self.kv_size, hidden),
            "o": (hidden, self.q_size),
            "mlp_norm": (hidden,),
            "gate": (wide, hidden),
            "up": (wide, hidden),
            "down": (hidden, wide),
        }

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor the model must have; no "head" when tied."""
        matrix = (self.vocab_size, self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"embed": matrix}
        for layer in range(self.num_layers):
            for part, shape in self.layer_shapes().items():
                shapes[f"layers.{layer}.{part}"] = shape
        shapes["final_norm"] = (self.hidden_size,)
        if not self.tied_embeddings:
            shapes["head"] = matrix
        return shapes

    def num_params(self) -> int:
        """Parameters; a tied head counts once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def num_layer_matmul_params(self) -> int:
        """Parameters that each computed position multiplies once: the layers' matrices."""
        shapes = self.layer_shapes().values()
        return self.num_layers * sum(math.prod(s) for s in shapes if len(s) == 2)

    def weight_bytes(self, bytes_per_param: float) -> int:
        """Bytes of all weights in a format of `bytes_per_param`, 2 for bf16, say."""
        return math.ceil(self.num_params() * bytes_per_param)

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes of one position's keys and values over all layers: 2 x layers x KV width."""
        return 2 * self.num_layers * self.kv_size * bytes_per_value

    def span_flops(self, length: int, context: int, num_logits: int) -> int:
        """Floating-point operations of one span.

        A product costs two per parameter and position. Attention costs four per query head,
        dimension and visible key (scores, then values), a position seeing itself and all before
        it (Kaplan et al., 2020, with exact causal counting). Norms, activations and softmax,
        well under one per cent, are left out.

        Args:
            length: positions computed.
            context: positions that exist once the span is computed, the span included.
            num_logits: rows that go through the head.
        """
        visible = length * (context - length) + length * (length + 1) // 2
        matmul = 2 * length * self.num_layer_matmul_params()
        attention = 4 * self.num_layers * self.q_size * visible
        return matmul + attention + 2 * num_logits * self.vocab_size * self.hidden_size
