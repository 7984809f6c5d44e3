"""`evenflow sweep`: the experiments on chunked prefill, one command each."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.bench import DEFAULT_MODEL, http_options
from evenflow.cli.bench_flags import LOAD, RESULTS, TARGET, WORKLOAD, read_flags
from evenflow.cli.flags import ENGINE, Flag, Group, with_groups
from evenflow.cli.sweep_run import Plan, equality, graphs, say, traffic
from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.sweep.experiments import Scale
    from evenflow.bench.sweep.launch import Launcher
    from evenflow.bench.sweep.recipes import Setting

EXPERIMENTS = {
    "stall": "A: streams, one long prompt lands, chunking off",
    "fix": "B: the same with chunking off and on",
    "budget": "C: mixed traffic over a list of budgets",
    "bonus": "D: throughput of mixed traffic, chunking off and on",
    "graphs": "E: do captured graphs still run?",
    "equality": "F: is the chunked answer the unchunked one?",
}
IN_PROCESS = "in-process"

SERVER = {
    "server": Flag(
        str, "in-process (the default), evenflow, vllm, sglang, llama.cpp, openvino or custom."
    ),
    "serve_cmd": Flag(str, "How to start it: a command with {port} and {knob} or {budget}."),
    "knob_on": Flag(str, "What a budget adds to the command: --batch {budget}"),
    "knob_off": Flag(str, "What whole prompts add to the command."),
    "serve_args": Flag(str, "Further words for the command."),
    "ready_path": Flag(str, "A path that answers 200 when the server can serve."),
    "ready_timeout": Flag(float, "Seconds to wait for that; 600 by default."),
    "budgets": Flag(str, 'Settings to try: "off,64,128,256"; the default suits the machine.'),
    "repeats": Flag(int, "Runs of each setting, interleaved; 1 for stall and fix, else 3."),
    "served_model_name": Flag(str, "What the started server calls the model."),
}

_TARGET = {k: v for k, v in TARGET.items() if k not in {"base_url", "ignore_eos"}}
_GROUPS = {
    "server": SERVER,
    "target": _TARGET,
    "load": LOAD,
    "shape": WORKLOAD,
    "results": {k: v for k, v in RESULTS.items() if k in {"goodput", "stall_factor", "result_dir"}},
    "engine": ENGINE,
}


@with_groups(_GROUPS)
def sweep(
    *,
    server: Group,
    target: Group,
    load: Group,
    shape: Group,
    results: Group,
    engine: Group,
    experiment: Annotated[
        str, typer.Option(help="; ".join(f"{k} ({v})" for k, v in EXPERIMENTS.items()))
    ] = "budget",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the stall, its cure, the best budget, the throughput bonus, graphs and equality.

    Starts the server anew for each setting and repeat, or loads the model in this process; goes on
    where it was interrupted when it is given the same --result-dir.
    """
    # a sweep that is told to stop stops as by Ctrl-C: the server that it started ends with it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if experiment not in EXPERIMENTS:
        raise ConfigError(
            f"there is no experiment {experiment!r}", hint=f"known: {', '.join(EXPERIMENTS)}"
        )
    plan = plan_sweep(
        experiment,
        server=server,
        target=target,
        load=load,
        shape=shape,
        results=results,
        engine=engine,
    )
    say(f"experiment {EXPERIMENTS[experiment]}; records in {plan.grid.folder}")
    match experiment:
        case "graphs":
            graphs(plan, json=json)
        case "equality":
            equality(plan, json=json)
        case _:
            if traffic(plan, json=json):
                raise KeyboardInterrupt


def plan_sweep(
    experiment: str,
    *,
    server: Group,
    target: Group,
    load: Group,
    shape: Group,
    results: Group,
    engine: Group,
) -> Plan:
    """What will be run, from the flags.

    Raises:
        ConfigError: a flag cannot be read, or has no effect.
    """
    from evenflow.bench.sweep import experiments as ex  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.sweep.grid import CEILING, MAIN, Grid  # noqa: PLC0415 - as above
    from evenflow.bench.workload.build import make_workload  # noqa: PLC0415 - as above

    for name in ("repeats", "ready_timeout"):
        if name in server and not server[name] > 0:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {server[name]:g}", hint="give a number above 0"
            )
    scale = ex.scale_of_machine()
    settings = read_settings(experiment, server.get("budgets"), scale)
    if experiment == "equality" and len(settings) < 2:
        raise ConfigError(
            "there is nothing to compare one setting with", hint='name two: --budgets "off,64"'
        )
    shape, load = defaults_for(experiment, shape, load, scale)
    local = server.get("server", IN_PROCESS) == IN_PROCESS
    asked = read_flags(target if local else {**target, "base_url": ""}, load, shape, results, {})
    main = make_workload(asked.workload)
    workloads = {MAIN: main}
    ceiling, paces = None, {}
    if experiment in {"budget", "bonus"}:
        alone = {"input_len": "16", "output_len": "128"}
        streams = load.get("max_concurrency", scale.concurrency)
        paced = {"max_concurrency": streams, "num_prompts": 2 * streams}
        steady = read_flags({}, paced, alone, {}, {})
        workloads[CEILING] = make_workload(steady.workload)
        paces[CEILING] = steady.run.conduct
        ceiling = next((s for s in settings if s.budget is not None), settings[0])
    default = 1 if experiment in {"stall", "fix"} else 3
    folder = Path(results.get("result_dir", Path(f"sweep-{experiment}")))
    grid = Grid(folder, settings, server.get("repeats", default), workloads, ceiling, paces)
    about = {k: str(v) for group in (server, target, load, engine) for k, v in group.items()}
    about.pop("ready_timeout", None)
    return Plan(experiment, _launcher(server, target, engine, local=local), grid, asked, about)


def read_settings(experiment: str, text: str | None, scale: Scale) -> list[Setting]:
    """From "off,64,128"; without it what the experiment needs on such a machine.

    Raises:
        ConfigError: an entry is neither "off" nor a number of tokens.
    """
    from evenflow.bench.sweep.recipes import Setting  # noqa: PLC0415 - keeps --help quick

    if text is None:
        many: Sequence[int | None] = [None, *sorted(scale.budgets, reverse=True)]
        few: Sequence[int | None] = [None, scale.default_budget]
        chosen = {"stall": [None], "budget": many, "equality": [None, *scale.budgets]}
        return [Setting(budget) for budget in chosen.get(experiment, few)]
    settings = []
    for part in text.split(","):
        word = part.strip()
        if word != "off" and not (word.isdecimal() and int(word) > 0):
            raise ConfigError(f"--budgets holds {word!r}", hint='write "off,64,128,256"')
        settings.append(Setting(None if word == "off" else int(word)))
    if len(set(settings)) < len(settings):
        raise ConfigError("--budgets names a setting twice", hint="name each once")
    return settings


def defaults_for(experiment: str, shape: Group, load: Group, scale: Scale) -> tuple[Group, Group]:
    """The workload of the experiment at the machine's scale, where nothing else is asked for."""
    if experiment in {"stall", "fix"}:
        attack = {
            "streams": scale.streams,
            "inject": [scale.inject],
            "input_len": scale.stream_prompt,
            "output_len": str(scale.stream_output),
        }
        return {**attack, **shape}, load
    if {"workload", "dataset_path", "mix", "streams", "input_len"} & set(shape):
        return shape, load
    paced = {"max_concurrency": scale.concurrency, "num_prompts": scale.requests}
    return {"mix": scale.mix, **shape}, {**paced, **load}


def _launcher(server: Group, target: Group, engine: Group, *, local: bool) -> Launcher:
    from evenflow.bench.sweep.launch import (  # noqa: PLC0415 - keeps --help quick
        LocalLaunch,
        ServerLaunch,
        with_full_output,
    )
    from evenflow.bench.sweep.recipes import choose_recipe  # noqa: PLC0415 - as above

    model = target.get("model", DEFAULT_MODEL)
    if local:
        idle = [k for k in server if k not in {"server", "budgets", "repeats"}]
        if idle:
            raise ConfigError(
                f"--{idle[0].replace('_', '-')} has no effect here",
                hint="it is for a server: choose one with --server",
            )

        def load(options: dict[str, Any]) -> Any:
            from evenflow import LLM  # noqa: PLC0415 - not needed to measure a server

            return LLM(model, **options)

        return LocalLaunch(load, model, engine)
    if engine:
        raise ConfigError(
            f"--{next(iter(engine)).replace('_', '-')} has no effect here",
            hint="give the server its options with --serve-args",
        )
    recipe = choose_recipe(
        server["server"],
        command=server.get("serve_cmd"),
        on=server.get("knob_on"),
        off=server.get("knob_off"),
        ready_path=server.get("ready_path"),
    )
    if recipe.note:
        say(f"note: {recipe.note}")
    http, _ = http_options({"endpoint": recipe.endpoint, **target})
    more = server.get("serve_args", "")
    timeout_s = server.get("ready_timeout", 600.0)
    name = server.get("served_model_name")
    return ServerLaunch(recipe, model, name, with_full_output(http), more, timeout_s)
