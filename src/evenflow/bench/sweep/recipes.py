"""How each engine is started, and how it spells the budget of a step and "whole prompts".

Data and no behaviour: a new engine is a new entry. A template may hold {model}, {port}, {budget}
and {knob}; the knob is what a setting adds to the command.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

from evenflow.errors import ConfigError


class Setting(NamedTuple):
    """One column of an experiment: a budget of tokens per step, or None for whole prompts."""

    budget: int | None

    @property
    def name(self) -> str:
        """As in tables."""
        return "chunking off" if self.budget is None else f"budget {self.budget:,}"

    @property
    def slug(self) -> str:
        """As in file names."""
        return "off" if self.budget is None else str(self.budget)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a server.

    Attributes:
        name: of the engine.
        command: a template; "" where only the user knows.
        on: what a budget adds to the command.
        off: what whole prompts add; None where the engine cannot.
        ready_path: answers 200 when the server can serve.
        endpoint: where it takes completions.
        note: what a reader of the result should know.
    """

    name: str
    command: str
    on: str
    off: str | None
    ready_path: str = "/v1/models"
    endpoint: str = "/v1/completions"
    note: str = ""


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "evenflow",
            f"{shlex.quote(sys.executable)} -m evenflow serve {{model}} --port {{port}} {{knob}}",
            "--max-num-batched-tokens {budget}",
            "--no-enable-chunked-prefill",
            ready_path="/health",
        ),
        Recipe(
            "vllm",
            "vllm serve {model} --port {port} --enable-logging-iteration-details {knob}",
            "--max-num-batched-tokens {budget}",
            "--no-enable-chunked-prefill",
            ready_path="/health",
            note="vLLM 0.32 refuses a budget below max_num_seqs: lower that with --serve-args",
        ),
        Recipe(
            "sglang",
            f"{shlex.quote(sys.executable)} -m sglang.launch_server --model-path {{model}} "
            "--port {port} {knob}",
            "--chunked-prefill-size {budget} --enable-mixed-chunk",
            "--chunked-prefill-size -1",
            ready_path="/health",
            note="SGLang 0.5 alternates prefill and decode by default; budgets here are run with "
            "--enable-mixed-chunk, which it drops silently when logprobs are asked for",
        ),
        Recipe(
            "llama.cpp",
            "llama-server --model {model} --port {port} {knob}",
            "--batch-size {budget} --ubatch-size {budget}",
            "--batch-size 8192 --ubatch-size 512",
            ready_path="/health",
            note="llama.cpp's server has no whole-prompt mode: 'off' is its largest batch, 8,192",
        ),
        Recipe(
            "openvino",
            "",
            "--max_num_batched_tokens {budget}",
            None,
            note="OpenVINO GenAI is a library; which server carries it, and how that takes "
            "max_num_batched_tokens, only you know: give --serve-cmd and --knob-on",
        ),
        Recipe("custom", "", "", None),
    )
}


def choose_recipe(
    name: str,
    *,
    command: str | None = None,
    on: str | None = None,
    off: str | None = None,
    ready_path: str | None = None,
) -> Recipe:
    """An engine's recipe, with what the user says in place of it.

    Raises:
        ConfigError: no such engine; or a command that lacks what it needs.
    """
    if name not in RECIPES:
        raise ConfigError(f"there is no engine {name!r}", hint=f"known: {', '.join(RECIPES)}")
    given = {"command": command, "on": on, "off": off, "ready_path": ready_path}
    recipe = replace(RECIPES[name], **{k: v for k, v in given.items() if v is not None})
    if not recipe.command:
        raise ConfigError(
            f"how {name} is started is not known here",
            hint='give --serve-cmd "... {port} ... {knob}", and --knob-on "--batch {budget}"',
        )
    if "{port}" not in recipe.command:
        raise ConfigError("--serve-cmd has no {port}", hint="the sweep chooses a free port")
    if "{knob}" not in recipe.command and "{budget}" not in recipe.command:
        raise ConfigError(
            "--serve-cmd has neither {knob} nor {budget}",
            hint="without one of them every setting would start the same server",
        )
    return recipe


def command_for(
    recipe: Recipe, setting: Setting, *, model: str, port: int, more: str = ""
) -> list[str]:
    """The words of the command that starts a server with a setting.

    Raises:
        ConfigError: the engine cannot do the setting, or a placeholder is unknown.
    """
    if setting.budget is None:
        if recipe.off is None:
            raise ConfigError(
                f"{recipe.name} has no known way to switch chunking off",
                hint='give one with --knob-off "...", or leave "off" out of --budgets',
            )
        knob = recipe.off
    else:
        knob = recipe.on
    # the bare {budget} of a custom command: 0 stands for whole prompts
    values = {"model": shlex.quote(model), "port": port, "budget": setting.budget or 0}
    try:
        text = recipe.command.format(knob=knob.format(**values), **values)
    except (KeyError, IndexError) as e:
        raise ConfigError(
            f"the command has an unknown placeholder: {e}",
            hint="known: {model}, {port}, {budget}, {knob}",
        ) from e
    return [*shlex.split(text), *shlex.split(more)]
