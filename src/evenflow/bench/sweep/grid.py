"""Runs a workload under several settings, interleaved, and goes on where it was interrupted.

A cell is one run of one setting; its records are a file in the experiment's folder. A cell whose
file is complete is not run again, so all figures come from records whether or not they were made in
this process. Settings take turns within each repeat, in another order each time, so that a machine
that drifts does not favour one of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import orjson

from evenflow.bench.measure import Metrics, measure
from evenflow.bench.records import Records, read_records
from evenflow.bench.validity import Finding, is_valid, judge
from evenflow.bench.workload.plan import load_workload
from evenflow.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from evenflow.bench.conduct import ConductOptions
    from evenflow.bench.measure import MeasureOptions
    from evenflow.bench.run import RunOptions
    from evenflow.bench.sweep.launch import Launcher
    from evenflow.bench.sweep.recipes import Setting
    from evenflow.bench.workload.plan import Workload

MAIN, CEILING = "main", "ceiling"


class Cell(NamedTuple):
    """One run to do: a setting, which of the workloads, and which repeat."""

    setting: Setting
    workload: str
    repeat: int

    @property
    def slug(self) -> str:
        """Its name in files."""
        kind = "" if self.workload == MAIN else f"{self.workload}-"
        return f"{kind}{self.setting.slug}-{self.repeat}"


class Result(NamedTuple):
    """What a cell gave."""

    cell: Cell
    records: Records
    metrics: Metrics
    findings: list[Finding]

    @property
    def valid(self) -> bool:
        """Whether all checks passed."""
        return is_valid(self.findings)


@dataclass(frozen=True, slots=True)
class Grid:
    """All cells of an experiment and where their records are.

    `ceiling` is the setting under which decodes run alone, to tell what the machine allows; None
    where the experiment has no use for that. `paces` says how a workload is conducted, where it is
    not as the run's options say.
    """

    folder: Path
    settings: Sequence[Setting]
    repeats: int
    workloads: Mapping[str, Workload]
    ceiling: Setting | None = None
    paces: Mapping[str, ConductOptions] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """In the order in which they are run."""
        order = [Cell(self.ceiling, CEILING, 0)] if self.ceiling is not None else []
        for repeat in range(self.repeats):
            turn = repeat % len(self.settings)
            rotated = [*self.settings[turn:], *self.settings[:turn]]
            order += [Cell(setting, MAIN, repeat) for setting in rotated]
        return order

    def path(self, cell: Cell) -> Path:
        """Where a cell's records are."""
        return self.folder / f"{cell.slug}.jsonl"

    def prepare(self, about: Mapping[str, object]) -> None:
        """Make the folder, or find in it the same experiment, to go on with.

        The workloads that were drawn when it began are used again, calibration included.

        Raises:
            ConfigError: the folder holds another experiment.
            RecordError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise RecordError(
                f"cannot make {self.folder}: {e.strerror}", hint="choose another"
            ) from e
        plan = self.folder / "plan.json"
        wanted = {**about, "workloads": {k: _digest(w) for k, w in self.workloads.items()}}
        if plan.exists():
            found = orjson.loads(plan.read_bytes())
            if found != orjson.loads(orjson.dumps(wanted)):
                raise ConfigError(
                    f"{self.folder} holds another experiment",
                    hint="choose another --result-dir, or repeat the first command to go on",
                )
            for name, workload in self.workloads.items():
                saved = self.folder / f"{name}.workload.jsonl"
                if saved.exists():
                    workload.header.update(load_workload(saved).header)
            return
        plan.write_bytes(orjson.dumps(wanted, option=orjson.OPT_INDENT_2))

    async def run(
        self,
        launch: Launcher,
        options: RunOptions,
        measuring: MeasureOptions,
        say: Callable[[str], None],
    ) -> list[Result]:
        """Run what is not there yet, and read back the rest.

        Raises:
            TargetError: a server does not start.
        """
        results: list[Result] = []
        cells = self.cells()
        for number, cell in enumerate(cells, start=1):
            label = f"[{number}/{len(cells)}] {_label(cell)}"
            records = self._finished(cell)
            if records is None:
                say(f"{label}: running")
                records = await self._run_one(cell, launch, options)
            else:
                say(f"{label}: done before")
            results.append(result_of(cell, records, measuring))
            if records.mark("interrupted"):
                break
        return results

    async def _run_one(self, cell: Cell, launch: Launcher, options: RunOptions) -> Records:
        workload = self.workloads[cell.workload]
        pace = self.paces.get(cell.workload, options.conduct)
        options = replace(options, conduct=pace)
        async with launch(cell.setting, self.folder / f"{cell.slug}.log") as session:
            outcome = await session.run(workload, self.path(cell), options)
        workload.save(self.folder / f"{cell.workload}.workload.jsonl")
        return outcome.records

    def _finished(self, cell: Cell) -> Records | None:
        """The records of a cell that was run to its end before."""
        if not self.path(cell).exists():
            return None
        try:
            records = read_records(self.path(cell))
        except RecordError:
            return None
        complete = records.mark("end") and not records.mark("interrupted")
        return records if complete else None


def result_of(cell: Cell, records: Records, measuring: MeasureOptions) -> Result:
    """The figures of a cell's records."""
    rate = records.header.get("request_rate")
    return Result(cell, records, measure(records, measuring), judge(records, asked_rate=rate))


def _label(cell: Cell) -> str:
    if cell.workload == CEILING:
        return "decodes alone, for the ceiling"
    return f"{cell.setting.name}, repeat {cell.repeat + 1}"


def _digest(workload: Workload) -> str:
    """Stands for a workload: two that send the same have the same."""
    data = orjson.dumps(workload.requests, tuple)
    return hashlib.sha256(data).hexdigest()[:16]
