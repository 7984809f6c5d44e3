"""The tables of a report, as HTML. Formats what was computed and computes nothing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from evenflow.bench.blame.verdict import WORDS
from evenflow.bench.measure import LATENCIES
from evenflow.bench.show import milliseconds, with_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.model import Blame
    from evenflow.bench.measure import Metrics
    from evenflow.bench.quantiles import Estimate

TOP = 20


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first `left` columns are words; the others are figures."""

    def cells(row: Sequence[str], tag: str) -> str:
        parts = (
            f'<{tag} class="{"w" if i < left else "n"}">{text}</{tag}>'
            for i, text in enumerate(row)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return (
        f'<div class="scroll"><table><thead>{cells(list(heads), "th")}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figures(metrics: Metrics) -> str:
    """Every latency figure with the intervals of its percentiles."""
    percents = metrics.options.percentiles
    heads = ["", "n", "mean", *(f"p{p:g}" for p in percents), "worst"]
    rows = []
    for name, about in LATENCIES.items():
        found = metrics.latencies[name]
        if found is None:
            continue
        title = f"{escape(about.title)}<small>{escape(about.meaning)}</small>"
        cells = [_estimate(found.percentiles[p], found.maximum) for p in percents]
        mean, worst = milliseconds(found.mean), milliseconds(found.maximum)
        rows.append([title, f"{found.count:,}", mean, *cells, worst])
    return table(heads, rows)


def _estimate(found: Estimate, maximum: float) -> str:
    if found.beyond:
        return f"{milliseconds(maximum)}<small>the maximum</small>"
    value = milliseconds(found.value)
    if found.low is None or found.high is None:
        return value
    return f"{value}<small>{milliseconds(found.low)} - {milliseconds(found.high)}</small>"


def classes(metrics: Metrics) -> str:
    """The figures by class of the mixture; empty for a run of one class."""
    if not metrics.classes:
        return ""
    heads = ["class", "requests", "failed", "output tok/s", "TTFT p50", "TTFT p95", "ITL p50"]
    heads += ["ITL p95", "ITL p99", "worst ITL", "TPOT p50"]
    wanted = [("ttft_ms", 50.0), ("ttft_ms", 95.0), ("itl_ms", 50.0), ("itl_ms", 95.0)]
    wanted.append(("itl_ms", 99.0))
    rows = []
    for name, one in metrics.classes.items():
        gaps = one.latencies["itl_ms"]
        rows.append(
            [
                escape(name) or "no class",
                f"{one.counts.requests:,}",
                f"{one.counts.failed:,}",
                f"{one.output_throughput:,.1f}",
                *(milliseconds(one.latency(figure, p)) for figure, p in wanted),
                milliseconds(gaps.maximum if gaps else None),
                milliseconds(one.latency("tpot_ms", 50.0)),
            ]
        )
    return table(heads, rows)


def offenders(blame: Blame) -> str:
    """Who made others wait."""
    heads = ["request", "class", "prompt tokens", "sent at", "stalls", "worst gap"]
    heads += ["ms x streams", "share of stalled time", "sure"]
    rows = [
        [
            escape(o.request_id),
            escape(o.class_name),
            "-" if o.prompt_tokens is None else f"{o.prompt_tokens:,}",
            f"{o.send_s:.2f} s",
            f"{o.stalls:,}",
            with_unit(o.worst_ms),
            f"{o.stream_ms:,.0f}",
            f"{o.share:.1%}",
            f"{o.confidence:.0%}",
        ]
        for o in blame.offenders[:TOP]
    ]
    return table(heads, rows, left=2)


def causes(blame: Blame) -> str:
    """Stalled time by cause."""
    rows = []
    for cause, ms in blame.causes.items():
        mine = [e for e in blame.episodes if e.cause == cause]
        rows.append(
            [
                f'<i class="dot" style="background:var(--{cause})"></i>{WORDS[cause]}',
                f"{len(mine):,}",
                f"{sum(len(e.stalls) for e in mine):,}",
                f"{ms:,.0f}",
                f"{ms / blame.stalled_ms:.1%}",
            ]
        )
    return table(["cause", "moments", "stalls", "ms x streams", "share"], rows)


def others(blame: Blame) -> str:
    """The costliest stalls that no prefill explains, and why they look like what they do."""
    worst = sorted((e for e in blame.episodes if e.cause != "prefill"), key=lambda e: -e.stream_ms)
    rows = [
        [
            WORDS[e.cause],
            escape(e.evidence),
            f"{e.start_s:.2f} s",
            with_unit((e.end_s - e.start_s) * 1e3),
            f"{len(e.stalls)} of {e.num_decoding}",
            f"{e.confidence:.0%}",
        ]
        for e in sorted(worst[:TOP], key=lambda e: e.start_s)
    ]
    return table(["looks like", "why", "at", "lasted", "streams", "sure"], rows, left=2)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values, side by side."""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
        + "</dl>"
    )
