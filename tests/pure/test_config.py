"""Options: resolved once with their reasons, refused when they are wrong or would do nothing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.config import OPTION_NAMES, EngineConfig
from evenflow.errors import ConfigError
from evenflow.kv_pool import MAX_AUTO_KV_BYTES

GIB = 1024**3


def resolve(
    *,
    context_length: int = 8192,
    kv_bytes_per_token: int = 46_080,
    free_memory_bytes: int = 20 * GIB,
    **options: object,
) -> EngineConfig:
    return EngineConfig.resolve(
        options,
        context_length=context_length,
        kv_bytes_per_token=kv_bytes_per_token,
        free_memory_bytes=free_memory_bytes,
    )


def refusal(**options: object) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        resolve(**options)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value.message, caught.value.hint


def test_the_defaults_are_the_documented_ones():
    config = resolve()
    values = {name: getattr(config, name) for name in OPTION_NAMES}
    pool = {"num_kv_blocks", "kv_cache_memory_bytes", "kv_cache_memory_share"}
    assert {name: value for name, value in values.items() if name not in pool} == {
        "model": "smollm2",
        "runner": "reference",
        "weights": "f32",
        "kv_cache_dtype": "float32",
        "threads": 0,
        "isa": "numpy",
        "max_model_len": 8192,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 256,
        "block_size": 16,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "policy": "chunked",
        "long_prefill_token_threshold": 0,
        "max_partial_prefills": 4,
        "min_prefill_tokens": 16,
        "priority_aging_steps": 1000,
        "max_admission_skips": 64,
        "max_preemptions": 3,
        "plan_depth": 1,
        "max_logprobs": 20,
        "speculative": "off",
        "num_speculative_tokens": 0,
        "prompt_lookup_max": 0,
        "prompt_lookup_min": 0,
        "speculative_disable_by_batch_size": 0,
        "seed": 0,
    }
    assert resolve(runner="reference").warnings == ()


def test_every_value_has_an_origin_and_every_choice_a_reason():
    config = resolve(block_size=32)
    assert set(config.origins) == set(OPTION_NAMES)
    assert {f.name for f in fields(config)} == {*OPTION_NAMES, "origins", "warnings"}
    for name, origin in config.origins.items():
        assert bool(origin.reason) == (origin.kind == "auto"), name
    assert config.origins["block_size"].kind == "given"
    assert config.origins["seed"].kind == "default"


def test_the_config_is_frozen():
    config = resolve()
    with pytest.raises(FrozenInstanceError):
        config.block_size = 4
    with pytest.raises(TypeError):
        config.origins["seed"] = ("given", "")


def test_describe_has_a_row_per_option_in_order():
    rows = resolve(max_num_batched_tokens=2048).describe()
    assert [row.name for row in rows] == list(OPTION_NAMES)
    budget = next(row for row in rows if row.name == "max_num_batched_tokens")
    assert budget == ("max_num_batched_tokens", "2,048", "given", "")
    length = next(row for row in rows if row.name == "max_model_len")
    assert length == ("max_model_len", "8,192", "auto", "the model's trained context")


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_none_means_not_given(name):
    assert resolve(**{name: None}).describe() == resolve().describe()


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "policy", "runner", "num_kv_blocks"])
def test_auto_means_not_given_where_a_value_can_be_chosen(name):
    assert resolve(**{name: "auto"}).describe() == resolve().describe()


def test_auto_is_no_word_for_an_option_with_a_plain_default():
    assert refusal(seed="auto")[0] == "seed is 'auto', which is not a whole number"


def test_an_unknown_option_gets_the_nearest_name():
    message, hint = refusal(max_batched_tokens=3)
    assert message == "there is no engine option 'max_batched_tokens'"
    assert hint == "did you mean 'max_num_batched_tokens'?"
    assert "max_num_seqs" in refusal(qqq=1)[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 1),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", 0),
        ("block_size", 0),
        ("num_kv_blocks", 0),
        ("kv_cache_memory_bytes", 10),
        ("long_prefill_token_threshold", -1),
        ("max_partial_prefills", 0),
        ("min_prefill_tokens", 128),
        ("priority_aging_steps", 0),
        ("max_admission_skips", -1),
        ("max_preemptions", -1),
        ("plan_depth", 0),
        ("seed", 2**64),
    ],
)
def test_a_number_out_of_range_is_refused_with_both_numbers(name, value):
    message, hint = refusal(**{name: value})
    assert message.startswith(f"{name} is {value:,}, outside its range of ")
    assert hint.startswith(f"{name} takes a whole number from ")


@pytest.mark.parametrize("value", [True, 1.0, "16", [16]])
def test_a_number_of_another_kind_is_refused(value):
    assert refusal(block_size=value)[0] == f"block_size is {value!r}, which is not a whole number"


@pytest.mark.parametrize("value", [1, 0, "true"])
def test_a_switch_takes_only_true_or_false(value):
    assert refusal(enable_prefix_caching=value)[0] == f"enable_prefix_caching is {value!r}"


def test_words_outside_the_choice_are_refused():
    assert refusal(runner="gpu") == (
        "runner is 'gpu'",
        "runner takes one of auto, reference, native",
    )
    assert "decode-first" in refusal(policy="fcfs")[1]
    assert refusal(policy=["chunked"])[0] == "policy is ['chunked']"
    assert refusal(model=3)[0] == "model is 3"


def test_chunking_off_means_whole_prompts():
    config = resolve(enable_chunked_prefill=False)
    assert (config.policy, config.max_num_batched_tokens) == ("prefill-first", 8192)
    assert config.origins["policy"] == ("auto", "chunked prefill is off")


@pytest.mark.parametrize("policy", ["prefill-first", "decode-first"])
def test_a_whole_prompt_policy_switches_chunking_off(policy):
    config = resolve(policy=policy)
    assert not config.enable_chunked_prefill
    assert config.origins["enable_chunked_prefill"].kind == "auto"
    assert resolve(policy=policy, enable_chunked_prefill=False).policy == policy


@pytest.mark.parametrize(("policy", "on"), [("chunked", False), ("decode-first", True)])
def test_policy_and_switch_may_not_contradict_each_other(policy, on):
    message, _ = refusal(policy=policy, enable_chunked_prefill=on)
    assert message == f"policy is {policy!r}, but enable_chunked_prefill is {on}"


@pytest.mark.parametrize(
    "name", ["long_prefill_token_threshold", "max_partial_prefills", "min_prefill_tokens"]
)
def test_an_option_without_effect_is_refused(name):
    message, _ = refusal(policy="decode-first", **{name: 8})
    assert message == f"{name} is given, but it has no effect with policy 'decode-first'"


def test_a_threshold_above_the_budget_has_no_effect():
    assert resolve(long_prefill_token_threshold=128).long_prefill_token_threshold == 128
    assert "129" in refusal(long_prefill_token_threshold=129)[0]


def test_a_budget_under_a_whole_prompt_is_refused():
    message, hint = refusal(enable_chunked_prefill=False, max_num_batched_tokens=4096)
    assert "4,096" in message
    assert "8,192" in message
    assert "max_model_len to at most 4096" in hint
    resolve(enable_chunked_prefill=False, max_num_batched_tokens=4096, max_model_len=4096)


def test_a_longer_context_than_trained_is_allowed_with_a_warning():
    config = resolve(max_model_len=10_000, runner="reference")
    assert config.max_model_len == 10_000
    (warning,) = config.warnings
    assert "10,000" in warning
    assert "8,192" in warning


@pytest.mark.parametrize(("budget", "floor"), [(1, 0), (2, 1), (31, 15), (32, 16), (4096, 16)])
def test_the_prompts_floor_follows_the_budget(budget, floor):
    assert resolve(max_num_batched_tokens=budget).min_prefill_tokens == floor


def test_a_pool_under_one_request_is_refused_with_both_numbers():
    message, hint = refusal(num_kv_blocks=511)
    assert "8,176 tokens" in message
    assert "8,192" in message
    assert hint == "set max_model_len to at most 8176, or num_kv_blocks to at least 512"
    assert resolve(num_kv_blocks=512).num_kv_tokens == 8192
    assert "(max_model_len)" in refusal(kv_cache_memory_bytes=512 * 16 * 46_080 - 1)[0]


def test_blocks_and_bytes_follow_from_each_other():
    config = resolve(kv_cache_memory_bytes=2 * GIB)
    assert config.num_kv_blocks == 2 * GIB // (16 * 46_080)
    assert config.kv_cache_memory_bytes == config.num_kv_blocks * 16 * 46_080
    assert resolve(num_kv_blocks=600).kv_cache_memory_bytes == 600 * 16 * 46_080
    assert "both given" in refusal(num_kv_blocks=600, kv_cache_memory_bytes=GIB)[0]


def test_the_pool_is_no_larger_than_memory_or_need():
    assert "1,024 MiB" in resolve().origins["num_kv_blocks"].reason
    small = resolve(max_num_seqs=2, max_model_len=160)
    assert small.num_kv_blocks == 20
    assert "2 x 10 blocks" in small.origins["num_kv_blocks"].reason
    tight = resolve(free_memory_bytes=2 * GIB)
    assert tight.num_kv_blocks == GIB // 2 // (16 * 46_080)
    assert "quarter" in tight.origins["num_kv_blocks"].reason
    tightest = resolve(free_memory_bytes=GIB)
    assert tightest.num_kv_tokens == 8192
    assert tightest.origins["num_kv_blocks"].reason == "one request of max_model_len"


def test_memory_for_less_than_one_request_is_an_error_and_a_given_pool_a_warning():
    message, _ = refusal(free_memory_bytes=GIB // 4)
    assert "360 MiB" in message
    assert "256 MiB" in message
    config = resolve(num_kv_blocks=512, free_memory_bytes=GIB // 4, runner="reference")
    assert "MiB" in config.warnings[0]


@given(
    context=st.integers(2, 200_000),
    token_bytes=st.integers(1, 2**20),
    free=st.integers(0, 2**36),
    seqs=st.integers(1, 4096),
    block=st.integers(1, 512),
)
def test_an_automatic_pool_holds_one_request_and_fits_in_memory(
    context, token_bytes, free, seqs, block
):
    try:
        config = resolve(
            context_length=context,
            kv_bytes_per_token=token_bytes,
            free_memory_bytes=free,
            max_num_seqs=seqs,
            block_size=block,
        )
    except ConfigError:
        assert -(-context // block) * block * token_bytes > free
        return
    assert config.num_kv_tokens >= context
    assert config.kv_cache_memory_bytes <= free
    one = -(-context // block)
    assert config.num_kv_blocks <= max(one, MAX_AUTO_KV_BYTES // (block * token_bytes))
    assert config.num_kv_blocks <= one * seqs
