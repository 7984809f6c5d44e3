"""`evenflow report`: a run as one HTML file, and its pictures for a README."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from evenflow.cli.blame import JUDGING, READING, blame_options, command_line, source_options
from evenflow.cli.flags import Group, with_groups
from evenflow.errors import ConfigError


@with_groups({"reading": READING, "judging": JUDGING})
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Records of a run.")],
    *,
    reading: Group,
    judging: Group,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file; FILE.html if unsaid.")
    ] = None,
    picture: Annotated[
        list[Path] | None,
        typer.Option(help="A .png or .svg of the gaps over time as well; may be repeated."),
    ] = None,
    show: Annotated[
        str, typer.Option(help="Of the pictures: timeline, tail or steps.")
    ] = "timeline",
) -> None:
    """Write a report: gaps over time with the prefills to blame, tails, tables, the machine.

    FILE is anything that `evenflow blame` reads. The report needs no network and holds no script.
    """
    from evenflow.bench.blame.judge import blame  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.blame.source import load_source  # noqa: PLC0415 - as above
    from evenflow.bench.report.write import (  # noqa: PLC0415 - as above
        contents_of,
        write_picture,
        write_report,
    )

    if show not in {"timeline", "tail", "steps"}:
        raise ConfigError(f"--show is {show!r}", hint="it is timeline, tail or steps")
    source = load_source(file, source_options(reading, url=False))
    found = blame(source.records, blame_options(judging), source.evidence)
    contents = contents_of(source.records, found, evidence=source.evidence, command=command_line())
    target = output or file.with_suffix(".html")
    write_report(target, contents)
    print(f"report: {target}", file=sys.stderr)
    for path in picture or ():
        write_picture(path, contents, show)
        print(f"picture: {path}", file=sys.stderr)
