"""`evenflow compare`: is B faster than A, and by how much?"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli.bench import DEFAULT_MODEL, open_session, records_path
from evenflow.cli.bench_flags import LOAD, RESULTS, TARGET, WORKLOAD, read_flags
from evenflow.cli.flags import Group, with_groups
from evenflow.errors import ConfigError, InvalidRunError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from evenflow.bench.compare import Comparison
    from evenflow.bench.session import Session
    from evenflow.cli.bench_flags import Asked

_GROUPS = {
    "target": {k: v for k, v in TARGET.items() if k != "base_url"},
    "load": LOAD,
    "shape": WORKLOAD,
    "results": {
        k: v for k, v in RESULTS.items() if k in {"result_dir", "live", "metric_percentiles"}
    },
}
LOCAL = "local"


@with_groups(_GROUPS)
def compare(
    *,
    target: Group,
    load: Group,
    shape: Group,
    results: Group,
    a: Annotated[str, typer.Argument(metavar="A", help="The base: see B.")],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="A URL, local:option=value,... for a model in this process, or a recording.",
        ),
    ],
    pairs: Annotated[int, typer.Option(help="Pairs of runs of A and B.")] = 5,
    noise_pairs: Annotated[int, typer.Option(help="Pairs of runs of A alone, first.")] = 2,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when a run is INVALID.")
    ] = False,
) -> None:
    """Run A and B in turns on the same workload and say what differs, with an interval.

    A runs against itself first: no difference below what that shows is claimed.
    """
    if pairs < 1 or noise_pairs < 0:
        raise ConfigError(
            f"--pairs is {pairs} and --noise-pairs {noise_pairs}", hint="take at least one pair"
        )
    files = [Path(text).is_file() for text in (a, b)]
    if all(files):
        outcome = _recorded(Path(a), Path(b), [*target, *load, *shape, *results])
    elif any(files):
        other = a if files[1] else b
        if not other.startswith(("http://", "https://", f"{LOCAL}:")) and other != LOCAL:
            raise ConfigError(f"there is no file {other}", hint="give the path of a recording")
        raise ConfigError(
            "one of A and B is a recording and the other is not",
            hint="compare two recordings, or two targets that can be run",
        )
    else:
        same_work = {"ignore_eos": True, **target, "base_url": ""}
        asked = read_flags(same_work, load, shape, results, {})
        folder = Path(results.get("result_dir", "compare"))
        outcome = asyncio.run(_live((a, b), asked, folder, pairs, noise_pairs))
    _print(outcome, (a, b), json=json)
    if outcome.interrupted:
        raise KeyboardInterrupt
    if strict and outcome.invalid:
        raise InvalidRunError(
            f"{len(outcome.invalid)} runs are INVALID: {outcome.invalid[0]}",
            hint="mend what it names and run again",
        )


def _recorded(a: Path, b: Path, idle: list[str]) -> Comparison:
    from evenflow.bench.compare import compare_recorded  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.imports import load_records  # noqa: PLC0415 - as above
    from evenflow.bench.measure import MeasureOptions  # noqa: PLC0415 - as above

    if idle:
        raise ConfigError(
            f"--{idle[0].replace('_', '-')} has no effect on recordings",
            hint="their runs are over; leave it out",
        )
    return compare_recorded(load_records(a), load_records(b), MeasureOptions())


async def _live(
    names: tuple[str, str], asked: Asked, folder: Path, pairs: int, noise_pairs: int
) -> Comparison:
    from evenflow.bench.compare import compare_live  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.workload.build import make_workload  # noqa: PLC0415 - as above

    records_path({"result_dir": folder})  # makes the folder
    workload = make_workload(asked.workload)
    async with AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(_open(name, asked)) for name in names]
        outcome = await compare_live(
            a,
            b,
            workload,
            folder,
            pairs=pairs,
            noise_pairs=noise_pairs,
            options=asked.run,
            measuring=asked.measure,
            say=lambda text: print(text, file=sys.stderr),
        )
    workload.save(folder / "workload.jsonl")
    return outcome


@asynccontextmanager
async def _open(name: str, asked: Asked) -> AsyncIterator[Session]:
    """A session with what a name means."""
    if name.startswith(("http://", "https://")):
        url, _, model = name.partition("#")
        target = {**asked.target, "base_url": url, **({"model": model} if model else {})}
        async with open_session(asked._replace(target=target)) as session:
            yield session
        return
    kind, _, rest = name.partition(":")
    if kind != LOCAL:
        raise ConfigError(
            f"cannot tell what {name!r} is",
            hint="give a URL (with #model if it serves several), local:option=value, or a recording",
        )
    known = ("model", "temperature", "ignore_eos")
    target = {k: v for k, v in asked.target.items() if k in known}
    target.setdefault("model", DEFAULT_MODEL)
    engine = read_options(rest)
    async with open_session(asked._replace(target=target, engine=engine)) as session:
        yield session


def read_options(text: str) -> dict[str, Any]:
    """Engine options from "max_num_batched_tokens=128,enable_chunked_prefill=false".

    Raises:
        ConfigError: an entry has no value.
    """
    options: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {part!r} in local:...", hint="write option=value")
        words = {"true": True, "false": False}
        key = name.strip().replace("-", "_")
        text_of_it = value.strip()
        options[key] = words.get(text_of_it.lower(), _number(text_of_it))
    return options


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _print(outcome: Comparison, names: tuple[str, str], *, json: bool) -> None:
    if json:
        import orjson  # noqa: PLC0415 - keeps --help quick

        value = {
            "a": names[0],
            "b": names[1],
            "pairs": outcome.pairs,
            "noise_pairs": outcome.noise_pairs,
            "invalid": outcome.invalid,
            "figures": {
                c.figure.title: {
                    "unit": c.figure.unit,
                    "a": c.a,
                    "b": c.b,
                    **c.verdict._asdict(),
                    "words": c.verdict.words(c.figure.title),
                }
                for c in outcome.compared
            },
        }
        sys.stdout.write(orjson.dumps(value).decode() + "\n")
        return
    from rich import box  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    from evenflow.bench.show import milliseconds, wide_console  # noqa: PLC0415 - as above

    grid = Table(title=f"A: {names[0]}\nB: {names[1]}", title_justify="left", box=box.SIMPLE_HEAD)
    for head in ("", "A", "B", "A against itself", "verdict on B"):
        grid.add_column(head, justify="left" if head in {"", "verdict on B"} else "right")
    for c in outcome.compared:
        noise = c.verdict.noise_percent
        style = "dim" if c.verdict.change == "none" else "bold"
        grid.add_row(
            f"{c.figure.title}, {c.figure.unit}",
            milliseconds(c.a),
            milliseconds(c.b),
            "-" if noise is None else f"{noise:.1f} %",
            f"[{style}]{c.verdict.words('').removeprefix(': ')}[/]",
        )
    console = wide_console()
    console.print(grid)
    if not outcome.noise_pairs:
        console.print("no run of A against itself: a difference may be the machine's mood")
    for line in outcome.invalid:
        console.print(f"[red]INVALID[/] {line}")
