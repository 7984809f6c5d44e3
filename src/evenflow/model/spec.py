"""What a model is, in numbers: shapes, parameters, bytes, and the arithmetic of a span.

In: nothing but the numbers. Out: sizes for runners, simulator and advice. Knows nothing of files,
tensors or devices.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from evenflow.model.rope import RopeSpec

QkNorm = Literal["none", "head", "all"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The numbers of a decoder-only transformer.

    `family` names the entry of `families` and `name` is for people. `context_length` is the
    trained one, in positions. With `tied_embeddings` the head is the embedding matrix. The fields
    that have a default are what sets a family apart from Llama.

    Attributes:
        qkv_bias: q, k and v have biases.
        qk_norm: queries and keys are normed before RoPE, each head by itself or all together.
        pre_norms: attention and MLP read a norm of the residual stream, not the stream itself.
        post_norms: what attention and MLP give is normed before it is added to the stream.
        activation: of the gate.
        windows: per layer, the positions that a query sees, itself included; 0 is all of them;
            empty where no layer has a window.
        local_rope: RoPE of the layers that have a window, where it is another one.
        unrotated_layers: the layers without RoPE.
        attention_scale: multiplies the scores; None is 1 / sqrt(head_dim).
        attention_soft_cap: scaled scores become cap * tanh(score / cap); 0 leaves them.
        logit_soft_cap: the same for the logits, after `logit_scale`.
        embedding_scale: multiplies the embeddings.
        residual_scale: multiplies what attention and MLP add to the residual stream.
        logit_scale: multiplies the logits.
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
    qkv_bias: bool = False
    qk_norm: QkNorm = "none"
    pre_norms: bool = True
    post_norms: bool = False
    activation: Activation = "silu"
    windows: tuple[int, ...] = ()
    local_rope: RopeSpec | None = None
    unrotated_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0

    @property
    def score_scale(self) -> float:
        """What the scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """Every RoPE of the model, the main one first; a layer has one of them or none."""
        local = self.local_rope
        return (self.rope,) if local in (None, self.rope) else (self.rope, local)

    def layer_window(self, layer: int) -> int:
        """Positions that a query of this layer sees, itself included; 0 is all."""
        return self.windows[layer] if self.windows else 0

    def layer_rope(self, layer: int) -> RopeSpec | None:
        """How this layer turns queries and keys; None leaves them."""
        if layer in self.unrotated_layers:
            return None
        local = self.layer_window(layer) > 0 and self.local_rope is not None
        return self.local_rope if local else self.rope

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
        shapes: dict[str, tuple[int, ...]] = {}
        if self.pre_norms:
            shapes["attn_norm"] = (hidden,)
        sizes = {"q": self.q_size, "k": self.kv_size, "v": self.kv_size}
        shapes |= {part: (size, hidden) for part, size in sizes.items()}
        if self.qkv_bias:
            shapes |= {f"{part}_bias": (size,) for part, size in sizes.items()}
        if self.qk_norm != "none":
            normed = self.head_dim if self.qk_norm == "head" else None
            shapes |= {f"{part}_norm": (normed or sizes[part],) for part in "qk"}
        shapes["o"] = (hidden, self.q_size)
        if self.post_norms:
            shapes["attn_post_norm"] = (hidden,)
        if self.pre_norms:
            shapes["mlp_norm"] = (hidden,)
        shapes |= {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
        if self.post_norms:
            shapes["mlp_post_norm"] = (hidden,)
        return shapes

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
        """Bytes of one position's keys and values over all layers: 2 x layers x KV width.

        A layer with a window keeps the positions behind it too: one pool serves all layers.
        """
        return 2 * self.num_layers * self.kv_size * bytes_per_value

    def span_flops(self, length: int, context: int, num_logits: int) -> int:
        """Floating-point operations of one span.

        A product costs two per parameter and position. Attention costs four per query head,
        dimension and visible key (scores, then values), a position seeing itself and all before
        it, as far as the layer's window reaches (Kaplan et al., 2020, with exact causal counting).
        Norms, activations and softmax, well under one per cent, are left out.

        Args:
            length: positions computed.
            context: positions that exist once the span is computed, the span included.
            num_logits: rows that go through the head.
        """
        windows = Counter(self.layer_window(layer) or context for layer in range(self.num_layers))
        visible = sum(
            layers * (_visible_keys(context, window) - _visible_keys(context - length, window))
            for window, layers in windows.items()
        )
        matmul = 2 * length * self.num_layer_matmul_params()
        attention = 4 * self.q_size * visible
        return matmul + attention + 2 * num_logits * self.vocab_size * self.hidden_size


def _visible_keys(positions: int, window: int) -> int:
    """Keys that the first `positions` queries see, all together."""
    growing = min(positions, window)
    return growing * (growing + 1) // 2 + (positions - growing) * window
