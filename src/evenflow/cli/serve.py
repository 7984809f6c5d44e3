"""`evenflow serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.config_table import config_lines
from evenflow.cli.flags import Group, with_flags

if TYPE_CHECKING:
    from evenflow.config import EngineConfig
    from evenflow.model.spec import ModelSpec
    from evenflow.server.run import LoadedModel
    from evenflow.server.settings import Settings

KEY_VARIABLE = "EVENFLOW_API_KEY"


@with_flags
def serve(
    *,
    engine: Group,
    server: Group,
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            help="smollm2, random:SHAPE, a .gguf file, or a Hugging Face folder.",
        ),
    ] = "smollm2",
    seed: Annotated[
        int | None, typer.Option(help="Where the seeds of requests without one come from.")
    ] = None,
) -> None:
    """Serve a model over HTTP as OpenAI's API does; a key may also be in EVENFLOW_API_KEY."""
    from evenflow.server.settings import Settings  # noqa: PLC0415 - keeps --version quick

    keys = server.pop("api_key", ()) or _key_from_environment()
    names = server.pop("served_model_name", ())
    for name in ("header_timeout", "request_timeout", "drain_timeout"):
        if name in server:
            server[f"{name}_s"] = server.pop(name)
    settings = Settings(api_keys=tuple(keys), served_model_names=tuple(names), **server)
    if seed is not None:
        engine["seed"] = seed
    _run(model, engine, settings)


def _key_from_environment() -> tuple[str, ...]:
    key = os.environ.get(KEY_VARIABLE)
    return (key,) if key else ()


def _run(model: str, engine: Group, settings: Settings) -> None:
    from evenflow import LLM  # noqa: PLC0415 - keeps --version and --help quick
    from evenflow.server.run import Server  # noqa: PLC0415 - as above

    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    if not settings.is_loopback and not settings.api_keys:
        _say(
            f"warning: {settings.host} can be reached from other machines, and no --api-key is "
            "given: anybody may use this server"
        )

    _say(f"loading {model}")

    def announce(loaded: LoadedModel, url: str) -> None:
        for line in config_lines(loaded.config):
            _say(line)
        for warning in loaded.config.warnings:
            _say(f"warning: {warning}")
        _say(chunking_line(loaded.config))
        _say(f"serving {loaded.config.model} at {url}/v1; watch it at {url}/")

    def load() -> LLM:
        llm = LLM(model, progress=False, **engine)
        _say(model_line(llm.model.spec))
        return llm

    Server(settings, load, announce).run()


def model_line(spec: ModelSpec) -> str:
    """The model's name, family and size, in one line."""
    return f"{spec.name}: {spec.family} family, {spec.num_params() / 1e6:,.0f} M parameters"


def chunking_line(config: EngineConfig) -> str:
    """Whether chunked prefill is on, and with which budget, in one line."""
    budget = f"{config.max_num_batched_tokens:,} tokens a step"
    if config.enable_chunked_prefill:
        return f"chunked prefill is on: at most {budget} (max_num_batched_tokens)"
    return f"chunked prefill is off: whole prompts of up to {budget}, policy {config.policy}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
