"""Runs a sweep that was planned, and prints what it found."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from evenflow.bench.sweep.experiments import Pair, Row
    from evenflow.bench.sweep.graphs import GraphUse
    from evenflow.bench.sweep.grid import Grid, Result
    from evenflow.bench.sweep.launch import Launcher
    from evenflow.bench.sweep.recipes import Setting
    from evenflow.cli.bench_flags import Asked
    from evenflow.trace import RequestRecord, StepRecord


class Plan(NamedTuple):
    """A sweep as it will be run; `about` is what shapes its runs, as it was asked for."""

    experiment: str
    launch: Launcher
    grid: Grid
    asked: Asked
    about: dict[str, str]


@dataclass(slots=True)
class StepCollector:
    """An observer of an engine in this process that keeps its step records."""

    steps: list[StepRecord] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Keep it."""
        self.steps.append(record)

    def request(self, record: RequestRecord) -> None:
        """Requests are of no interest here."""


def say(text: str) -> None:
    """A word to the person, on standard error."""
    print(text, file=sys.stderr)


def show(what: RenderableType) -> None:
    """The result, on standard output."""
    from evenflow.bench.show import wide_console  # noqa: PLC0415 - keeps --help quick

    wide_console().print(what)


def run_grid(plan: Plan) -> list[Result]:
    """Run all cells; stops early when somebody interrupts."""
    about = {
        "experiment": plan.experiment,
        "asked": plan.about,
        "settings": [s.slug for s in plan.grid.settings],
        "repeats": plan.grid.repeats,
    }
    plan.grid.prepare(about)
    results = asyncio.run(plan.grid.run(plan.launch, plan.asked.run, plan.asked.measure, say))
    for result in results:
        for finding in result.findings:
            if not finding.ok:
                say(f"INVALID {result.cell.slug}: {finding.name}: {finding.fact}")
    return results


def traffic(plan: Plan, *, json: bool) -> bool:
    """Experiments A to D; returns whether they were interrupted."""
    from evenflow.bench.sweep import experiments as ex  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.sweep import view  # noqa: PLC0415 - as above

    results = run_grid(plan)
    attack = plan.experiment in {"stall", "fix"}
    columns = ex.ATTACK_TABLE if attack else ex.TABLE
    rows = ex.rows_of(results, columns)
    sweet = ex.sweet_spot(rows) if plan.experiment == "budget" else None
    pairs = _pairs(plan, results)
    if json:
        _print_json(plan, rows, columns, sweet, pairs)
    else:
        from rich.console import Group  # noqa: PLC0415 - keeps --help quick

        from evenflow.bench.show import wide_console  # noqa: PLC0415 - as above

        ceiling = ex.ceiling_of(results)
        runs = plan.grid.repeats
        title = f"experiment {plan.experiment}, {runs} run{'s' if runs > 1 else ''} of each"
        parts: list[RenderableType] = [
            view.table(title, rows, columns, sweet=sweet, ceiling=ceiling)
        ]
        if attack:
            parts.append(view.plots(results, width=wide_console().width))
        parts += [view.pair_line(name, pair, less_is_better=less) for name, pair, less in pairs]
        show(Group(*parts))
    return any(r.records.mark("interrupted") for r in results)


def _pairs(plan: Plan, results: Sequence[Result]) -> list[tuple[str, Pair | None, bool]]:
    """Chunking on against off, where the experiment has both."""
    from evenflow.bench.sweep import experiments as ex  # noqa: PLC0415 - keeps --help quick

    on = [s for s in plan.grid.settings if s.budget is not None]
    if plan.experiment not in {"fix", "bonus"} or ex.OFF not in plan.grid.settings or not on:
        return []
    figures = {f.title: f for f in (*ex.ATTACK_TABLE, *ex.TABLE)}
    wanted = (
        ("worst gap", "p99 in prefill", "long TTFT")
        if plan.experiment == "fix"
        else ("output", "p99 ITL", "p95 TTFT")
    )
    return [
        (
            f"{title}, {setting.name} against chunking off",
            ex.paired_ratio(results, ex.OFF, setting, figures[title].of),
            figures[title].less_is_better,
        )
        for setting in on
        for title in wanted
    ]


def _print_json(
    plan: Plan,
    rows: Sequence[Row],
    columns: Sequence[Any],
    sweet: Setting | None,
    pairs: Sequence[tuple[str, Pair | None, bool]],
) -> None:
    import orjson  # noqa: PLC0415 - keeps --help quick

    value = {
        "experiment": plan.experiment,
        "rows": [
            {
                "setting": row.setting.slug,
                "runs": row.runs,
                "invalid": row.invalid,
                **{
                    f"{column.title} ({column.unit})": None if found is None else found._asdict()
                    for column, found in zip(columns, row.figures, strict=True)
                },
            }
            for row in rows
        ],
        "sweet_spot": None if sweet is None else sweet.slug,
        "pairs": {name: None if p is None else p._asdict() for name, p, _ in pairs},
    }
    sys.stdout.write(orjson.dumps(value).decode() + "\n")


def graphs(plan: Plan, *, json: bool) -> None:
    """Experiment E."""
    from evenflow.bench.sweep import view  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.sweep.graphs import from_log, from_steps  # noqa: PLC0415 - as above
    from evenflow.bench.sweep.launch import LocalLaunch, ServerLaunch  # noqa: PLC0415 - as above
    from evenflow.trace import read_trace  # noqa: PLC0415 - as above

    uses: list[tuple[str, GraphUse | None]] = []
    for setting in plan.grid.settings:
        collector = StepCollector()
        launch = plan.launch
        if isinstance(launch, LocalLaunch):
            launch = replace(launch, engine={**launch.engine, "observers": (collector,)})
        elif isinstance(launch, ServerLaunch) and launch.recipe.name == "vllm":
            launch = replace(launch, more=f"{launch.more} --cudagraph-metrics")
        one = replace(
            plan.grid, settings=[setting], repeats=1, folder=plan.grid.folder / setting.slug
        )
        results = run_grid(plan._replace(launch=launch, grid=one))
        if any(r.records.mark("interrupted") for r in results):
            raise KeyboardInterrupt
        kept = one.folder / f"{results[0].cell.slug}.steps.jsonl"
        if collector.steps or kept.exists():  # a run that was done before has left its steps
            uses.append((setting.name, from_steps(collector.steps or read_trace(kept).steps)))
            continue
        log = one.folder / f"{results[0].cell.slug}.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        uses.append((setting.name, from_log(text)))
    if json:
        rows = [
            {"setting": name, **(use._asdict() if use else {}), "applicable": _applies(use)}
            for name, use in uses
        ]
        _dump({"experiment": plan.experiment, "rows": rows})
        return
    show(view.graph_table(uses))


def _applies(use: GraphUse | None) -> bool:
    return use is not None and use.applicable


def _dump(value: dict[str, Any]) -> None:
    import orjson  # noqa: PLC0415 - keeps --help quick

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode() + "\n")


def equality(plan: Plan, *, json: bool) -> bool:
    """Experiment F; returns whether all answers were equal."""
    from evenflow.bench.sweep import view  # noqa: PLC0415 - keeps --help quick
    from evenflow.bench.sweep.equal import (  # noqa: PLC0415 - as above
        ask_all,
        differences,
        prompt_lengths,
    )

    budgets = [s.budget for s in plan.grid.settings if s.budget is not None]
    longest = plan.asked.workload.max_len or 2 * max(budgets, default=512) + 1
    lengths = prompt_lengths(budgets, longest)
    plan.grid.folder.mkdir(parents=True, exist_ok=True)

    async def ask() -> list[Any]:
        answers = []
        for number, setting in enumerate(plan.grid.settings, start=1):
            say(f"[{number}/{len(plan.grid.settings)}] {setting.name}: {len(lengths)} prompts")
            async with plan.launch(setting, plan.grid.folder / f"{setting.slug}.log") as session:
                answers.append(
                    await ask_all(session, setting.name, lengths, plan.asked.workload.seed)
                )
        return answers

    answers = asyncio.run(ask())
    found = differences(answers)
    if json:
        rows = [
            {"setting": one.setting, "prompts": len(one.texts), "failed": one.errors}
            for one in answers
        ]
        differing = [d._asdict() for d in found]
        _dump({"experiment": plan.experiment, "rows": rows, "differences": differing})
    else:
        show(view.equality_lines(answers, found))
    return not found
