"""The experiments' results on a terminal. Formats figures and computes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from evenflow.bench.show import milliseconds, plot_gaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from evenflow.bench.sweep.equal import Answers, Difference
    from evenflow.bench.sweep.experiments import Ceiling, Figure, Pair, Row, Spread
    from evenflow.bench.sweep.graphs import GraphUse
    from evenflow.bench.sweep.grid import Result
    from evenflow.bench.sweep.recipes import Setting

SWEET_RULE = (
    "sweet spot: the lowest p99 ITL among budgets with at least 95 % of the best throughput and at "
    "most 1.35 x the lowest p95 TTFT"
)


def table(
    title: str,
    rows: Sequence[Row],
    columns: Sequence[Figure],
    *,
    sweet: Setting | None = None,
    ceiling: Ceiling | None = None,
) -> RenderableType:
    """One row per setting; below each figure the smallest and largest of its repeats."""
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    grid.add_column("configuration", no_wrap=True)
    for column in columns:
        grid.add_column(f"{column.title}\n{column.unit}", justify="right")
    for row in rows:
        name = Text(row.setting.name, style="bold green" if row.setting == sweet else "")
        if row.setting == sweet:
            name.append("  <- sweet spot")
        if row.invalid:
            name.append(f"\n{row.invalid} of {row.runs} INVALID", style="red")
        grid.add_row(name, *(_cell(found) for found in row.figures))
    parts: list[RenderableType] = [grid]
    if ceiling is not None:
        best = max((r.figures[-1].median for r in rows if r.figures[-1]), default=0.0)
        share = best / ceiling.output_throughput * 100 if ceiling.output_throughput else 0.0
        parts.append(
            Text(
                f"ceiling: decodes alone reach {ceiling.output_throughput:,.1f} tok/s with a p50 "
                f"ITL of {milliseconds(ceiling.itl_ms)} ms; the best row is at {share:.0f} % of it "
                "while it prefills as well",
                style="dim",
            )
        )
    if sweet is not None:
        parts.append(Text(SWEET_RULE, style="dim"))
    return Group(*parts)


def _cell(found: Spread | None) -> Text:
    if found is None:
        return Text("-")
    text = Text(milliseconds(found.median))
    if found.high > found.low:
        text.append(f"\n{milliseconds(found.low)}-{milliseconds(found.high)}", style="dim")
    return text


def plots(results: Sequence[Result], *, width: int) -> RenderableType:
    """Gaps over time of the first run of each setting."""
    shown = [r for r in results if r.cell.repeat == 0 and r.records.requests]
    return Group(
        *(
            part
            for result in shown
            for part in (
                Text(result.cell.setting.name, style="bold"),
                plot_gaps(result.records, width=width),
            )
        )
    )


def pair_line(title: str, pair: Pair | None, *, less_is_better: bool) -> Text:
    """A ratio in words, with its interval and what follows from it."""
    if pair is None:
        return Text(f"{title}: no pair of runs to compare")
    change = (pair.ratio - 1) * 100
    text = Text(f"{title}: {change:+.1f} %", style="bold")
    if pair.low is None or pair.high is None:
        text.append("  (one pair: no interval; use --repeats)", style="dim")
        return text
    text.append(
        f"  (95 % interval {(pair.low - 1) * 100:+.1f} to {(pair.high - 1) * 100:+.1f} %, "
        f"{pair.pairs} pairs)",
        style="dim",
    )
    if pair.low <= 1 <= pair.high:
        text.append("  no difference can be told", style="dim")
    else:
        text.append("  better" if (pair.ratio < 1) == less_is_better else "  worse")
    return text


def graph_table(uses: Sequence[tuple[str, GraphUse | None]]) -> RenderableType:
    """Steps with and without a captured graph, by kind of step."""
    parts: list[RenderableType] = []
    for name, use in uses:
        if use is None:
            parts.append(Text(f"{name}: not applicable: the log says nothing of graphs"))
            continue
        if not use.applicable:
            why = "; ".join(f"{reason} ({n:,} steps)" for reason, n in use.reasons.items())
            parts.append(
                Text(
                    f"{name}: not applicable: no step ran a captured graph: {why or 'no reason is given'}"
                )
            )
            continue
        grid = Table(title=f"{name} (from {use.source})", title_justify="left", box=box.SIMPLE_HEAD)
        for head in ("step", "with a graph", "without", "share with"):
            grid.add_column(head, justify="left" if head == "step" else "right")
        for kind, (used, unused) in use.kinds.items():
            share = used / max(1, used + unused) * 100
            grid.add_row(kind, f"{used:,}", f"{unused:,}", f"{share:.0f} %")
        parts.append(grid)
    return Group(*parts)


def equality_lines(answers: Sequence[Answers], found: Sequence[Difference]) -> RenderableType:
    """Whether texts were equal, and where they were not."""
    lines = []
    for other in answers[1:]:
        mine = [d for d in found if d.setting == other.setting]
        failed = answers[0].errors.keys() | other.errors.keys()
        compared = len(other.texts.keys() - failed)
        equal = compared - len(mine)
        lines.append(
            Text(
                f"{other.setting}: {equal} of {compared} answers equal to {answers[0].setting}'s",
                style="green" if compared and not mine else "red",
            )
        )
        lines += [
            Text(
                f"  prompt of {d.prompt_tokens:,}: from character {d.at_char} on "
                f"{d.got!r} instead of {d.expected!r}"
            )
            for d in mine
        ]
    for one in answers:
        lines += [
            Text(f"{one.setting}: prompt of {n:,} failed: {error}", style="yellow")
            for n, error in one.errors.items()
        ]
    return Group(*lines)
