"""`evenflow blame`: which prompt caused each stall, from a file or by measuring a server now."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.bench_flags import TARGET, WORKLOAD
from evenflow.cli.flags import Flag, Group, with_groups
from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.bench.blame.model import BlameOptions
    from evenflow.bench.blame.source import Source, SourceOptions

READING = {
    "format": Flag(str, "Of the file: auto, evenflow, vllm, aiperf or sglang."),
    "columns": Flag(str, "Read a table: stream=COLUMN,time=COLUMN[,tokens=,send=,prompt_tokens=]."),
    "time_unit": Flag(str, "Of a table's times: s, ms, us or ns."),
    "steps": Flag(Path, "A trace of our engine from during the run."),
    "log": Flag(Path, "A log of vLLM, SGLang or llama.cpp from during the run."),
}
JUDGING = {
    "stall_factor": Flag(float, "A stall is a gap of more than so many medians of its stream; 4."),
    "stall_limit": Flag(float, "Instead: a gap of more than so many ms."),
    "target": Flag(float, "The longest gap in ms that the advised budget should allow."),
    "server": Flag(str, "Whose knobs to name: evenflow, vllm, sglang, llama.cpp, openvino, ..."),
    "permutations": Flag(int, "Random shifts in the test against chance; 999."),
    "seed": Flag(int, "Of the shifts."),
}
PROBING = {
    **{name: flag for name, flag in TARGET.items() if name != "base_url"},
    **{name: WORKLOAD[name] for name in ("streams", "inject")},
    "output_len": Flag(str, "Output tokens of each stream."),
    "records": Flag(Path, "Where to write the records of the measurement."),
}
GROUPS = {"reading": READING, "judging": JUDGING, "probing": PROBING}
STREAMS = 8
INJECT = ["8000/8@3s", "8000/8@9s", "8000/8@15s"]
OUTPUT_LEN = "256"
WORDS = 2**20  # sets of words for the prompts of a measurement


@with_groups(GROUPS)
def blame(
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="Records of a run, or a server to measure.")
    ],
    *,
    reading: Group,
    judging: Group,
    probing: Group,
    top: Annotated[int, typer.Option(help="Rows in each table.")] = 10,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report as well.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print everything as one JSON object.")
    ] = False,
) -> None:
    """Name the prompt that caused each stall, and how many milliseconds it cost.

    FILE is what `evenflow bench` or --trace wrote, vLLM's --save-detailed JSON, AIPerf's or
    SGLang's records, or with --columns any table. For a URL streams are started there now, and long
    prompts are sent among them.
    """
    from evenflow.bench.blame.judge import blame as find_blame  # noqa: PLC0415 - keeps --help quick

    options = blame_options(judging)
    if "://" in source:
        found = asyncio.run(_measure(source, probing, source_options(reading, url=True)))
    else:
        if probing:
            name = next(iter(probing)).replace("_", "-")
            raise ConfigError(f"--{name} has no effect on a file", hint="it is for a URL")
        found = _load(Path(source), source_options(reading, url=False))
    result = find_blame(found.records, options, found.evidence)
    if report is not None:
        from evenflow.bench.report import contents_of, write_report  # noqa: PLC0415 - as above

        contents = contents_of(
            found.records, result, evidence=found.evidence, command=command_line()
        )
        write_report(report, contents)
        print(f"report: {report}", file=sys.stderr)
    _print(result, top=top, json=json)


def blame_options(judging: Group) -> BlameOptions:
    """How to judge, from flags.

    Raises:
        ConfigError: a value makes no sense.
    """
    from evenflow.bench.blame.knobs import BUDGET  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.blame.model import BlameOptions  # noqa: PLC0415 - as above

    names = {
        "stall_factor": "factor",
        "stall_limit": "limit_ms",
        "target": "target_ms",
        "server": "engine",
    }
    for name in ("stall_factor", "stall_limit", "target", "permutations"):
        if name in judging and not judging[name] > 0:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {judging[name]:g}", hint="give a number above 0"
            )
    if "server" in judging and judging["server"] not in BUDGET:
        raise ConfigError(f"--server is {judging['server']!r}", hint=f"known: {', '.join(BUDGET)}")
    return BlameOptions(**{names.get(name, name): value for name, value in judging.items()})


def source_options(reading: Group, *, url: bool) -> SourceOptions:
    """How to read, from flags.

    Raises:
        ConfigError: a flag has no effect.
    """
    from evenflow.bench.blame.source import SourceOptions  # noqa: PLC0415 - keeps --help quick

    names = {"format": "file_format", "time_unit": "unit"}
    if url:
        idle = [name for name in ("format", "columns", "time_unit") if name in reading]
        if idle:
            raise ConfigError(
                f"--{idle[0].replace('_', '-')} has no effect on a URL", hint="it is for a file"
            )
    elif "time_unit" in reading and "columns" not in reading:
        raise ConfigError("--time-unit is given without --columns", hint="it is for a table")
    return SourceOptions(**{names.get(name, name): value for name, value in reading.items()})


def _load(path: Path, options: SourceOptions) -> Source:
    from evenflow.bench.blame.source import load_source  # noqa: PLC0415 - keeps --help quick

    return load_source(path, options)


async def _measure(url: str, probing: Group, options: SourceOptions) -> Source:
    """Start streams at a server, land long prompts among them, and read the evidence."""
    from evenflow.bench.blame.source import Source, load_evidence  # noqa: PLC0415 - as above
    from evenflow.bench.run import RunOptions  # noqa: PLC0415 - as above
    from evenflow.bench.session import server_session  # noqa: PLC0415 - as above
    from evenflow.bench.workload.build import WorkloadOptions, make_workload  # noqa: PLC0415
    from evenflow.cli.bench import http_options  # noqa: PLC0415 - as above

    workload = make_workload(
        WorkloadOptions(
            streams=probing.get("streams", STREAMS),
            inject=probing.get("inject", INJECT),
            output_len=probing.get("output_len", OUTPUT_LEN),
        )
    )
    words = 1 + secrets.randbelow(WORDS)  # else a prefix cache would know them from the last time
    workload = workload.anew(words)
    workload.header = {**workload.header, "words": words}
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path = Path(probing.get("records", f"blame-{stamp}.jsonl"))
    http, count_each = http_options(probing)
    async with server_session(url, probing.get("model"), http, count_each=count_each) as session:
        outcome = await session.run(workload, path, RunOptions(live=sys.stderr.isatty()))
    print(f"records: {path}", file=sys.stderr)
    bad = [f"{f.name}: {f.fact}" for f in outcome.findings if not f.ok]
    outcome.records.problems += [f"the run is INVALID: {fact}" for fact in bad]
    return Source(outcome.records, load_evidence(outcome.records, options))


def command_line() -> str:
    """The command that is running, to be shown in what it writes."""
    return shlex.join(["evenflow", *sys.argv[1:]])


def _print(result: Any, *, top: int, json: bool) -> None:
    from evenflow.bench.blame.show import as_json, show_blame  # noqa: PLC0415 - keeps --help quick

    if json:
        import orjson  # noqa: PLC0415 - as above

        sys.stdout.write(orjson.dumps(as_json(result)).decode() + "\n")
        return
    from rich.console import Console  # noqa: PLC0415 - as above

    Console().print(show_blame(result, top=top))
