"""The numbers of a model: parameters, bytes, flops, RoPE."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.model.rope import RopeSpec, rope_tables
from helpers.tiny_model import tiny_spec

SMOLLM2 = {
    "num_layers": 30,
    "hidden_size": 576,
    "num_heads": 9,
    "num_kv_heads": 3,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}


def test_smollm2_has_its_published_size():
    spec = tiny_spec(**SMOLLM2)
    assert spec.num_params() == 134_515_008
    assert spec.weight_bytes(2) == 269_030_016
    assert spec.kv_bytes_per_token(2) == 2 * 30 * 3 * 64 * 2


def test_an_untied_head_counts():
    tied, untied = tiny_spec(), tiny_spec(tied_embeddings=False)
    assert untied.num_params() - tied.num_params() == 64 * 32
    assert "head" in untied.tensor_shapes()


@pytest.mark.parametrize(("length", "context", "num_logits"), [(1, 1, 1), (7, 20, 0), (9, 9, 9)])
def test_flops_are_those_of_counting_every_product(length, context, num_logits):
    spec = tiny_spec(head_dim=10)
    flops = 2 * num_logits * spec.vocab_size * spec.hidden_size
    for position in range(context - length, context):
        for _ in range(spec.num_layers):
            flops += sum(2 * s[0] * s[1] for s in spec.layer_shapes().values() if len(s) == 2)
            flops += spec.num_heads * (position + 1) * spec.head_dim * 2 * 2
    assert spec.span_flops(length, context, num_logits) == flops


@pytest.mark.parametrize(("length", "context"), [(1, 1), (7, 20), (30, 30), (1, 50)])
def test_flops_of_layers_with_windows_count_the_keys_that_are_seen(length, context):
    spec = tiny_spec(num_layers=3, windows=(9, 0, 25))
    seen = sum(
        min(position + 1, window or context)
        for position in range(context - length, context)
        for window in spec.windows
    )
    plain = 2 * length * spec.num_layer_matmul_params()
    assert spec.span_flops(length, context, 0) == plain + 4 * spec.q_size * seen


@pytest.mark.parametrize("windows", [(), (7, 0)])
def test_chunks_cost_what_the_whole_costs(windows):
    spec = tiny_spec(windows=windows)
    chunks = sum(spec.span_flops(10, end, int(end == 50)) for end in range(10, 51, 10))
    assert chunks == spec.span_flops(50, 50, 1)


def test_plain_rope_turns_by_powers_of_theta():
    cos, sin = rope_tables(RopeSpec(theta=100.0), 4, 3)
    assert cos.shape == sin.shape == (3, 2)
    assert cos.dtype == np.float32
    angles = np.outer([0, 1, 2], [1.0, 0.1])
    assert np.allclose(cos, np.cos(angles), atol=1e-6)
    assert np.allclose(sin, np.sin(angles), atol=1e-6)


def test_linear_rope_divides_every_frequency():
    plain = RopeSpec(theta=100.0).frequencies(8)
    assert np.allclose(RopeSpec(theta=100.0, kind="linear", factor=4.0).frequencies(8), plain / 4)


def test_llama3_rope_keeps_fast_pairs_and_divides_slow_ones():
    rope = RopeSpec(
        theta=500000.0,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context_length=64,
    )
    plain, scaled = RopeSpec(theta=500000.0).frequencies(16), rope.frequencies(16)
    turns = 64 * plain / (2 * np.pi)  # over the original context
    assert np.allclose(scaled[turns > 4], plain[turns > 4])
    assert np.allclose(scaled[turns < 1], plain[turns < 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert (turns > 4).any()
    kept = (turns[between] - 1) / 3
    assert np.allclose(scaled[between], plain[between] * (kept + (1 - kept) / 8))


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_scales_scores():
    rope = RopeSpec(
        theta=10000.0,
        kind="yarn",
        factor=8.0,
        original_context_length=512,
        beta_fast=16.0,
        beta_slow=2.0,
        attention_factor=1.2,
    )
    plain, scaled = RopeSpec().frequencies(64), rope.frequencies(64)
    turns = 512 * plain / (2 * np.pi)
    ratio = scaled / plain
    assert np.allclose(ratio[turns > 22], 1)
    assert np.allclose(ratio[turns < 1.5], 1 / 8)
    assert (np.diff(ratio) <= 1e-6).all()
    assert ((ratio > 0.2) & (ratio < 0.9)).any()
    cos, sin = rope_tables(rope, 64, 3)
    assert np.allclose(cos**2 + sin**2, 1.2**2)


def test_dynamic_rope_is_set_for_the_scaled_context_once_and_for_all():
    rope = RopeSpec(kind="dynamic", factor=4.0)
    base = 10000.0 * (4.0 * 4.0 - 3.0) ** (16 / 14)
    assert np.allclose(rope.frequencies(16), RopeSpec(theta=base).frequencies(16))
    assert np.array_equal(rope.frequencies(16, 10), rope.frequencies(16, 10**6))


def test_longrope_looks_at_the_longest_sequence_that_may_come():
    rope = RopeSpec(
        kind="longrope",
        original_context_length=100,
        freq_divisors=(1.0, 2.0),
        long_divisors=(3.0, 4.0),
        rotary_dim=4,
    )
    plain = RopeSpec().frequencies(4)
    assert np.allclose(rope.frequencies(16, 100), plain / [1, 2])
    assert np.allclose(rope.frequencies(16, 101), plain / [3, 4])
    assert rope_tables(rope, 16, 5, 200)[0].shape == (5, 2)


def test_divisors_of_a_gguf_file_say_the_same_as_the_rule():
    rule = RopeSpec(theta=5e5, kind="llama3", factor=8.0, original_context_length=64)
    plain = RopeSpec(theta=5e5).frequencies(16)
    divisors = tuple((plain.astype(np.float64) / rule.frequencies(16)).tolist())
    stored = RopeSpec(theta=5e5, kind="llama3", freq_divisors=divisors)
    assert np.allclose(stored.frequencies(16), rule.frequencies(16), rtol=1e-6)
