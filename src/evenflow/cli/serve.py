"""`evenflow serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.config_table import config_lines
from evenflow.cli.flags import Group, with_flags

if TYPE_CHECKING:
    from evenflow.config import EngineConfig
    from evenflow.server.run import LoadedModel
    from evenflow.server.settings import Settings

KEY_VARIABLE = "EVENFLOW_API_KEY"


@with_flags
def serve(
    *,
    engine: Group,
    model: Annotated[
        str,
        typer.Argument(metavar="[MODEL]", help="smollm2, a .gguf file, or a Hugging Face folder."),
    ] = "smollm2",
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 8000.")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"A key that clients must show; may be repeated. Also {KEY_VARIABLE}."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="The model's name for clients; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Where the seeds of requests without one come from.")
    ] = None,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(help="Requests that may wait; one more gets a 429.")
    ] = None,
    max_body_bytes: Annotated[int | None, typer.Option(help="The largest request body.")] = None,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds a request may take; 0 is no limit.")
    ] = None,
    drain_timeout: Annotated[
        float | None, typer.Option(help="Seconds that running requests get after SIGTERM.")
    ] = None,
    stream_interval: Annotated[
        int | None, typer.Option(help="Tokens per message of a stream; 1.")
    ] = None,
    max_stream_buffer_bytes: Annotated[
        int | None, typer.Option(help="Unread bytes after which a slow reader is cut off.")
    ] = None,
    metrics_prefix: Annotated[
        str | None, typer.Option(help="Metrics' names begin with it; vllm keeps dashboards alive.")
    ] = None,
    public_metrics: Annotated[
        bool | None, typer.Option("--public-metrics", help="/metrics needs no key.")
    ] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    from evenflow.server.settings import Settings  # noqa: PLC0415 - keeps --version quick

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": tuple(api_key or _key_from_environment()),
        "served_model_names": tuple(served_model_name or ()),
        "max_num_queued_reqs": max_num_queued_reqs,
        "max_body_bytes": max_body_bytes,
        "request_timeout_s": request_timeout,
        "drain_timeout_s": drain_timeout,
        "stream_interval": stream_interval,
        "max_stream_buffer_bytes": max_stream_buffer_bytes,
        "metrics_prefix": metrics_prefix,
        "public_metrics": public_metrics,
    }
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
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

    def announce(loaded: LoadedModel, url: str) -> None:
        for line in config_lines(loaded.config):
            _say(line)
        for warning in loaded.config.warnings:
            _say(f"warning: {warning}")
        _say(chunking_line(loaded.config))
        _say(f"serving {loaded.config.model} at {url}/v1; watch it at {url}/")

    Server(settings, lambda: LLM(model, progress=False, **engine), announce).run()


def chunking_line(config: EngineConfig) -> str:
    """Whether chunked prefill is on, and with which budget, in one line."""
    budget = f"{config.max_num_batched_tokens:,} tokens a step"
    if config.enable_chunked_prefill:
        return f"chunked prefill is on: at most {budget} (max_num_batched_tokens)"
    return f"chunked prefill is off: whole prompts of up to {budget}, policy {config.policy}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
