"""The options of the engine and of sampling as flags, spelt as in vLLM where it has the same one.

A command says `engine: Group` (or `sampling`, or `server`) and gets, by name, what was given on the command
line and nothing else, so that every default lives with its option and not here.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Group = dict[str, Any]


class Flag(NamedTuple):
    """A flag's type, its help, and how the two ways of a switch are spelt."""

    kind: type
    help: str
    spelling: str = ""


ENGINE = {
    "runner": Flag(str, "What computes the steps: auto, native or reference."),
    "weights": Flag(str, "Format of the weights: auto, bf16, int8, int4 or f32 (native)."),
    "kv_cache_dtype": Flag(str, "Format of keys and values: auto, bfloat16, float32 (native)."),
    "threads": Flag(int, "Compute threads; else the physical cores (native)."),
    "isa": Flag(str, "The instruction set; else the machine's best (native)."),
    "max_model_len": Flag(int, "Positions one request may have, prompt and output together."),
    "max_num_batched_tokens": Flag(int, "The budget: positions that one step may compute."),
    "max_num_seqs": Flag(int, "Requests that may be running at once."),
    "block_size": Flag(int, "Positions per KV block."),
    "num_kv_blocks": Flag(int, "Blocks in the KV pool."),
    "kv_cache_memory_bytes": Flag(str, "The KV pool's size instead of its blocks, such as 2G."),
    "kv_cache_memory_share": Flag(float, "The same, as a share of free memory, such as 0.5."),
    "enable_prefix_caching": Flag(
        bool,
        "Keep and share full blocks between requests.",
        "--enable-prefix-caching/--no-enable-prefix-caching",
    ),
    "enable_chunked_prefill": Flag(
        bool,
        "Cut prompts into chunks.",
        "--enable-chunked-prefill/--no-enable-chunked-prefill",
    ),
    "policy": Flag(str, "auto, chunked, prefill-first or decode-first."),
    "long_prefill_token_threshold": Flag(int, "A chunk's largest size; 0 is no such limit."),
    "max_partial_prefills": Flag(int, "Prompts that may be part-way through their prefill."),
    "min_prefill_tokens": Flag(int, "Positions of a step kept for prompts, when any wait."),
    "priority_aging_steps": Flag(int, "A waiting request gains a priority level every N steps."),
    "max_admission_skips": Flag(int, "Requests admitted past one that does not fit, at most."),
    "max_preemptions": Flag(int, "After so many, a request comes back with all reserved."),
    "plan_depth": Flag(int, "Plans that may be in flight at once."),
    "max_logprobs": Flag(int, "Likeliest tokens that a request may have reported, at most."),
    "speculative": Flag(str, "Draft tokens and verify several a step: off or ngram."),
    "num_speculative_tokens": Flag(int, "Tokens drafted for one request and step, at most."),
    "prompt_lookup_max": Flag(int, "Last tokens that a draft is looked up by, at most."),
    "prompt_lookup_min": Flag(int, "Last tokens that must be found again, at least."),
    "speculative_disable_by_batch_size": Flag(int, "More decodes than this draft nothing."),
    "speculative_config": Flag(str, "The five above as vLLM's JSON object."),
}

SAMPLING = {
    "n": Flag(int, "Answers to draw."),
    "max_tokens": Flag(int, "Tokens to generate at most."),
    "min_tokens": Flag(int, "Tokens to generate before it may end."),
    "temperature": Flag(float, "0 is greedy; the default is 1."),
    "top_p": Flag(float, "Keep the smallest set of tokens of this probability."),
    "top_k": Flag(int, "Keep the k likeliest tokens; 0 keeps all."),
    "min_p": Flag(float, "Drop tokens below this share of the likeliest one."),
    "seed": Flag(int, "The same seed draws the same tokens."),
    "stop": Flag(list[str], "A string that ends the text; may be repeated."),
    "repetition_penalty": Flag(float, "Divides logits of tokens seen so far; 1 is none."),
    "presence_penalty": Flag(float, "Taken off the logits of tokens in the answer."),
    "frequency_penalty": Flag(float, "Taken off once for each time a token is there."),
    "bad_words": Flag(list[str], "A text that may not be generated.", "--bad-word"),
    "logprobs": Flag(int, "Log probabilities of this many likeliest tokens; with --json."),
    "ignore_eos": Flag(bool, "Go on after the model's end of sequence.", "--ignore-eos"),
}

SERVER = {
    "host": Flag(str, "Address to listen on; 127.0.0.1 unless told otherwise."),
    "port": Flag(int, "Port to listen on; 8000 unless told otherwise."),
    "api_key": Flag(list[str], "A key that clients must show; may be repeated."),
    "served_model_name": Flag(list[str], "The model's name for clients; may be repeated."),
    "max_num_queued_reqs": Flag(int, "Requests that may wait; one more gets a 429."),
    "max_body_bytes": Flag(int, "The largest request body."),
    "max_header_bytes": Flag(int, "The largest request line and headers together."),
    "header_timeout": Flag(float, "Seconds in which they must arrive; 30 unless told otherwise."),
    "request_timeout": Flag(float, "Seconds that a request may take; 0 is no limit."),
    "drain_timeout": Flag(float, "Seconds that running requests get after SIGTERM."),
    "stream_interval": Flag(int, "Tokens per message of a stream; 1 unless told otherwise."),
    "max_stream_buffer_bytes": Flag(int, "Unread bytes after which a slow reader is cut off."),
    "tool_call_parser": Flag(
        str, "How the model writes calls: auto, hermes, llama3_json or mistral."
    ),
    "metrics_prefix": Flag(str, "Metrics' names begin with it; vllm keeps its dashboards working."),
    "public_metrics": Flag(bool, "/metrics needs no key.", "--public-metrics"),
}

_GROUPS = {"engine": ENGINE, "sampling": SAMPLING, "server": SERVER}


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's `engine` and `sampling` parameters by the flags of their group."""
    return with_groups(_GROUPS)(command)


def with_groups(
    known: Mapping[str, Mapping[str, Flag]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `with_flags`, for groups of a command's own."""
    return functools.partial(_flatten, known)


def _flatten(
    known: Mapping[str, Mapping[str, Flag]], command: Callable[..., None]
) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    groups = {name: table for name, table in known.items() if name in signature.parameters}
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name not in groups
    ]
    added = [
        _parameter(name, flag, f"{group.capitalize()} options")
        for group, table in groups.items()
        for name, flag in table.items()
    ]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for group, table in groups.items():
            taken = {name: values.pop(name) for name in table}
            values[group] = {name: v for name, v in taken.items() if v not in (None, [])}
        command(**values)

    # typer reads the signature and the annotations; both must show the flags
    del flat.__dict__["__wrapped__"]
    flat.__dict__["__signature__"] = signature.replace(parameters=[*kept, *added])
    flat.__annotations__ = {p.name: p.annotation for p in [*kept, *added]}
    return flat


def _parameter(name: str, flag: Flag, panel: str) -> inspect.Parameter:
    spelling = [flag.spelling] if flag.spelling else []
    option = typer.Option(*spelling, help=flag.help, rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[flag.kind | None, option],
    )
