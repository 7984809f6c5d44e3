"""The size of the KV pool: four ways to say it, what is free, and what a person is told."""

from __future__ import annotations

import psutil
import pytest

from evenflow.cli.config_table import config_lines
from evenflow.config import EngineConfig
from evenflow.errors import ConfigError
from evenflow.memory import free_memory_bytes
from evenflow.options import parse_size

GIB = 2**30
BLOCK = 16 * 46_080  # bytes


def resolve(free=20 * GIB, num_parameters=0, **options) -> EngineConfig:
    return EngineConfig.resolve(
        options,
        context_length=8192,
        kv_bytes_per_token=46_080,
        free_memory_bytes=free,
        num_parameters=num_parameters,
    )


def refusal(**options):
    with pytest.raises(ConfigError) as caught:
        resolve(**options)
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("2G", 2 * GIB),
        ("2g", 2 * 10**9),
        ("1K", 1024),
        ("1k", 1000),
        ("25.6k", 25_600),
        ("1.5GiB", 3 * GIB // 2),
        ("512MiB", 512 * 2**20),
        ("1mib", 2**20),
        ("2GB", 2 * GIB),
        (" 3 T ", 3 * 2**40),
    ],
)
def test_sizes_read_as_in_vllm(text, size):
    assert parse_size("x", text) == size


@pytest.mark.parametrize("text", ["", "G", "2X", "-1G", "1e9", "2 G B", "2iB", "0x10"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size("x", text)


def test_a_size_with_a_unit_makes_as_many_whole_blocks():
    config = resolve(kv_cache_memory_bytes="2G")
    assert config.num_kv_blocks == 2 * GIB // BLOCK
    assert config.origins["kv_cache_memory_bytes"].kind == "given"
    assert config.origins["num_kv_blocks"] == (
        "auto",
        "whole blocks that kv_cache_memory_bytes holds",
    )
    assert config.kv_cache_memory_share == 0
    assert "kv_cache_memory_bytes is given" in config.origins["kv_cache_memory_share"].reason


def test_a_share_of_what_is_free_beside_the_weights():
    config = resolve(kv_cache_memory_share=0.5)
    assert config.num_kv_blocks == 10 * GIB // BLOCK
    assert config.kv_cache_memory_share == 0.5
    reason = config.origins["num_kv_blocks"].reason
    assert reason == "whole blocks that 0.5 of the 20,480 MiB that are free hold"
    weights = resolve(kv_cache_memory_share=0.5, num_parameters=GIB)  # float32, in the reference
    assert weights.num_kv_blocks == 8 * GIB // BLOCK


@pytest.mark.parametrize("value", [0, -0.1, 1.01, float("nan")])
def test_a_share_out_of_range_is_refused(value):
    assert "outside its range" in refusal(kv_cache_memory_share=value)[0]


def test_a_share_of_another_kind_is_refused():
    assert "is not a number" in refusal(kv_cache_memory_share=True)[0]
    assert "is not a number" in refusal(kv_cache_memory_share="half")[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"num_kv_blocks": 1000}, {"kv_cache_memory_bytes": GIB}),
        ({"num_kv_blocks": 1000}, {"kv_cache_memory_share": 0.5}),
        ({"kv_cache_memory_bytes": "1G"}, {"kv_cache_memory_share": 0.5}),
    ],
)
def test_two_sizes_are_one_too_many(first, second):
    message, _ = refusal(**first, **second)
    assert message == f"{next(iter(first))} and {next(iter(second))} are both given"


def test_a_pool_that_cannot_hold_one_request_is_refused_with_both_numbers():
    message, hint = refusal(kv_cache_memory_bytes="100M")
    assert "holds 2,272 tokens (142 blocks of 16)" in message
    assert "8,192 (max_model_len)" in message
    assert hint.endswith(f"kv_cache_memory_bytes to at least {512 * BLOCK}")
    message, hint = refusal(kv_cache_memory_share=0.001)
    assert "holds 464 tokens" in message
    assert hint == "set max_model_len to at most 464, or give the pool 361 MiB"


def test_the_start_says_what_the_pool_holds_and_why():
    *_, last = config_lines(resolve())
    assert last == (
        "the KV pool holds 23,296 tokens in 1,024 MiB (at most 1,024 MiB unless told otherwise)"
    )
    *_, last = config_lines(resolve(num_kv_blocks=1000))
    assert last == "the KV pool holds 16,000 tokens in 703 MiB (as given)"


def group(root, path, files):
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def process(root, line):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)


def test_the_limit_of_a_control_group_counts_and_its_droppable_pages_are_free(tmp_path):
    process(tmp_path, "0::/a/b\n")
    stat = "anon 1\ninactive_file 30\n"
    group(tmp_path, "a/b", {"memory.max": "max\n", "memory.current": "50\n", "memory.stat": stat})
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text("100\n")
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text("90\n")
    (tmp_path / "sys/fs/cgroup/a/memory.stat").write_text(stat)
    assert free_memory_bytes(tmp_path) == 100 - (90 - 30)


def test_version_1_is_read_too_also_where_the_path_is_the_hosts(tmp_path):
    process(tmp_path, "3:cpu:/x\n4:memory:/docker/0123\n0::/\n")
    group(
        tmp_path,
        "memory",
        {
            "memory.limit_in_bytes": "1000\n",
            "memory.usage_in_bytes": "400\n",
            "memory.stat": "total_inactive_file 100\n",
        },
    )
    assert free_memory_bytes(tmp_path) == 700


@pytest.mark.parametrize("line", ["", "0::/\n", "4:memory:/\n"])
def test_without_a_limit_the_machine_decides(tmp_path, line, monkeypatch):
    process(tmp_path, line)
    files = {"memory.limit_in_bytes": str(2**63 - 4096), "memory.usage_in_bytes": "1"}
    group(tmp_path, "memory", files | {"memory.stat": ""})
    free = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert free_memory_bytes(tmp_path) == free.available
    assert free_memory_bytes(tmp_path / "nowhere") == free.available
