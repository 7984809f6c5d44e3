"""Writes reports and pictures to files: the only part of `report` that touches a disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.bench.measure import MeasureOptions, measure
from evenflow.bench.report.page import Contents, page, pictures
from evenflow.bench.report.svg import by_day
from evenflow.bench.validity import judge
from evenflow.errors import RecordError, UnsupportedError
from evenflow.version import __version__

if TYPE_CHECKING:
    import os

    from evenflow.bench.blame.evidence import Evidence
    from evenflow.bench.blame.model import Blame
    from evenflow.bench.records import Records

SHARPNESS = 2.0  # pixels of a PNG per unit of the drawing


def contents_of(
    records: Records,
    blame: Blame,
    *,
    evidence: Evidence | None = None,
    options: MeasureOptions | None = None,
    command: str = "",
) -> Contents:
    """Everything that a report shows, computed from the records.

    Args:
        records: of the run.
        blame: what was found in them.
        evidence: what blame was found with, for the steps.
        options: of the figures; the default is that of `measure`.
        command: what repeats it.
    """
    probed = bool(records.probes)
    return Contents(
        records=records,
        metrics=measure(records, options or MeasureOptions(stall_factor=blame.options.factor)),
        blame=blame,
        findings=judge(records) if probed else (),
        steps=evidence.known_steps if evidence is not None else (),
        command=command,
        version=__version__,
    )


def write_report(path: str | os.PathLike[str], contents: Contents) -> None:
    """Write the HTML file.

    Raises:
        RecordError: it cannot be written.
    """
    _write(Path(path), page(contents).encode())


def write_picture(path: str | os.PathLike[str], contents: Contents, name: str = "timeline") -> None:
    """Write one picture, "timeline", "tail" or "steps", as .png or .svg.

    Raises:
        RecordError: it cannot be written, or there is nothing to draw.
        UnsupportedError: a PNG is asked for and what makes it is not installed.
    """
    drawn = pictures(contents)
    if name not in drawn:
        raise RecordError(
            f"there is no {name} to draw",
            hint=f"there is {', '.join(drawn) or 'nothing'}; steps need --steps or --log",
        )
    text = by_day(drawn[name].svg())
    if Path(path).suffix == ".svg":
        _write(Path(path), text.encode())
        return
    try:
        import vl_convert  # noqa: PLC0415 - large, and only pictures need it
    except ImportError as e:
        raise UnsupportedError(
            "a PNG needs the package vl-convert-python, which is not installed",
            hint='pip install "evenflow[picture]", or give a name that ends in .svg',
        ) from e
    _write(Path(path), vl_convert.svg_to_png(text, scale=SHARPNESS))


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as e:
        raise RecordError(
            f"cannot write {path}: {e.strerror}", hint="choose a file in a folder you may write"
        ) from e
