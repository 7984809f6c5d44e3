"""What a description says about layers: windows, RoPE, scales; for each family and both formats."""

from __future__ import annotations

from math import log

import pytest

from evenflow.errors import ModelError
from evenflow.model.describe import spec_from_config, spec_from_gguf
from evenflow.model.families import FAMILIES, family_of_gguf, family_of_hf

CONFIG = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 1000,
}


def from_config(architecture, **changes):
    family = family_of_hf(architecture, "config.json")
    return spec_from_config(CONFIG | changes, family, name="m", source="config.json")


def from_gguf(architecture, **changes):
    keys = {
        "embedding_length": 32,
        "attention.head_count": 4,
        "block_count": 4,
        "feed_forward_length": 48,
        "context_length": 1000,
        "attention.layer_norm_rms_epsilon": 1e-6,
    } | changes
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    return spec_from_gguf(
        {"general.architecture": architecture} | metadata,
        family_of_gguf(architecture, "m.gguf"),
        embed_rows=64,
        tied=True,
        divisors={},
        source="m.gguf",
    )


@pytest.mark.parametrize("find", [family_of_hf, family_of_gguf])
def test_an_unknown_architecture_is_answered_with_those_known(find):
    with pytest.raises(ModelError, match="'MixtralForCausalLM', which is not known") as caught:
        find("MixtralForCausalLM", "config.json")
    for family in FAMILIES:
        names = family.hf_architectures if find is family_of_hf else family.gguf_architectures
        assert all(name in caught.value.hint for name in names)


SLIDING = ["full_attention", "sliding_attention"] * 2


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("Llama", {}, ()),
        ("Mistral", {"sliding_window": None}, ()),
        ("Mistral", {"sliding_window": 9}, (9, 9, 9, 9)),
        ("Phi3", {"sliding_window": 9}, (9, 9, 9, 9)),
        ("Qwen2", {"sliding_window": 9, "max_window_layers": 2}, ()),
        ("Qwen2", {"sliding_window": 9, "use_sliding_window": False, "layer_types": SLIDING}, ()),
        (
            "Qwen2",
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
            (0, 0, 0, 9),
        ),
        ("Qwen3", {"sliding_window": 9, "use_sliding_window": True}, (9, 9, 9, 9)),
        ("Gemma2", {"sliding_window": 9}, (9, 0, 9, 0)),
        ("Gemma2", {}, (4096, 0, 4096, 0)),
        ("Gemma3", {"sliding_window": 9}, (9, 9, 9, 9)),
        ("Gemma3", {"sliding_window": 9, "sliding_window_pattern": 3}, (9, 9, 0, 9)),
        ("Gemma3", {"sliding_window": 9, "layer_types": SLIDING}, (0, 9, 0, 9)),
        ("SmolLM3", {"sliding_window": 9}, ()),
        ("SmolLM3", {"sliding_window": 9, "use_sliding_window": True}, (0, 0, 0, 9)),
    ],
)
def test_windows_of_a_config(architecture, changes, windows):
    assert from_config(f"{architecture}ForCausalLM", **changes).windows == windows


@pytest.mark.parametrize(
    ("architecture", "pattern", "windows"),
    [
        ("llama", None, (9, 9, 9, 9)),
        ("gemma2", None, (9, 0, 9, 0)),
        ("gemma3", None, (9, 9, 9, 9)),
        ("gemma3", 2, (9, 0, 9, 0)),
        ("gemma3", [True, True, False, True], (9, 9, 0, 9)),
        ("phi3", None, (9, 9, 9, 9)),
    ],
)
def test_windows_of_a_gguf_file(architecture, pattern, windows):
    keys = {"attention.sliding_window": 9, "attention.sliding_window_pattern": pattern}
    assert from_gguf(architecture, **keys).windows == windows
    assert from_gguf(architecture, **{"attention.sliding_window": 0}).windows == ()


def test_a_window_where_the_family_has_none_is_refused_unless_it_holds_everything():
    with pytest.raises(ModelError, match=r"olmo2.attention.sliding_window as 9, but only 0"):
        from_gguf("olmo2", **{"attention.sliding_window": 9})
    assert from_gguf("qwen2", **{"attention.sliding_window": 1000}).windows == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention"]}, r"layer_types as \['full_attention'\]"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types as"),
        ({"layer_types": SLIDING}, "does not give sliding_window"),
    ],
)
def test_layers_that_are_not_computed_are_refused(changes, said):
    with pytest.raises(ModelError, match=said):
        from_config("MistralForCausalLM", **changes)


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        ({"type": "linear", "factor": 4.0}, 4000),
        ({"type": "dynamic", "factor": 2.5}, 2500),
        ({"type": "yarn", "factor": 4.0}, 4000),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
    ],
)
def test_the_context_grows_with_rope_scaling(scaling, context):
    assert from_config("LlamaForCausalLM", rope_scaling=scaling).context_length == context


def test_the_older_spellings_of_longrope():
    divisors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    for kind in ("su", "longrope", "yarn"):
        spec = from_config(
            "Phi3ForCausalLM",
            rope_scaling={"type": kind, **divisors},
            original_max_position_embeddings=250,
            sliding_window=None,
        )
        assert (spec.rope.kind, spec.rope.original_context_length) == ("longrope", 250)
        assert spec.rope.attention_factor == pytest.approx((1 + log(4) / log(250)) ** 0.5)
        assert spec.rope.long_divisors == (2.0, 3.0, 4.0, 5.0)
        assert spec.context_length == 1000
    with pytest.raises(ModelError, match=r"gives short_factor as \[1, 'x'\]"):
        from_config("Phi3ForCausalLM", rope_scaling=divisors | {"short_factor": [1, "x"]})
    with pytest.raises(ModelError, match=r"no tensor rope_factors_long\.weight"):
        from_gguf("phi3", **{"rope.scaling.type": "longrope"})


def test_gemma3_gives_its_context_scaled_and_turns_local_layers_by_another_base():
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = from_config(
        "Gemma3ForCausalLM", rope_theta=1e6, rope_local_base_freq=500.0, rope_scaling=scaling
    )
    new = from_config(
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": scaling | {"rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    )
    assert old == new
    assert old.context_length == 1000
    assert (old.rope.kind, old.rope.theta) == ("linear", 1e6)
    assert (old.layer_rope(0).kind, old.layer_rope(0).theta) == ("none", 500.0)
    stored = from_gguf("gemma3", **{"rope.freq_base": 1e6, "attention.sliding_window": 9})
    assert (stored.rope.theta, stored.layer_rope(0).theta) == (1e6, 1e4)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, (3,)),
        ({"no_rope_layer_interval": 2}, (1, 3)),
        ({"no_rope_layers": [1, 1, 0, 1]}, (2,)),
    ],
)
def test_smollm3_has_layers_without_rope(changes, layers):
    spec = from_config("SmolLM3ForCausalLM", **changes)
    assert spec.unrotated_layers == layers
    assert [i for i in range(4) if spec.layer_rope(i) is None] == list(layers)
    assert from_gguf("smollm3").unrotated_layers == (3,)
    with pytest.raises(ModelError, match=r"no_rope_layers as \[1\]"):
        from_config("SmolLM3ForCausalLM", no_rope_layers=[1])


def test_the_largest_gemmas_of_gguf_scale_scores_by_the_hidden_size():
    for architecture, layers in (("gemma2", 46), ("gemma3", 62)):
        keys = {"block_count": layers, "attention.key_length": 16}
        keys["attention.value_length"] = 16
        assert from_gguf(architecture, **keys).score_scale == (32 / 4) ** -0.5
        assert from_gguf(architecture, **keys | {"block_count": 4}).score_scale == 0.25


def test_soft_caps_may_be_absent():
    spec = from_config("Gemma2ForCausalLM", attn_logit_softcapping=None)
    assert (spec.attention_soft_cap, spec.logit_soft_cap) == (0, 30)


def test_what_a_family_does_not_compute_is_refused():
    for architecture, key, value in (
        ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
        ("Gemma3ForCausalLM", "hidden_activation", "gelu"),
        ("Qwen3ForCausalLM", "attention_bias", True),
    ):
        with pytest.raises(ModelError, match=f"{key} as {value!r}, but only"):
            from_config(architecture, **{key: value})
