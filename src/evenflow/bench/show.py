"""A run on a terminal: verdict, tables, plot. Formats what was computed and computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from evenflow.bench.gaps import gap_table
from evenflow.bench.measure import ATTACKER, LATENCIES
from evenflow.bench.plot import Band, scatter
from evenflow.bench.validity import is_valid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from evenflow.bench.measure import Attack, Metrics
    from evenflow.bench.quantiles import Distribution, Estimate
    from evenflow.bench.records import Records
    from evenflow.bench.validity import Finding

PLOT_HEIGHT = 12
MAX_POINTS = 20_000
PIPE_WIDTH = 120
WIDE = 110  # columns that the latency table takes with the meaning of each figure


def show_run(
    records: Records, metrics: Metrics, findings: Sequence[Finding], *, width: int
) -> RenderableType:
    """Everything about a run, top to bottom."""
    parts: list[RenderableType] = [_facts_table(metrics)]
    if any(metrics.latencies.values()):
        parts.insert(0, _latency_table(metrics, width=width))
    if metrics.attack is not None:
        parts.append(_attack_table(metrics.attack))
    if metrics.classes:
        parts.append(_class_table(metrics))
    parts.append(plot_gaps(records, width=width))
    parts.append(verdict(findings))
    parts += [Text(f"note: {problem}", style="yellow") for problem in records.problems]
    return Group(*parts)


def wide_console() -> Console:
    """Standard output; where it is no terminal, wide enough for the tables."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def verdict(findings: Sequence[Finding]) -> Text:
    """VALID, or INVALID and why."""
    text = Text()
    if is_valid(findings):
        text.append("VALID", style="bold green")
        text.append("  " + "; ".join(f"{f.name}: {f.fact}" for f in findings), style="dim")
        return text
    text.append("INVALID", style="bold red")
    bad = "; ".join(f"{f.name}: {f.fact}" for f in findings if not f.ok)
    text.append(f"  {bad}", style="red")
    return text


def milliseconds(value: float | None) -> str:
    """A length of time with three significant digits or so."""
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.1f} s"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def with_unit(value: float) -> str:
    """The same, with its unit."""
    text = milliseconds(value)
    return text if text.endswith("s") else f"{text} ms"


def estimate(found: Estimate, maximum: float) -> Text:
    """A figure with its interval below; in place of one beyond the data stands the maximum."""
    if found.beyond:
        text = Text(milliseconds(maximum))
        text.append("\nmax seen", style="dim")
        return text
    text = Text(milliseconds(found.value))
    if found.low is not None and found.high is not None:
        text.append(f"\n{milliseconds(found.low)}-{milliseconds(found.high)}", style="dim")
    return text


def _latency_table(metrics: Metrics, *, width: int) -> Table:
    percents = metrics.options.percentiles
    grid = Table(
        title="latency, ms (below each: its 95 % interval)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    grid.add_column("", no_wrap=True)
    for name in ("n", "mean", *(f"p{p:g}" for p in percents)):
        grid.add_column(name, justify="right")
    for name, about in LATENCIES.items():
        found = metrics.latencies[name]
        if found is None:
            continue
        label = Text(about.title)
        if width >= WIDE:
            label.append(f"\n{about.meaning}", style="dim")
        grid.add_row(
            label,
            f"{found.count:,}",
            milliseconds(found.mean),
            *(estimate(found.percentiles[p], found.maximum) for p in percents),
        )
    return grid


def _facts_table(metrics: Metrics) -> Table:
    counts, messages = metrics.counts, metrics.messages
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows = [
        ("requests", f"{counts.completed:,} completed, {counts.failed:,} failed"),
        *((f"  {n:,} x", text) for text, n in counts.errors.items()),
        (
            "throughput",
            (
                f"{metrics.output_throughput:,.1f} output tokens/s, "
                f"{metrics.total_throughput:,.1f} tokens/s in all, "
                f"{metrics.request_throughput:.2f} requests/s"
            ),
        ),
        ("tokens", f"{counts.input_tokens:,} in, {counts.output_tokens:,} out"),
        (
            "messages",
            (
                f"{messages.messages:,}, of them {messages.multi_token:,} with several tokens "
                f"(up to {messages.most_tokens}), {messages.together:,} that came together with "
                f"the one before, {messages.empty:,} without output left out"
            ),
        ),
        ("token counts", _sources(messages.sources)),
        (
            f"stalls over {metrics.options.stall_factor:g} x the stream's median",
            _stalls(metrics.stalls_by_factor),
        ),
        (f"stalls over {metrics.options.stall_limit_ms:g} ms", _stalls(metrics.stalls_by_limit)),
    ]
    if metrics.goodput is not None:
        good = metrics.goodput
        limits = ", ".join(f"{name} <= {limit:g} ms" for name, limit in good.limits_ms.items())
        rows.append(
            (
                "goodput",
                f"{good.per_s:.2f} requests/s, {good.share * 100:.1f} % of all ({limits})",
            )
        )
    for label, text in rows:
        grid.add_row(Text(label, style="bold"), Text(text))
    return grid


def _sources(sources: dict[str, int]) -> str:
    words = {
        "usage": "the server counted every message",
        "message": "one per message, which the server's total confirms",
        "assumed": "one per message, which nothing confirms",
        "spread": "the server's total, spread over the messages",
    }
    return "; ".join(f"{words[name]} ({n:,} requests)" for name, n in sources.items()) or "-"


def _stalls(stalls: object) -> str:
    count, rate, time_ms, share, worst = (
        getattr(stalls, name) for name in ("count", "rate", "stalled_ms", "time_share", "worst_ms")
    )
    if not count:
        return "none"
    return (
        f"{count:,} ({rate * 100:.2f} % of gaps), {time_ms / 1e3:,.2f} s stood still in all "
        f"({share * 100:.1f} % of the time between tokens), the worst {with_unit(worst)}"
    )


def _attack_table(attack: Attack) -> Table:
    grid = Table(
        title=f"streams during the prefill of {attack.windows} long prompt"
        f"{'s' if attack.windows > 1 else ''} ({attack.seconds:.2f} s in all), ms",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("", "n", "p50", "p95", "p99", "worst"):
        grid.add_column(name, justify="right" if name else "left")
    rows = (
        ("ITL during a prefill", attack.during),
        ("ITL outside", attack.outside),
        ("TTFT of the long prompts", attack.ttft_ms),
    )
    for label, found in rows:
        grid.add_row(label, *_row(found, (50.0, 95.0, 99.0)))
    return grid


def _row(found: Distribution | None, percents: Sequence[float]) -> list[str]:
    if found is None:
        return ["0", *("-" for _ in percents), "-"]
    shown = [found.percentiles[p].value if p in found.percentiles else None for p in percents]
    return [f"{found.count:,}", *(milliseconds(v) for v in shown), milliseconds(found.maximum)]


def _class_table(metrics: Metrics) -> Table:
    grid = Table(title="by class, ms", title_justify="left", box=box.SIMPLE_HEAD)
    heads = (
        "class",
        "requests",
        "failed",
        "TTFT p50",
        "p95",
        "ITL p50",
        "p99",
        "worst",
        "TPOT p50",
    )
    for name in heads:
        grid.add_column(name, justify="left" if name == "class" else "right")
    for name, one in metrics.classes.items():
        gaps = one.latencies["itl_ms"]
        grid.add_row(
            name,
            f"{one.counts.requests:,}",
            f"{one.counts.failed:,}",
            *(milliseconds(_percent(one, "ttft_ms", p)) for p in (50.0, 95.0)),
            *(milliseconds(_percent(one, "itl_ms", p)) for p in (50.0, 99.0)),
            milliseconds(gaps.maximum if gaps else None),
            milliseconds(_percent(one, "tpot_ms", 50.0)),
        )
    return grid


def _percent(metrics: Metrics, name: str, percent: float) -> float | None:
    found = metrics.latencies[name]
    if found is None or percent not in found.percentiles:
        return None
    return found.value(percent)


def gap_points(records: Records, width: int) -> list[tuple[float, float]]:
    """Where to draw each gap: all along its length, so that a stall is a bar and not a dot.

    Of very many gaps the short ones are thinned out and the long ones kept.
    """
    gaps = gap_table(records.requests)
    if not gaps:
        return []
    column_s = max(1e-6, float(gaps.end_s.max() - gaps.start_s.min()) / max(1, 2 * width))
    every = max(1, len(gaps.start_s) // MAX_POINTS)
    points = []
    for index, (start, end) in enumerate(
        zip(gaps.start_s.tolist(), gaps.end_s.tolist(), strict=True)
    ):
        count = int((end - start) / column_s)
        if not count and index % every:
            continue
        height = (end - start) * 1e3
        points += [(end - i * column_s, height) for i in range(count + 1)]
    return points


def plot_gaps(records: Records, *, width: int) -> Text:
    """Every gap of every stream over time; below it the prefills of the long prompts."""
    points = gap_points(records, width)
    bands = [
        Band(r.send_s, r.first_token_s)
        for r in records.requests
        if r.class_name == ATTACKER and r.send_s is not None and r.first_token_s is not None
    ]
    lines = scatter(points, width=width, height=PLOT_HEIGHT, bands=bands)
    if not lines:
        return Text("")
    title = "gaps of all streams over time" + (
        "; the bars below: long prompts in prefill" if bands else ""
    )
    return Text("\n".join([title, *lines, ""]))
