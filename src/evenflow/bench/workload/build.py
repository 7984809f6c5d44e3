"""One workload out of what a person asked for; contradictions are refused, not guessed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.workload.draw import (
    RequestClass,
    Shape,
    arrivals,
    draw_attack,
    draw_mixture,
    parse_injection,
    parse_length,
    parse_mix,
)
from evenflow.bench.workload.plan import Workload, load_workload
from evenflow.bench.workload.traces import TraceOptions, read_trace_file
from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_INPUT, DEFAULT_OUTPUT = "512", 128
DEFAULT_STREAM_OUTPUT = 1024
DEFAULT_ATTACK_OUTPUT = 16
DEFAULT_REQUESTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What was asked for; None is not asked for."""

    workload: Path | None = None
    dataset_path: Path | None = None
    dataset_name: str = "auto"
    num_prompts: int | None = None
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    input_len: str | None = None
    output_len: str | None = None
    mix: str | None = None
    prefix_len: int = 0
    num_prefixes: int = 1
    turns: int = 1
    turn_len: int = 64
    think_time: float = 0.0
    streams: int | None = None
    inject: Sequence[str] = ()
    time_scale: float = 1.0
    length_scale: float = 1.0
    max_len: int | None = None
    duration: float | None = None
    seed: int = 0


def make_workload(options: WorkloadOptions) -> Workload:
    """Read back, read from a trace, or draw.

    Raises:
        ConfigError: two sources at once, or a value that cannot be read.
        RecordError: a file cannot be read.
    """
    named = {
        "--workload": options.workload,
        "--dataset-path": options.dataset_path,
        "--mix": options.mix,
        "--streams": options.streams,
    }
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(
            f"{' and '.join(given)} are given", hint="a workload comes from one of them"
        )
    if options.inject and options.streams is None:
        raise ConfigError("--inject is given without --streams", hint="say how many streams run")
    if options.workload is not None:
        return load_workload(options.workload)
    rng = np.random.default_rng(options.seed)
    if options.streams is not None:
        made = _attack(options, rng)
    elif options.dataset_path is not None:
        made = _trace(options, options.dataset_path, rng)
    else:
        made = _drawn(options, rng)
    asked = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(options).items()}
    if math.isinf(options.request_rate):
        asked["request_rate"] = None
    made.header = {**made.header, "asked": asked}
    return made


def _drawn(options: WorkloadOptions, rng: np.random.Generator) -> Workload:
    if options.mix is not None:
        if options.input_len or options.output_len:
            raise ConfigError(
                "--mix and --input-len or --output-len are given",
                hint="the mixture holds the lengths of each class",
            )
        classes = parse_mix(options.mix)
    else:
        prompt = parse_length(options.input_len or DEFAULT_INPUT, "--input-len")
        output = parse_length(options.output_len or str(DEFAULT_OUTPUT), "--output-len")
        classes = [RequestClass("default", prompt, output, 1.0)]
    count = _count(options)
    closed = math.isinf(options.request_rate) and options.max_concurrency is not None
    times: Sequence[float | None] = (
        [None] * count if closed else arrivals(count, options.request_rate, options.burstiness, rng)
    )
    shape = Shape(
        options.prefix_len,
        options.num_prefixes,
        options.turns,
        options.turn_len,
        options.think_time,
    )
    return Workload(draw_mixture(classes, count, times, shape, rng))


def _count(options: WorkloadOptions) -> int:
    """How many requests: as asked, else as many as the rate sends in the duration."""
    if options.num_prompts is not None:
        if options.num_prompts < 1:
            raise ConfigError("--num-prompts is below 1", hint="send at least one request")
        return options.num_prompts
    if options.duration is not None and math.isfinite(options.request_rate):
        return max(1, math.ceil(options.duration * options.request_rate))
    return DEFAULT_REQUESTS


def _attack(options: WorkloadOptions, rng: np.random.Generator) -> Workload:
    streams = options.streams or 0
    if streams < 1:
        raise ConfigError(f"--streams is {streams}", hint="run at least one stream")
    if options.num_prompts is not None or math.isfinite(options.request_rate):
        raise ConfigError(
            "--streams and --num-prompts or --request-rate are given",
            hint="streams run until the injected prompts are through, or for --duration seconds",
        )
    prompt = parse_length(options.input_len or DEFAULT_INPUT, "--input-len")
    output = parse_length(options.output_len or str(DEFAULT_STREAM_OUTPUT), "--output-len")
    injections = [parse_injection(text, DEFAULT_ATTACK_OUTPUT) for text in options.inject]
    return draw_attack(streams, prompt, output.draw(rng), injections, rng)


def _trace(options: WorkloadOptions, path: Path, rng: np.random.Generator) -> Workload:
    most = parse_length(options.output_len, "--output-len").high if options.output_len else 0
    wanted = TraceOptions(
        take=options.num_prompts,
        time_scale=options.time_scale,
        length_scale=options.length_scale,
        max_len=options.max_len,
        output_tokens=most,
    )
    made = read_trace_file(path, options.dataset_name, wanted, rng)
    timeless = [r for r in made.requests if r.at_s is None]
    if timeless and not (math.isinf(options.request_rate) and options.max_concurrency is not None):
        times = arrivals(len(timeless), options.request_rate, options.burstiness, rng)
        for request, at_s in zip(timeless, times, strict=True):
            request.at_s = at_s
    elif not timeless and math.isfinite(options.request_rate):
        raise ConfigError(
            "--request-rate is given for a trace with its own time stamps",
            hint="stretch its time with --time-scale instead",
        )
    return made
