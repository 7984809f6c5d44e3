"""The engine's options: every "auto" resolved once, with the reason of each choice.

In go keyword arguments and three facts about the machine and the model; out comes a frozen
`EngineConfig` whose values are plain numbers and words. An option that is unknown, out of range or
without effect is an error, so a flag never silently does nothing. This module knows no model, no
runner and no memory probe: what it needs of them is passed in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from evenflow.compute import NATIVE_ONLY, NativeFacts, settle_block_size, settle_compute
from evenflow.errors import ConfigError
from evenflow.kv_pool import Demand, settle_kv_pool
from evenflow.options import Options, Origin, OriginKind
from evenflow.speculation import expand_speculative_config, settle_speculation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from evenflow.types import Policy

DEFAULT_MODEL = "smollm2"
CPU_STEP_TOKENS = 128  # where a CPU's products stop gaining from more rows
MAX_MIN_PREFILL_TOKENS = 16
POLICIES = ("chunked", "prefill-first", "decode-first")


class ConfigRow(NamedTuple):
    """One line of `EngineConfig.describe`."""

    name: str
    value: str
    origin: OriginKind
    reason: str


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What the engine runs with. Make one with `EngineConfig.resolve`.

    Attributes:
        model: a known name, a GGUF file, or a Hugging Face folder.
        runner: what computes the steps.
        weights: the format of packed weights: auto, bf16, int8, int4 or f32 (native runner).
        kv_cache_dtype: the format of keys and values: bfloat16 or float32 (native runner).
        threads: compute threads (native runner).
        isa: the instruction set (native runner).
        max_model_len: positions that one request may have, prompt and output together.
        max_num_batched_tokens: the budget: positions that one step may compute.
        max_num_seqs: requests that may be running at once.
        block_size: positions per KV block.
        num_kv_blocks: blocks in the KV pool.
        kv_cache_memory_bytes: what these blocks take.
        kv_cache_memory_share: of the memory that is free beside the weights, the share that the
            pool may take; 0 where its size was given otherwise.
        enable_prefix_caching: keep and share full blocks between requests.
        enable_chunked_prefill: cut prompts into chunks; off means whole prompts.
        policy: how a step is shared out: chunked, prefill-first or decode-first.
        long_prefill_token_threshold: a chunk is at most this many positions; 0 is no such limit.
        max_partial_prefills: prompts that may be part-way through their prefill (lanes).
        min_prefill_tokens: positions of each step that are the prompts', when any wait.
        priority_aging_steps: a waiting request gains one priority level in this many steps.
        max_admission_skips: later requests that may be admitted past one that does not fit.
        max_preemptions: after so many, a request comes back only with everything reserved.
        plan_depth: plans that may be in flight at once.
        max_logprobs: likeliest tokens that a request may have reported with each token.
        speculative: how tokens are drafted: off, or ngram, which looks them up in the text so far.
        num_speculative_tokens: tokens that are drafted for one request and step, at most.
        prompt_lookup_max: last tokens that are looked up, at most.
        prompt_lookup_min: last tokens that must be found again, at least.
        speculative_disable_by_batch_size: a step with more decodes than this drafts nothing.
        seed: where the seeds of requests without one come from.
        origins: for each option above, where its value came from.
        warnings: what a person should know about these values, one sentence each.
    """

    model: str
    runner: str
    weights: str
    kv_cache_dtype: str
    threads: int
    isa: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_kv_blocks: int
    kv_cache_memory_bytes: int
    kv_cache_memory_share: float
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    policy: Policy
    long_prefill_token_threshold: int
    max_partial_prefills: int
    min_prefill_tokens: int
    priority_aging_steps: int
    max_admission_skips: int
    max_preemptions: int
    plan_depth: int
    max_logprobs: int
    speculative: str
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int
    speculative_disable_by_batch_size: int
    seed: int
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]

    @property
    def num_kv_tokens(self) -> int:
        """Positions that the KV pool holds."""
        return self.num_kv_blocks * self.block_size

    @classmethod
    def resolve(
        cls,
        options: Mapping[str, object],
        *,
        context_length: int,
        kv_bytes_per_token: int,
        free_memory_bytes: int,
        native: NativeFacts | None = None,
        num_parameters: int = 0,
    ) -> EngineConfig:
        """Check the options and settle every value that was left open.

        Args:
            options: what the caller gave, by name; None (and "auto", where a value can be chosen)
                means not given.
            context_length: positions that the model was trained for.
            kv_bytes_per_token: bytes of float32 keys and values per position, over all layers.
            free_memory_bytes: memory that can be taken now.
            native: what the native runner can do here; None where there is none.
            num_parameters: numbers of the model, whose memory the KV pool cannot have.

        Raises:
            ConfigError: an unknown name, a value out of range, options that contradict each other,
                one that would have no effect, or a KV pool that cannot hold one whole request.
        """
        return _resolve(
            Options(expand_speculative_config(options), OPTION_NAMES, _CHOSEN),
            context_length,
            kv_bytes_per_token,
            free_memory_bytes,
            native or NativeFacts(),
            num_parameters=num_parameters,
        )

    def describe(self) -> list[ConfigRow]:
        """Every effective value with its origin and reason, in the order of the attributes."""
        rows = []
        for name in OPTION_NAMES:
            value = getattr(self, name)
            text = f"{value:,}" if type(value) is int and name != "seed" else str(value)
            rows.append(ConfigRow(name, text, *self.origins[name]))
        return rows


OPTION_NAMES = tuple(f.name for f in fields(EngineConfig) if f.name not in {"origins", "warnings"})
# where "auto" is a word for "not given"
_CHOSEN = frozenset(
    {
        "block_size",
        "kv_cache_memory_bytes",
        "kv_cache_memory_share",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "min_prefill_tokens",
        "num_kv_blocks",
        "policy",
        "runner",
        *NATIVE_ONLY,
    }
)
_WHOLE_PROMPTS_IGNORE = (
    "long_prefill_token_threshold",
    "max_partial_prefills",
    "min_prefill_tokens",
)


def _resolve(
    take: Options,
    context_length: int,
    kv_bytes_per_token: int,
    free_memory_bytes: int,
    native: NativeFacts,
    *,
    num_parameters: int,
) -> EngineConfig:
    model = _model(take)
    compute = settle_compute(take, native)
    kv_bytes_per_token = kv_bytes_per_token * compute.kv_bytes_per_value // 4
    policy = _policy(take)
    chunked = policy == "chunked"
    max_model_len = take.integer(
        "max_model_len", context_length, 2, auto="the model's trained context"
    )
    if max_model_len > context_length:
        take.warnings.append(
            f"max_model_len is {max_model_len:,}, but the model was trained for "
            f"{context_length:,} positions: text beyond them will be poor"
        )
    budget = _budget(take, max_model_len, chunked=chunked)
    max_num_seqs = take.integer("max_num_seqs", 256, 1, 65_536, auto="room for many short streams")
    threshold, lanes, floor = _chunk_rules(take, budget) if chunked else (0, max_num_seqs, 0)
    block_size = settle_block_size(take, compute.runner)
    left_bytes = max(0, free_memory_bytes - int(num_parameters * compute.bytes_per_weight))
    block_bytes = block_size * kv_bytes_per_token
    num_kv_blocks, kv_share = settle_kv_pool(
        take, Demand(max_model_len, max_num_seqs, block_size, block_bytes, left_bytes)
    )
    return EngineConfig(
        model=model,
        **compute._asdict(),
        max_model_len=max_model_len,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        kv_cache_memory_bytes=num_kv_blocks * block_bytes,
        kv_cache_memory_share=kv_share,
        enable_prefix_caching=take.flag("enable_prefix_caching", default=True),
        enable_chunked_prefill=chunked,
        policy=policy,
        long_prefill_token_threshold=threshold,
        max_partial_prefills=lanes,
        min_prefill_tokens=floor,
        priority_aging_steps=take.integer("priority_aging_steps", 1000, 1),
        max_admission_skips=take.integer("max_admission_skips", 64, 0),
        max_preemptions=take.integer("max_preemptions", 3, 0),
        plan_depth=take.integer("plan_depth", 1, 1, 8),
        max_logprobs=take.integer("max_logprobs", 20, 0),
        **settle_speculation(take, budget)._asdict(),
        seed=take.integer("seed", 0, 0, 2**64 - 1),
        origins=MappingProxyType(take.origins),
        warnings=tuple(take.warnings),
    )


def _model(take: Options) -> str:
    if "model" not in take.given:
        take.origins["model"] = Origin("default", "")
        return DEFAULT_MODEL
    value = take.given["model"]
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ConfigError(
            f"model is {value!r}", hint="model takes a name such as smollm2, a file or a folder"
        )
    take.origins["model"] = Origin("given", "")
    return str(os.fspath(value))


def _policy(take: Options) -> Policy:
    chunking = take.flag("enable_chunked_prefill", default=True)
    said = "enable_chunked_prefill" in take.given
    policy = take.choice("policy", POLICIES)
    if policy is None:
        if chunking:
            policy = take.settle("policy", "chunked", "chunked prefill is on")
        else:
            policy = take.settle("policy", "prefill-first", "chunked prefill is off")
    elif said and chunking != (policy == "chunked"):
        raise ConfigError(
            f"policy is {policy!r}, but enable_chunked_prefill is {chunking}",
            hint="leave one of the two out; prefill-first and decode-first compute whole prompts",
        )
    elif not said and policy != "chunked":
        take.settle(
            "enable_chunked_prefill", value=False, reason=f"{policy} computes whole prompts"
        )
    if policy != "chunked":
        for name in _WHOLE_PROMPTS_IGNORE:
            if name in take.given:
                raise ConfigError(
                    f"{name} is given, but it has no effect with policy {policy!r}",
                    hint=f"leave {name} out, or leave chunked prefill on",
                )
            take.settle(name, 0, f"no effect: {policy} computes whole prompts")
    return cast("Policy", policy)


def _budget(take: Options, max_model_len: int, *, chunked: bool) -> int:
    name = "max_num_batched_tokens"
    if chunked:
        return take.integer(name, CPU_STEP_TOKENS, 1, auto="usual on a CPU")
    budget = take.integer(name, max_model_len, 1, auto="a whole prompt of max_model_len")
    if budget < max_model_len:
        raise ConfigError(
            f"{name} is {budget:,}, but with chunked prefill off a step must hold a whole "
            f"prompt of up to {max_model_len:,} tokens",
            hint=f"set {name} to at least {max_model_len}, or max_model_len to at most {budget}",
        )
    return budget


def _chunk_rules(take: Options, budget: int) -> tuple[int, int, int]:
    """The largest chunk of a long prompt, the lanes, and the prompts' floor in a step."""
    threshold = take.integer("long_prefill_token_threshold", 0, 0)
    if threshold > budget:
        raise ConfigError(
            f"long_prefill_token_threshold is {threshold:,}, but a step computes at most "
            f"{budget:,} tokens (max_num_batched_tokens), so it has no effect",
            hint=f"set it below {budget}, or to 0 to switch it off",
        )
    lanes = take.integer("max_partial_prefills", 4, 1, 65_536)
    floor = take.integer(
        "min_prefill_tokens",
        min(MAX_MIN_PREFILL_TOKENS, budget // 2),
        0,
        budget - 1,
        auto=f"the smaller of {MAX_MIN_PREFILL_TOKENS} and half of the budget",
    )
    return threshold, lanes, floor
