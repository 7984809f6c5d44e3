"""Which runner is used and why; its options are settled or refused."""

from __future__ import annotations

import pytest

from evenflow.compute import NativeFacts
from evenflow.config import EngineConfig
from evenflow.errors import ConfigError

HERE = NativeFacts("", 6, ("avx2", "portable"))
ABSENT = NativeFacts("there was no compiler")


def resolve(native: NativeFacts | None = HERE, **options: object) -> EngineConfig:
    return EngineConfig.resolve(
        options,
        context_length=2048,
        kv_bytes_per_token=4000,
        free_memory_bytes=2**33,
        native=native,
    )


def test_auto_takes_the_native_runner_where_it_can_run():
    config = resolve()
    assert (config.runner, config.isa, config.threads) == ("native", "avx2", 6)
    assert (config.weights, config.kv_cache_dtype, config.block_size) == ("auto", "bfloat16", 64)
    assert config.origins["isa"].reason == "the best of avx2, portable"
    # bfloat16 takes half of what float32 does
    assert config.kv_cache_memory_bytes == config.num_kv_tokens * 2000


@pytest.mark.parametrize("native", [ABSENT, None])
def test_auto_falls_back_and_says_why(native):
    config = resolve(native)
    assert (config.runner, config.block_size) == ("reference", 16)
    wanted = native.problem if native else "this build has no native runner"
    assert config.origins["runner"] == ("auto", wanted)
    assert wanted in config.warnings[0]
    assert resolve(native, runner="reference").warnings == ()
    assert config.kv_cache_memory_bytes == config.num_kv_tokens * 4000


def test_the_native_runner_by_name_is_not_replaced():
    with pytest.raises(ConfigError, match="there was no compiler") as caught:
        resolve(ABSENT, runner="native")
    assert "reference" in caught.value.hint


def test_float32_weights_keep_everything_in_float32():
    assert resolve(weights="f32").kv_cache_dtype == "float32"
    with pytest.raises(ConfigError, match="'bfloat16', but weights are f32"):
        resolve(weights="f32", kv_cache_dtype="bfloat16")
    assert resolve(kv_cache_dtype="float32").weights == "auto"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": "int3"}, "weights is 'int3'"),
        ({"isa": "avx512"}, "isa is 'avx512'"),
        ({"threads": 0}, "threads is 0"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8'"),
        ({"block_size": 16}, "block_size is 16, but the native runner's"),
        ({"runner": "reference", "threads": 2}, "threads is given, but it has no effect"),
        ({"runner": "reference", "weights": "bf16"}, "weights is given, but it has no effect"),
    ],
)
def test_what_cannot_be_had_is_refused(options, said):
    with pytest.raises(ConfigError) as caught:
        resolve(**options)
    assert said in caught.value.message
    assert caught.value.hint


def test_given_values_are_kept():
    config = resolve(isa="portable", threads=3, weights="int8", block_size=128)
    assert (config.isa, config.threads, config.weights) == ("portable", 3, "int8")
    assert config.block_size == 128
    assert config.origins["isa"].kind == "given"
