"""What the flags of a run may be: numbers in their range, and none that would do nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.cli.flags import Group

ABOVE_ZERO = (
    "duration",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "request_timeout",
    "num_prefixes",
    "turns",
    "turn_len",
    "time_scale",
    "length_scale",
    "max_len",
    "stall_factor",
    "stall_limit",
)
NOT_BELOW_ZERO = (
    "warmup",
    "cooldown",
    "num_warmups",
    "prefix_len",
    "think_time",
    "temperature",
    "seed",
)
UNBOUNDED = ("request_rate",)

_DRAWN = ("input_len", "mix", "prefix_len", "num_prefixes", "turns", "turn_len", "think_time")
_TRACED = ("dataset_name", "time_scale", "length_scale", "max_len")
_NEEDS = {
    **dict.fromkeys(_TRACED, ("dataset_path", "it is for a trace: name one with --dataset-path")),
    "num_prefixes": ("prefix_len", "say with --prefix-len how long they are"),
    "turn_len": ("turns", "say with --turns how many turns there are"),
    "think_time": ("turns", "say with --turns how many turns there are"),
}
_BESIDE = {
    "workload": (
        (*_DRAWN, *_TRACED, "output_len", "num_prompts", "request_rate", "burstiness", "seed"),
        "a saved workload is replayed exactly; leave it out",
    ),
    "dataset_path": (_DRAWN, "the trace says it; leave it out"),
    "streams": (
        ("prefix_len", "num_prefixes", "turns", "turn_len", "think_time", "max_concurrency"),
        "all --streams run at once, each with a prompt of its own; leave it out",
    ),
}


def check_numbers(given: Group) -> None:
    """Refuse numbers out of their range.

    Raises:
        ConfigError: one is.
    """
    for name in (*ABOVE_ZERO, *NOT_BELOW_ZERO):
        value = given.get(name)
        if value is None:
            continue
        strict = name in ABOVE_ZERO
        fits = value > 0 if strict else value >= 0
        if not (fits and (name in UNBOUNDED or math.isfinite(value))):
            words = "above 0" if strict else "of 0 or more"
            raise ConfigError(f"{_flag(name)} is {value:g}", hint=f"give a number {words}")
    duration = given.get("duration")
    edges = given.get("warmup", 0.0) + given.get("cooldown", 0.0)
    if duration is not None and edges >= duration:
        raise ConfigError(
            f"--warmup and --cooldown take {edges:g} s of the {duration:g} s of --duration",
            hint="leave some of the run to be measured",
        )


def check_idle(shape: Group, load: Group) -> None:
    """Refuse flags of a workload that would do nothing beside the others.

    Raises:
        ConfigError: there is one.
    """
    given = {**load, **shape}
    for source, (names, why) in _BESIDE.items():
        idle = [name for name in names if name in given]
        # two whole sources at once are refused, with better words, where workloads are made
        if source in given and idle and not {"mix", "streams"} & set(idle):
            raise ConfigError(f"{_flag(idle[0])} has no effect beside {_flag(source)}", hint=why)
    if "workload" in given:
        return
    for name, (other, why) in _NEEDS.items():
        if name in given and other not in given:
            raise ConfigError(f"{_flag(name)} has no effect here", hint=why)
    if "burstiness" in given and math.isinf(given.get("request_rate", math.inf)):
        raise ConfigError(
            "--burstiness has no effect here", hint="it shapes arrivals: give a --request-rate"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
