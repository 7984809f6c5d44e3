"""The six experiments: which settings, which workload, and what the records then say.

A shows the stall, B its cure, C sweeps the budget, D asks for the throughput bonus, E looks at
graphs, F at equality. In: results of a grid. Out: figures; nothing is formatted here.
"""

from __future__ import annotations

import math
import shutil
import statistics
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.paired import interval
from evenflow.bench.sweep.grid import CEILING, MAIN, Result
from evenflow.bench.sweep.recipes import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.bench.measure import Metrics

OFF = Setting(None)
GPU_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
CPU_BUDGETS = (64, 128, 256, 512, 1024)
# a budget is not the sweet spot when it costs more than this of the best throughput or of the
# best TTFT: lower gaps are then bought too dearly
THROUGHPUT_SLACK = 0.05
TTFT_SLACK = 0.35


class Scale(NamedTuple):
    """Sizes that suit a kind of machine."""

    budgets: tuple[int, ...]
    default_budget: int
    streams: int
    stream_prompt: str
    stream_output: int
    inject: str
    mix: str
    concurrency: int
    requests: int


GPU = Scale(
    GPU_BUDGETS,
    2048,
    20,
    "500",
    4096,
    "24000/16@2s",
    "short:500/128@0.9,long:24000/64@0.1",
    40,
    200,
)
CPU = Scale(
    CPU_BUDGETS, 256, 8, "64", 2048, "4000/8@2s", "short:100/64@0.9,long:3000/32@0.1", 8, 60
)


def scale_of_machine() -> Scale:
    """A GPU's sizes where there is one that NVIDIA's tools know, else a CPU's."""
    return GPU if shutil.which("nvidia-smi") else CPU


class Figure(NamedTuple):
    """A column of the table: what it is, its unit, and whether less is better."""

    title: str
    unit: str
    of: Callable[[Metrics], float | None]
    less_is_better: bool = True


def _during(percent: float) -> Callable[[Metrics], float | None]:
    def find(metrics: Metrics) -> float | None:
        attack = metrics.attack
        return attack.during.value(percent) if attack and attack.during else None

    return find


def _worst(metrics: Metrics) -> float | None:
    gaps = metrics.latencies["itl_ms"]
    return gaps.maximum if gaps else None


def _long_ttft(metrics: Metrics) -> float | None:
    attack = metrics.attack
    return attack.ttft_ms.mean if attack and attack.ttft_ms else None


TABLE = (
    Figure("p50 ITL", "ms", lambda m: m.latency("itl_ms", 50.0)),
    Figure("p95 ITL", "ms", lambda m: m.latency("itl_ms", 95.0)),
    Figure("p99 ITL", "ms", lambda m: m.latency("itl_ms", 99.0)),
    Figure("worst gap", "ms", _worst),
    Figure("p95 TTFT", "ms", lambda m: m.latency("ttft_ms", 95.0)),
    Figure("output", "tok/s", lambda m: m.output_throughput, less_is_better=False),
)
ATTACK_TABLE = (
    Figure("p50 in prefill", "ms", _during(50.0)),
    Figure("p99 in prefill", "ms", _during(99.0)),
    Figure("worst gap", "ms", _worst),
    Figure("p99 ITL", "ms", lambda m: m.latency("itl_ms", 99.0)),
    Figure("long TTFT", "ms", _long_ttft),
    Figure("output", "tok/s", lambda m: m.output_throughput, less_is_better=False),
)


class Spread(NamedTuple):
    """The median over repeats, and the smallest and largest."""

    median: float
    low: float
    high: float


class Row(NamedTuple):
    """One setting: a figure for each column, None where there is none."""

    setting: Setting
    runs: int
    invalid: int
    figures: list[Spread | None]


def rows_of(results: Sequence[Result], columns: Sequence[Figure]) -> list[Row]:
    """One row per setting, in the order of the settings."""
    main = [r for r in results if r.cell.workload == MAIN]
    settings = sorted({r.cell.setting for r in main}, key=lambda s: -(s.budget or math.inf))
    rows = []
    for setting in settings:
        mine = [r for r in main if r.cell.setting == setting]
        figures = [spread_of([column.of(r.metrics) for r in mine]) for column in columns]
        rows.append(Row(setting, len(mine), sum(not r.valid for r in mine), figures))
    return rows


def spread_of(values: Sequence[float | None]) -> Spread | None:
    """Over the repeats that have a value."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return Spread(statistics.median(known), min(known), max(known))


class Ceiling(NamedTuple):
    """What decodes alone reach: no gap can be shorter and no throughput higher."""

    itl_ms: float | None
    output_throughput: float


def ceiling_of(results: Sequence[Result]) -> Ceiling | None:
    """From the run of decodes alone, if there was one."""
    alone = next((r for r in results if r.cell.workload == CEILING), None)
    if alone is None:
        return None
    return Ceiling(alone.metrics.latency("itl_ms", 50.0), alone.metrics.output_throughput)


def sweet_spot(rows: Sequence[Row]) -> Setting | None:
    """The budget with the lowest p99 ITL among those that cost little of the rest.

    Little is: at least 95 % of the best throughput, and at most 1.35 times the lowest p95 TTFT, of
    the settings with chunking on. Where no budget keeps both, the throughput alone decides. `rows`
    are those of `TABLE`.
    """
    chunked = [r for r in rows if r.setting.budget is not None]
    p99, ttft, output = 2, 4, 5
    known = [(r, r.figures[p99], r.figures[ttft], r.figures[output]) for r in chunked]
    full = [(r, a.median, b.median, c.median) for r, a, b, c in known if a and b and c]
    if not full:
        return None
    fastest = max(row[3] for row in full)
    soonest = min(row[2] for row in full)
    quick = [row for row in full if row[3] >= (1 - THROUGHPUT_SLACK) * fastest]
    both = [row for row in quick if row[2] <= (1 + TTFT_SLACK) * soonest]
    return min(both or quick, key=lambda row: row[1])[0].setting


class Pair(NamedTuple):
    """How much a figure changes from one setting to another: the ratio and its interval."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int


def paired_ratio(
    results: Sequence[Result],
    base: Setting,
    other: Setting,
    of: Callable[[Metrics], float | None],
) -> Pair | None:
    """`other` / `base`, paired by repeat; the interval is Student's, of the logarithms."""
    by = {
        (r.cell.setting, r.cell.repeat): of(r.metrics) for r in results if r.cell.workload == MAIN
    }
    ratios = []
    for (setting, repeat), value in by.items():
        against = by.get((other, repeat))
        if setting == base and value and against:
            ratios.append(math.log(against / value))
    if not ratios:
        return None
    mean, low, high = interval(ratios)
    return Pair(
        math.exp(mean),
        None if low is None else math.exp(low),
        None if high is None else math.exp(high),
        len(ratios),
    )
