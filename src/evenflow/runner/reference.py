"""The reference runner: NumPy, float32, readable in one sitting; faster runners are tested on it.

In: a `Model` and step plans. Out: sampled tokens, and the logits of the last step for tests. All
spans of a step go through each layer's products together, packed; attention runs span by span over
the paged KV cache. Knows nothing of schedules, text or serving.

The KV cache starts as NaN and stays NaN where nothing was written, so that a slot read by mistake
shows. Slots and positions that a query may not see never enter its sums.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.errors import RunnerError
from evenflow.model.rope import rope_tables
from evenflow.runner.adjust import report
from evenflow.runner.batch import F32, I32, Batch, build_batch
from evenflow.runner.interface import Done
from evenflow.runner.outcome import make_result
from evenflow.runner.sampler import sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from evenflow.model.load import Model
    from evenflow.model.rope import RopeSpec
    from evenflow.model.spec import ModelSpec
    from evenflow.types import StepPlan

# rows of queries that meet the keys at a time: bounds the scores to a few MB, whatever the prompt
QUERY_BLOCK = 64


class _Layer(NamedTuple):
    """One layer, float32; a product's weight is [outputs, inputs]. None is what a family lacks."""

    attn_norm: F32 | None
    qkv: F32  # q, k and v stacked: one product in place of three
    qkv_bias: F32 | None
    q_norm: F32 | None
    k_norm: F32 | None
    o: F32
    attn_post_norm: F32 | None
    mlp_norm: F32 | None
    gate_up: F32
    down: F32
    mlp_post_norm: F32 | None
    window: int  # positions that a query sees, itself included; 0 is all
    rope: tuple[F32, F32] | None  # cosines and sines, [positions, turned dimensions / 2]


class ReferenceRunner:
    """Computes steps in NumPy.

    Args:
        model: the model; its weights are dequantised to float32 here.
        num_blocks: blocks of the KV pool; no sequence may be longer than all of them.
        block_size: slots per block.
        max_positions: longest sequence; None means as long as the pool.
        clock: seconds, for the time a step took.
    """

    name = "reference"

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int,
        block_size: int,
        max_positions: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.spec = spec = model.spec
        self._block_size, self._clock, self._closed = block_size, clock, False
        weights = {name: tensor.float32() for name, tensor in model.tensors.items()}
        self._embed, self._final_norm = weights["embed"], weights["final_norm"]
        self._head = weights.get("head", self._embed)
        slots = num_blocks * block_size
        tables = {
            rope: rope_tables(rope, spec.head_dim, slots, max_positions or slots)
            for rope in spec.ropes
        }
        self._layers = [_stack(spec, i, weights, tables) for i in range(spec.num_layers)]
        pool = (spec.num_layers, spec.num_kv_heads, num_blocks, block_size, spec.head_dim)
        self._keys, self._values = np.full((2, *pool), np.nan, np.float32)
        self._scratch: dict[str, F32] = {}
        self._logits = np.empty((0, spec.vocab_size), np.float32)

    @property
    def last_logits(self) -> F32:
        """Logits of the last step, [rows, vocabulary], rows as in `Batch.logit_rows`."""
        return self._logits

    def submit(self, plan: StepPlan) -> Done:
        """Compute the step."""
        if self._closed:
            raise RunnerError("the reference runner is closed", hint="make a new one")
        begin = self._clock()
        batch = build_batch(plan, self._block_size)
        # a NaN is reported by name at the end, and exp(-gate) may overflow to the right answer
        with np.errstate(over="ignore", invalid="ignore"):
            self._logits = self.forward(batch)
            drawn = sample(self._logits, batch.sampling)
        extras = batch.sampling.extras
        found = None
        if extras is not None and extras.num_logprobs is not None:
            found = report(self._logits, drawn, extras.num_logprobs)
        taken = self._clock() - begin
        return Done(make_result(plan, batch, drawn.tolist(), found, taken))

    def close(self) -> None:
        """Let go of weights and KV cache."""
        self._closed = True
        self._layers, self._scratch = [], {}
        self._embed = self._head = self._keys = self._values = np.empty(0, np.float32)

    def forward(self, batch: Batch) -> F32:
        """Write the batch's keys and values and return its logits, [rows, vocabulary]."""
        spec = self.spec
        hidden = self._embed[batch.token_ids]  # [tokens, hidden], the residual stream
        hidden *= np.float32(spec.embedding_scale)
        scale = np.float32(spec.residual_scale)
        for index, layer in enumerate(self._layers):
            found = self._attention(index, layer, hidden, batch)
            hidden += self._rms_norm(found, layer.attn_post_norm) * scale
            found = self._mlp(layer, hidden)
            hidden += self._rms_norm(found, layer.mlp_post_norm) * scale
        rows = hidden[batch.logit_rows]
        logits: F32 = self._rms_norm(rows, self._final_norm) @ self._head.T
        logits *= np.float32(spec.logit_scale)
        return _soft_cap(logits, spec.logit_soft_cap)

    def _attention(self, index: int, layer: _Layer, hidden: F32, batch: Batch) -> F32:
        spec, num_tokens = self.spec, len(hidden)
        qkv = self._product("qkv", self._rms_norm(hidden, layer.attn_norm), layer.qkv)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        for norm, first, width in (
            (layer.q_norm, 0, spec.q_size),
            (layer.k_norm, spec.q_size, spec.kv_size),
        ):
            if norm is not None:  # one head by itself, or all of them together
                part = qkv[:, first : first + width].reshape(-1, len(norm))
                qkv[:, first : first + width] = self._rms_norm(part, norm).reshape(-1, width)
        heads = qkv.reshape(num_tokens, -1, spec.head_dim)
        if layer.rope is not None:
            _rotate(heads[:, : spec.num_heads + spec.num_kv_heads], layer.rope, batch.positions)
        queries, keys, values = np.split(
            heads, [spec.num_heads, spec.num_heads + spec.num_kv_heads], axis=1
        )
        written = batch.slots >= 0  # the others are in a shared block already
        for cache, new in ((self._keys, keys), (self._values, values)):
            slots = cache[index].reshape(spec.num_kv_heads, -1, spec.head_dim)
            slots[:, batch.slots[written]] = new[written].swapaxes(0, 1)

        mixed = self._array("mixed", num_tokens, spec.num_heads, spec.head_dim)
        tokens, blocks = batch.span_offsets.tolist(), batch.block_offsets.tolist()
        for span, context in enumerate(batch.context_lens.tolist()):
            table = batch.block_tables[blocks[span] : blocks[span + 1]]
            rows = slice(tokens[span], tokens[span + 1])
            seen = [
                cache[index].take(table, axis=1).reshape(spec.num_kv_heads, -1, spec.head_dim)
                for cache in (self._keys, self._values)
            ]
            self._attend(
                queries[rows],
                seen[0][:, :context],
                seen[1][:, :context],
                mixed[rows],
                layer.window or context,
            )
        return self._product("o", mixed.reshape(num_tokens, -1), layer.o)

    def _attend(self, queries: F32, keys: F32, values: F32, out: F32, window: int) -> None:
        """Causal attention of a span's queries, the last of the keys' positions.

        Args:
            queries: [length, heads, head_dim].
            keys: [KV heads, context, head_dim], position by position.
            values: the same shape.
            out: [length, heads, head_dim], written.
            window: positions that a query sees, itself included.
        """
        num_kv, context, dim = keys.shape
        length = len(queries)
        group = queries.shape[1] // num_kv  # query heads that share a KV head
        start = context - length
        # [KV heads, length, group, dim]: the rows that meet the same keys lie together
        packed = queries.reshape(length, num_kv, group, dim).transpose(1, 0, 2, 3)
        packed = packed * np.float32(self.spec.score_scale)
        # 0 x NaN is NaN: values that are not finite must not even meet a weight of zero
        reach = max(0, start + 1 - window) if window < context else start
        step = QUERY_BLOCK if np.isfinite(values[:, reach:]).all() else 1
        room = self._array("scores", num_kv * min(step, length) * group * context)
        for first in range(0, length, step):
            last = min(first + step, length)
            oldest = max(0, start + first + 1 - window)  # that the first of these queries sees
            visible = slice(oldest, start + last)
            rows = packed[:, first:last].reshape(num_kv, -1, dim)
            shape = (num_kv, rows.shape[1], start + last - oldest)
            scores = room[: math.prod(shape)].reshape(shape)
            np.matmul(rows, keys[:, visible].swapaxes(1, 2), out=scores)
            _soft_cap(scores, self.spec.attention_soft_cap)
            if last - first > 1:  # the corner where a query is older than the key
                by_query = scores.reshape(num_kv, last - first, group, -1)
                corner = by_query[..., start + first - oldest :]
                np.copyto(corner, -np.inf, where=_FUTURE[: last - first, None, : last - first])
                # and the one where the key is behind the query's window
                skipped = 1 + oldest - (start + first + 1 - window)
                behind = ~_FUTURE[: last - first, None, skipped : last - first]
                np.copyto(by_query[..., : behind.shape[-1]], -np.inf, where=behind)
            scores -= scores.max(axis=2, keepdims=True)
            np.exp(scores, out=scores)
            sums = scores.sum(axis=2, keepdims=True)
            found = scores @ values[:, visible]
            found /= sums
            out[first:last].reshape(last - first, num_kv, group, dim)[:] = found.reshape(
                num_kv, last - first, group, dim
            ).transpose(1, 0, 2, 3)

    def _mlp(self, layer: _Layer, hidden: F32) -> F32:
        both = self._product("gate_up", self._rms_norm(hidden, layer.mlp_norm), layer.gate_up)
        gate, up = np.split(both, 2, axis=1)
        # SiLU(x) = x / (1 + exp(-x)); GELU in its tanh form = x / (1 + exp(-2 sqrt(2 / pi) (...)))
        act = self._array("act", *gate.shape)
        if self.spec.activation == "gelu_tanh":
            np.multiply(gate, gate, out=act)
            act *= np.float32(-0.044715 * _GELU_SLOPE)
            act -= np.float32(_GELU_SLOPE)
            act *= gate
        else:
            np.negative(gate, out=act)
        np.exp(act, out=act)
        act += 1
        np.divide(gate, act, out=act)
        act *= up
        return self._product("down", act, layer.down)

    def _rms_norm(self, rows: F32, weight: F32 | None) -> F32:
        """Rows normed and weighted, in a scratch array; the rows themselves where no norm is."""
        if weight is None:
            return rows
        mean = np.einsum("th,th->t", rows, rows)[:, None] / np.float32(rows.shape[1])
        scale = 1 / np.sqrt(mean + np.float32(self.spec.rms_norm_eps))
        out = self._array("norm", *rows.shape)
        np.multiply(rows, scale, out=out)
        out *= weight
        return out

    def _product(self, name: str, rows: F32, weight: F32) -> F32:
        """`rows` times a weight [outputs, inputs], in a scratch array of that name."""
        out = self._array(name, len(rows), len(weight))
        np.matmul(rows, weight.T, out=out)
        return out

    def _array(self, name: str, *shape: int) -> F32:
        """A scratch array that later steps reuse; its content is whatever was there."""
        size = math.prod(shape)
        held = self._scratch.get(name)
        if held is None or held.size < size:
            held = self._scratch[name] = np.empty(size, np.float32)
        return held[:size].reshape(shape)


# [query, key] of a query block: True where the key is younger than the query
_FUTURE: NDArray[np.bool_] = np.triu(np.ones((QUERY_BLOCK, QUERY_BLOCK), np.bool_), 1)
_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


def _rotate(heads: F32, rope: tuple[F32, F32], positions: I32) -> None:
    """RoPE, in place: of the dimensions that turn, j turns with j + half of them."""
    half = rope[0].shape[1]
    low, high = heads[..., :half], heads[..., half : 2 * half]
    cos, sin = (table[positions][:, None] for table in rope)
    turned = low * cos
    turned -= high * sin
    high *= cos
    high += low * sin
    low[:] = turned


def _soft_cap(x: F32, cap: float) -> F32:
    """In place: x becomes cap * tanh(x / cap); a cap of 0 leaves it."""
    if cap:
        x /= np.float32(cap)
        np.tanh(x, out=x)
        x *= np.float32(cap)
    return x


def _stack(
    spec: ModelSpec,
    index: int,
    weights: dict[str, F32],
    tables: dict[RopeSpec, tuple[F32, F32]],
) -> _Layer:
    prefix = f"layers.{index}."
    get = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    bias = [get[f"{part}_bias"] for part in "qkv"] if spec.qkv_bias else []
    rope = spec.layer_rope(index)
    return _Layer(
        attn_norm=get.get("attn_norm"),
        qkv=np.concatenate([get["q"], get["k"], get["v"]]),
        qkv_bias=np.concatenate(bias) if bias else None,
        q_norm=get.get("q_norm"),
        k_norm=get.get("k_norm"),
        o=get["o"],
        attn_post_norm=get.get("attn_post_norm"),
        mlp_norm=get.get("mlp_norm"),
        gate_up=np.concatenate([get["gate"], get["up"]]),
        down=get["down"],
        mlp_post_norm=get.get("mlp_post_norm"),
        window=spec.layer_window(index),
        rope=None if rope is None else tables[rope],
    )
