"""How the demo looks on a terminal: live bars, a table, a plot. Computes nothing."""

from __future__ import annotations

import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from evenflow.bench.metrics import GapStats
    from evenflow.bench.stall import Progress, StallShape
    from evenflow.bench.stall_report import Point, StallSummary

PLOT_HEIGHT = 17
OFF, ON = "chunking off", "chunking on"


@contextmanager
def live(title: str, shape: StallShape) -> Iterator[Callable[[Progress], None]]:
    """Bars on a terminal; elsewhere one word at the start and nothing more."""
    if not sys.stderr.isatty():
        print(f"running with {title}", file=sys.stderr)
        yield lambda _: None
        return
    from rich import progress as bars  # noqa: PLC0415 - keeps --version and --help quick
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.completed:,}/{task.total:,} tokens"),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        streams = shown.add_task(
            f"{title}: {shape.num_streams} streams", total=shape.num_streams * shape.stream_tokens
        )
        long = shown.add_task("long prompt", total=shape.long_tokens, start=False)

        def watch(now: Progress) -> None:
            if now.landed:
                shown.start_task(long)
            shown.update(streams, completed=now.stream_tokens)
            shown.update(long, completed=now.long_tokens)

        yield watch


def table(off: StallSummary, on: StallSummary) -> Table:
    """The figures of both runs, side by side."""
    from rich.table import Table  # noqa: PLC0415 - keeps --version and --help quick

    grid = Table(title="gaps between a stream's tokens (ITL)", title_justify="left")
    grid.add_column("")
    for name in (OFF, ON, "off / on"):
        grid.add_column(name, justify="right")

    def gap_rows(label: str, left: GapStats, right: GapStats) -> None:
        for quantile in ("p50", "p95", "p99", "worst"):
            a, b = (getattr(stats, f"{quantile}_ms") for stats in (left, right))
            grid.add_row(f"{label} {quantile}", *_pair(a, b, "{:,.0f} ms"))
        grid.add_section()

    gap_rows("all", off.overall, on.overall)
    gap_rows("during the prefill", off.in_window, on.in_window)
    grid.add_row("TTFT of the long prompt", *_pair(off.ttft_s, on.ttft_s, "{:.2f} s"))
    rates = (off.output_tokens_per_s, on.output_tokens_per_s)
    grid.add_row("output tokens per second", *_pair(*rates, "{:.1f}"))
    grid.add_row("chunks of the long prompt", _chunks(off), _chunks(on), "")
    return grid


def _pair(off: float | None, on: float | None, form: str) -> tuple[str, str, str]:
    texts = ["-" if value is None else form.format(value) for value in (off, on)]
    ratio = f"{off / on:.2f}" if off is not None and on else "-"
    return texts[0], texts[1], ratio


def _chunks(run: StallSummary) -> str:
    lengths = run.chunk_lengths
    if len(lengths) == 1:
        return f"1 of {lengths[0]:,}"
    return f"{len(lengths)} of up to {max(lengths, default=0):,}"


def plot(off: StallSummary, on: StallSummary, *, width: int, colour: bool) -> str:
    """The pauses of all streams over time, logarithmic in their length.

    A pause is drawn for as long as it lasts, at the height of its length, so a stall is a long bar
    far up and an even stream a low line.
    """
    import plotext  # noqa: PLC0415 - keeps --version and --help quick

    first_s = min(point.at_s - point.gap_ms / 1e3 for run in (off, on) for point in run.points)
    last_s = max(point.at_s for run in (off, on) for point in run.points)
    column_s = (last_s - first_s) / width
    figure = plotext.figure.clear()  # the library's only figure; nothing of ours outlives this call
    plotext.terminal.limit(width=False, height=False)  # the width was chosen by the caller
    figure.plot_size(width, PLOT_HEIGHT)
    figure.theme("colorless")
    for run, symbol, paint in ((off, "x", "red"), (on, "o", "green")):
        drawn = [mark for point in run.points for mark in _marks(point, column_s)]
        xs, ys = zip(*drawn, strict=True)
        figure.draw(figure.signal(list(xs), list(ys), marker=plotext.marker(symbol, paint)))
    heights = [math.log10(p.gap_ms) for run in (off, on) for p in run.points if p.gap_ms > 0]
    decades = range(math.floor(min(heights)), math.ceil(max(heights)) + 1)
    ruler = figure.ruler("y")
    ruler.lim(decades[0], decades[-1])
    ruler.ticks(list(decades), [_length(10.0**decade) for decade in decades])
    seconds = _round_steps(first_s, last_s)
    figure.ruler("x").ticks(seconds, [f"{second:g}" for second in seconds])
    figure.title(f"gaps of all streams: x {OFF}, o {ON}")
    figure.label("seconds since the long prompt landed", "x")
    lines = str(figure.build().string(colorless=not colour)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _marks(point: Point, column_s: float) -> list[tuple[float, float]]:
    """Where to draw a gap: at its end, and at every column that it stretches over."""
    if point.gap_ms <= 0:
        return []
    height = math.log10(point.gap_ms)
    count = int(point.gap_ms / 1e3 / column_s) + 1
    return [(point.at_s - i * column_s, height) for i in range(count)]


def _round_steps(first: float, last: float) -> list[float]:
    """Round numbers from `first` to `last`, zero among them, at most a dozen."""
    rough = max(last - first, 1e-9) / 10
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    return [n * step for n in range(math.ceil(first / step), math.floor(last / step) + 1)]


def _length(ms: float) -> str:
    return f"{ms / 1e3:g} s" if ms >= 1e3 else f"{ms:g} ms"
