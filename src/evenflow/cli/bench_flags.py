"""The flags that `bench`, `sweep` and `compare` share, and how their values become options.

They are spelt as in `vllm bench serve` where it has the same one. What is not given is not passed
on, so that every default lives with its option.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.cli.bench_checks import check_idle, check_numbers
from evenflow.cli.flags import ENGINE, Flag, Group
from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.bench.measure import MeasureOptions
    from evenflow.bench.run import RunOptions
    from evenflow.bench.workload.build import WorkloadOptions

TARGET = {
    "base_url": Flag(str, "A server's address; without it the model runs in this process."),
    "model": Flag(
        str, "The served name; of a model in this process smollm2, a .gguf file or a folder."
    ),
    "endpoint": Flag(str, "/v1/completions (the default) or /v1/chat/completions."),
    "header": Flag(list[str], 'Of every request: "Name: value"; may be repeated.'),
    "extra_body": Flag(str, "A JSON object with further fields of every request."),
    "temperature": Flag(float, "0, the default, is greedy."),
    "ignore_eos": Flag(
        bool,
        "Ask for the full number of output tokens; on for --streams if unsaid.",
        "--ignore-eos/--no-ignore-eos",
    ),
    "count_tokens": Flag(str, "Have the server count each message's tokens: auto, on or off."),
    "request_timeout": Flag(float, "Seconds that one request may take."),
}

LOAD = {
    "num_prompts": Flag(int, "Requests to send; 100 if nothing else says how many."),
    "request_rate": Flag(float, "Requests per second; inf, the default, sends all at once."),
    "burstiness": Flag(float, "Shape of the gamma-distributed arrivals; 1 is Poisson."),
    "max_concurrency": Flag(
        int, "Requests under way at most; at rate inf a closed loop of so many."
    ),
    "duration": Flag(
        float, "Begin nothing after so many seconds; a closed loop repeats until then."
    ),
    "warmup": Flag(float, "Measure nothing in the first so many seconds."),
    "cooldown": Flag(float, "Measure nothing in the last so many seconds of sending."),
    "num_warmups": Flag(int, "Requests sent before the run; 1 by default."),
    "seed": Flag(int, "Of everything that is drawn."),
}

WORKLOAD = {
    "input_len": Flag(str, "Prompt tokens: 512, or 400-600 (uniform), or 500~100 (normal)."),
    "output_len": Flag(str, "Output tokens, likewise; for a trace without them the most."),
    "mix": Flag(str, "A mixture: short:500/128@0.9,long:24000/64@0.1"),
    "prefix_len": Flag(int, "Tokens of a prefix that prompts share, before their own."),
    "num_prefixes": Flag(int, "How many different shared prefixes there are."),
    "turns": Flag(int, "Turns of each conversation."),
    "turn_len": Flag(int, "Tokens that the user adds in each later turn."),
    "think_time": Flag(float, "Seconds before each later turn."),
    "streams": Flag(int, "Steady streams, the victims of what is injected."),
    "inject": Flag(list[str], "24000@5s or 24000/64@5s: a long prompt lands; may be repeated."),
    "dataset_path": Flag(Path, "A trace to replay."),
    "dataset_name": Flag(str, "Its format: auto, mooncake, azure, burstgpt or sharegpt."),
    "time_scale": Flag(float, "Stretch a trace's time; 2 is half as fast."),
    "length_scale": Flag(float, "Scale a trace's lengths, for a smaller model."),
    "max_len": Flag(int, "Leave requests of more tokens out of a trace."),
    "workload": Flag(Path, "Replay a workload that was saved, exactly."),
}

RESULTS = {
    "goodput": Flag(list[str], "Limits in ms: ttft:200 tpot:50 itl:100 e2el:9000."),
    "metric_percentiles": Flag(str, "Which percentiles: 50,90,95,99,99.9"),
    "stall_factor": Flag(float, "A stall is a gap of more than so many medians of its stream."),
    "stall_limit": Flag(float, "And, counted beside that, a gap of more than so many ms."),
    "save_result": Flag(bool, "Save the JSON of `vllm bench serve`.", "--save-result"),
    "save_detailed": Flag(bool, "Save it with its lists per request.", "--save-detailed"),
    "result_dir": Flag(Path, "Folder of all results; the present one if unsaid."),
    "result_filename": Flag(str, "Name of vLLM's JSON."),
    "records": Flag(Path, "Where to write the records; else a dated name in --result-dir."),
    "trace": Flag(Path, "Write the engine's own record of every step; of a model here only."),
    "metadata": Flag(list[str], "KEY=VALUE, kept in the header of the records."),
    "live": Flag(bool, "Draw the run while it runs; on a terminal if unsaid.", "--live/--no-live"),
}

GROUPS = {"target": TARGET, "load": LOAD, "shape": WORKLOAD, "results": RESULTS, "engine": ENGINE}

_LIMIT = re.compile(r"(ttft|tpot|itl|e2el):(\d+(?:\.\d+)?)")


class Asked(NamedTuple):
    """What a run was asked for, in the parts that need it."""

    target: Group
    engine: Group
    workload: WorkloadOptions
    run: RunOptions
    measure: MeasureOptions
    results: Group


def read_flags(target: Group, load: Group, shape: Group, results: Group, engine: Group) -> Asked:
    """Options from flags.

    Raises:
        ConfigError: a value cannot be read, or has no effect.
    """
    from evenflow.bench.conduct import ConductOptions  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.measure import MeasureOptions  # noqa: PLC0415 - as above
    from evenflow.bench.run import RunOptions  # noqa: PLC0415 - as above
    from evenflow.bench.workload.build import WorkloadOptions  # noqa: PLC0415 - as above

    _refuse_idle(target, engine, results)
    if "streams" in shape:
        target = {"ignore_eos": True, **target}
    check_numbers({**target, **load, **shape, **results})
    check_idle(shape, load)
    drawn = ("num_prompts", "request_rate", "burstiness", "max_concurrency", "duration", "seed")
    kept = {name: load[name] for name in drawn if name in load}
    paces = {"max_concurrency": "max_concurrency", "duration": "duration_s", "warmup": "warmup_s"}
    paces["cooldown"] = "cooldown_s"
    conduct = ConductOptions(**{new: load[old] for old, new in paces.items() if old in load})
    live = results.get("live")
    measured = {
        "stall_factor": results.get("stall_factor"),
        "stall_limit_ms": results.get("stall_limit"),
        "seed": load.get("seed"),
    }
    return Asked(
        target,
        engine,
        WorkloadOptions(**kept, **shape),
        RunOptions(
            conduct=conduct,
            num_warmups=load.get("num_warmups", 1),
            live=sys.stderr.isatty() if live is None else live,
            header=read_metadata(results.get("metadata", [])),
        ),
        MeasureOptions(
            percentiles=read_percentiles(results.get("metric_percentiles")),
            goodput=read_goodput(results.get("goodput", [])),
            **{name: value for name, value in measured.items() if value is not None},
        ),
        results,
    )


def _refuse_idle(target: Group, engine: Group, results: Group) -> None:
    """A flag that would do nothing is an error."""
    if "base_url" in target:
        idle = [*engine, *(name for name in ("trace",) if name in results)]
        why = "the engine is the server's: give it to the server"
    else:
        only_http = ("endpoint", "header", "extra_body", "count_tokens", "request_timeout")
        idle = [name for name in only_http if name in target]
        why = "it is for a server: name one with --base-url"
    if idle:
        raise ConfigError(f"--{idle[0].replace('_', '-')} has no effect here", hint=why)


def read_percentiles(text: str | None) -> tuple[float, ...]:
    """From "50,90,99"; 50 and 99 are always among them, since other parts show them.

    Raises:
        ConfigError: one is no percentile.
    """
    from evenflow.bench.measure import PERCENTILES  # noqa: PLC0415 - keeps --help quick

    if text is None:
        return PERCENTILES
    try:
        found = {float(part) for part in text.split(",")}
    except ValueError:
        found = {math.nan}
    if not all(0 <= p <= 100 for p in found):
        raise ConfigError(
            f"--metric-percentiles is {text!r}", hint="write numbers from 0 to 100: 50,90,99"
        )
    return tuple(sorted(found | {50.0, 95.0, 99.0}))


def read_goodput(texts: list[str]) -> dict[str, float]:
    """From ["ttft:200", "tpot:50 itl:100"].

    Raises:
        ConfigError: one is no limit.
    """
    limits = {}
    for part in " ".join(texts).replace(",", " ").split():
        match = _LIMIT.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"cannot read {part!r} as a limit for --goodput",
                hint="write ttft:200 tpot:50 itl:100 e2el:9000, each in milliseconds",
            )
        limits[match[1]] = float(match[2])
    return limits


def read_metadata(texts: list[str]) -> dict[str, Any]:
    """From ["key=value"].

    Raises:
        ConfigError: one has no key or no value.
    """
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--metadata is {text!r}", hint="write it as KEY=VALUE")
        pairs[key] = value
    return {"metadata": pairs} if pairs else {}
