"""What engines call the two knobs that decide how long a prefill holds up the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenflow.bench.records import Records

# how the names of an engine's Prometheus samples begin
PREFIXES = {"vllm:": "vllm", "sglang:": "sglang", "llamacpp:": "llama.cpp", "tgi_": "tgi"}
BUDGET = {
    "evenflow": "--max-num-batched-tokens",
    "vllm": "--max-num-batched-tokens",
    "sglang": "--chunked-prefill-size",
    "tensorrt-llm": "max_num_tokens",
    "llama.cpp": "--batch-size",
    "openvino": "max_num_batched_tokens",
    "lmdeploy": "max_prefill_token_num",
    "tgi": "--max-batch-prefill-tokens",
}
CHUNKING = {
    "evenflow": "--enable-chunked-prefill (on by default)",
    "vllm": "--enable-chunked-prefill (on by default)",
    "sglang": "--chunked-prefill-size (-1 is off)",
    "tensorrt-llm": "enable_chunked_prefill",
    "llama.cpp": "--batch-size (a prompt is always cut by it)",
    "openvino": "dynamic_split_fuse (on by default)",
    "lmdeploy": "max_prefill_token_num",
    "tgi": "PREFILL_CHUNKING=1 in the environment",
}
COMMON = ("vllm", "sglang", "llama.cpp")


def budget_knob(engine: str) -> str:
    """The name of the step budget, or the names in common engines when the engine is unknown."""
    return _named(BUDGET, engine)


def chunking_knob(engine: str) -> str:
    """What switches chunked prefill on, or what does in common engines."""
    return _named(CHUNKING, engine)


def _named(table: dict[str, str], engine: str) -> str:
    if engine in table:
        return table[engine]
    return ", ".join(f"{table[name]} in {name}" for name in COMMON)


def guess_engine(records: Records) -> str:
    """Whose server it was, as far as the records say; "" when they do not."""
    header = records.header
    if str(header.get("imported_from")) == "evenflow trace" or header.get("driver") == "in-process":
        return "evenflow"
    if header.get("backend") in BUDGET:
        return str(header["backend"])
    for scrape in records.scrapes:
        for sample in scrape.values:
            for prefix, engine in PREFIXES.items():
                if sample.startswith(prefix):
                    return engine
    return ""
