"""`evenflow bench`: measure the streams of a server, or of a model in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evenflow.cli.bench_flags import GROUPS, Asked, read_flags
from evenflow.cli.flags import Group, with_groups
from evenflow.errors import ConfigError, InvalidRunError, RecordError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.bench.drivers.http import HttpOptions
    from evenflow.bench.session import Outcome, Session
    from evenflow.bench.workload.plan import Workload

DEFAULT_MODEL = "smollm2"


@with_groups(GROUPS)
def bench(
    *,
    target: Group,
    load: Group,
    shape: Group,
    results: Group,
    engine: Group,
    limits: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the figures as one JSON object.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when the run is INVALID.")
    ] = False,
) -> None:
    """Measure streams: records first, figures with intervals, a client that checks itself.

    Works on any OpenAI-compatible server (--base-url), or on a model in this process.

    `evenflow bench kernels` times the native kernels instead; see its own --help.
    """
    if limits and "goodput" not in results:
        raise ConfigError(f"unexpected argument {limits[0]!r}", hint="see `evenflow bench --help`")
    if limits:  # vLLM's spelling: --goodput ttft:200 tpot:50
        results["goodput"] = [*results["goodput"], *limits]
    asked = read_flags(target, load, shape, results, engine)
    outcome = asyncio.run(_run(asked))
    _print(outcome, json=json)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if strict and not outcome.valid:
        bad = [f"{f.name}: {f.fact}" for f in outcome.findings if not f.ok]
        raise InvalidRunError(
            f"the run is INVALID: {'; '.join(bad)}", hint="mend what it names and run again"
        )


async def _run(asked: Asked) -> Outcome:
    from evenflow.bench.workload.build import make_workload  # noqa: PLC0415 - keeps --help quick

    workload = make_workload(asked.workload)
    path = records_path(asked.results)
    async with open_session(asked) as session:
        outcome = await session.run(workload, path, asked.run, asked.measure)
    save(outcome, workload, asked, path)
    return outcome


@asynccontextmanager
async def open_session(asked: Asked) -> AsyncIterator[Session]:
    """The session that a command's target flags mean.

    Raises:
        TargetError: the server is not usable.
        ModelError: the model cannot be loaded.
    """
    from evenflow.bench.session import local_session, server_session  # noqa: PLC0415 - as above

    target = asked.target
    shared = {
        "temperature": target.get("temperature", 0.0),
        "ignore_eos": target.get("ignore_eos", False),
    }
    if "base_url" in target:
        options, count_each = http_options(target)
        async with server_session(
            target["base_url"], target.get("model"), options, count_each=count_each
        ) as session:
            yield session
        return
    from evenflow import LLM  # noqa: PLC0415 - an engine is not needed to measure a server
    from evenflow.trace import TraceWriter  # noqa: PLC0415 - as above

    model = target.get("model", DEFAULT_MODEL)
    with ExitStack() as stack:
        llm = stack.enter_context(LLM(model, **asked.engine))
        if "trace" in asked.results:
            writer = stack.enter_context(TraceWriter(asked.results["trace"]))
            stack.callback(llm.close)  # before the file is: the engine writes to the last moment
            llm.trace(writer)
        for warning in llm.config.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        yield local_session(llm, model, **shared)


def http_options(target: Group) -> tuple[HttpOptions, bool | None]:
    """How to ask a server, from the target flags; and whether it is to count every message."""
    import orjson  # noqa: PLC0415 - keeps --help quick

    from evenflow.bench.drivers.http import COMPLETIONS, HttpOptions, parse_headers  # noqa: PLC0415

    headers = parse_headers(target.get("header", []))
    key = os.environ.get("OPENAI_API_KEY")
    if key and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = f"Bearer {key}"
    text = target.get("extra_body", "{}")
    try:
        extra = orjson.loads(text)
    except orjson.JSONDecodeError:
        extra = None
    if not isinstance(extra, dict):
        raise ConfigError(f"--extra-body is {text!r}", hint='give a JSON object: {"top_k": 1}')
    words = {"auto": None, "on": True, "off": False}
    counting = target.get("count_tokens", "auto")
    if counting not in words:
        raise ConfigError(f"--count-tokens is {counting!r}", hint="it is auto, on or off")
    endpoint = target.get("endpoint", COMPLETIONS)
    if not endpoint.startswith("/"):
        raise ConfigError(
            f"--endpoint is {endpoint!r}", hint=f"it is a path that begins with /: {COMPLETIONS}"
        )
    options = HttpOptions(
        model="",
        endpoint=endpoint,
        headers=headers,
        extra_body=extra,
        temperature=target.get("temperature", 0.0),
        ignore_eos=target.get("ignore_eos", False),
        timeout_s=target.get("request_timeout", 3600.0),
    )
    return options, words[counting]


def records_path(results: Group) -> Path:
    """Where the records go; makes the folder.

    Raises:
        RecordError: the folder cannot be made.
    """
    folder = Path(results.get("result_dir", Path()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RecordError(f"cannot make {folder}: {e.strerror}", hint="choose another") from e
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(results.get("records", folder / f"bench-{stamp}.jsonl"))


def save(outcome: Outcome, workload: Workload, asked: Asked, path: Path) -> None:
    """Save the workload beside the records, and vLLM's JSON when it was asked for."""
    beside = path.with_suffix(".workload.jsonl")
    workload.save(beside)
    print(f"records: {path}\nworkload: {beside}", file=sys.stderr)
    detailed = asked.results.get("save_detailed", False)
    if not (detailed or asked.results.get("save_result")):
        return
    import orjson  # noqa: PLC0415 - keeps --help quick

    from evenflow.bench.export import to_vllm  # noqa: PLC0415 - as above

    result = to_vllm(outcome.records, asked.measure, detailed=detailed)
    model = str(result["model_id"]).rsplit("/", 1)[-1]
    named = f"{result['backend']}-{result['request_rate']}qps-{model}-{result['date']}.json"
    target = path.parent / asked.results.get("result_filename", named)
    try:
        target.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    except OSError as e:
        raise RecordError(f"cannot write {target}: {e.strerror}", hint="choose another") from e
    print(f"result: {target}", file=sys.stderr)


def _print(outcome: Outcome, *, json: bool) -> None:
    from evenflow.bench.measure import as_json  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.show import show_run, wide_console  # noqa: PLC0415 - as above

    if json:
        import orjson  # noqa: PLC0415 - as above

        value = {
            "valid": outcome.valid,
            "findings": [f._asdict() for f in outcome.findings],
            "problems": outcome.records.problems,
            **as_json(outcome.metrics),
        }
        sys.stdout.write(orjson.dumps(value, tuple).decode() + "\n")
        return
    console = wide_console()
    console.print(show_run(outcome.records, outcome.metrics, outcome.findings, width=console.width))
