"""The report: one HTML file that needs nothing from anywhere, and pictures for a README.

In: records, what was computed of them, and the command that repeats it. Out: text and bytes. It
holds no script and names no host; hints show by the browser's own means.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.blame.show import DEPTHS, budget_words
from evenflow.bench.blame.verdict import WORDS
from evenflow.bench.report import tables
from evenflow.bench.report.composition import draw_composition
from evenflow.bench.report.svg import PALETTE
from evenflow.bench.report.tail import draw_tail
from evenflow.bench.report.timeline import draw_timeline
from evenflow.bench.show import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.evidence import KnownStep
    from evenflow.bench.blame.model import Blame
    from evenflow.bench.measure import Metrics
    from evenflow.bench.records import Records
    from evenflow.bench.report.svg import Drawing
    from evenflow.bench.validity import Finding

STYLE = """
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:23px;margin:0 0 2px}h2{font-size:17px;margin:38px 0 8px}
p{margin:6px 0}small,.soft{color:var(--soft)}small{display:block;font-size:11.5px;line-height:1.25}
.tag{display:inline-block;padding:1px 9px;border-radius:9px;font-weight:600;font-size:13px;
border:1px solid currentColor}.good{color:#1d8348}.bad{color:var(--prefill)}.odd{color:#b7791f}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(128px,1fr));gap:10px;margin:18px 0}
.card{border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.card b{display:block;font-size:21px;line-height:1.3}
svg{max-width:100%;height:auto;display:block;margin:6px 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin:8px 0;min-width:50%}
th{font-weight:600;color:var(--soft);border-bottom:1px solid var(--soft);vertical-align:bottom}
td{border-bottom:1px solid var(--line);vertical-align:top}
th,td{padding:4px 12px 4px 0;text-align:left}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.dot{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;font-size:13px;margin:8px 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
pre{background:var(--line);padding:10px 12px;border-radius:6px;overflow-x:auto;font-size:13px}
"""


class Contents(NamedTuple):
    """What a report shows."""

    records: Records
    metrics: Metrics
    blame: Blame
    findings: Sequence[Finding] = ()
    steps: Sequence[KnownStep] = ()
    command: str = ""
    version: str = ""


def pictures(contents: Contents) -> dict[str, Drawing]:
    """The drawings by name, as far as there is something to draw."""
    found = {
        "timeline": draw_timeline(contents.records, contents.blame),
        "tail": draw_tail(contents.records, contents.blame),
        "steps": draw_composition(contents.steps),
    }
    return {name: drawing for name, drawing in found.items() if drawing is not None}


def page(contents: Contents) -> str:
    """The whole file."""
    drawn = {name: drawing.svg() for name, drawing in pictures(contents).items()}
    blame, metrics = contents.blame, contents.metrics
    title = str(contents.records.header.get("model") or "a recorded run")
    parts = [
        f"<h1>Streams of {escape(title)}</h1>",
        _subtitle(contents),
        f'<p><span class="tag {_mood(blame)}">{blame.verdict}</span> {escape(blame.summary)}</p>',
        _validity(contents.findings),
        _cards(metrics, blame),
        _section("Gaps over time", drawn.get("timeline", "<p>No stream has a gap.</p>")),
    ]
    if blame.offenders:
        parts.append(_section("Offenders", tables.offenders(blame)))
    if blame.budget is not None:
        words = budget_words(blame)
        parts.append(f"<p>{escape(words[:1].upper() + words[1:])}</p>")
    if blame.episodes:
        parts.append(_section("Stalled time by cause", tables.causes(blame)))
    if any(e.cause != "prefill" for e in blame.episodes):
        parts.append(_section("Stalls that no prefill explains", tables.others(blame)))
    if "tail" in drawn:
        parts.append(_section("The tail: share of gaps at least so long", drawn["tail"]))
    parts.append(_section("Figures", f"{tables.figures(metrics)}{_note_intervals()}"))
    if metrics.classes:
        parts.append(_section("By class", tables.classes(metrics)))
    parts.append(_section("What each step held", drawn.get("steps", _no_steps())))
    parts.append(_section("How it was measured", _how(contents)))
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(title)}: {blame.verdict}</title>\n<style>{_colours()}{STYLE}</style>\n"
        f"</head><body><main>\n{body}\n</main></body></html>\n"
    )


def _colours() -> str:
    day = "".join(f"--{name}:{value};" for name, (value, _) in PALETTE.items())
    night = "".join(f"--{name}:{value};" for name, (_, value) in PALETTE.items())
    return f":root{{{day}}}@media(prefers-color-scheme:dark){{:root{{{night}}}}}"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>"


def _mood(blame: Blame) -> str:
    return {"no_stalls": "good", "inconclusive": "odd"}.get(blame.verdict, "bad")


def _subtitle(contents: Contents) -> str:
    header, counts = contents.records.header, contents.metrics.counts
    window = contents.metrics.window
    words = [
        str(header.get("target") or header.get("imported_from") or ""),
        f"{counts.completed:,} requests completed, {counts.failed:,} failed",
        f"{window.seconds:.1f} s",
        f"judged by {DEPTHS[contents.blame.depth]}",
    ]
    return f'<p class="soft">{escape("; ".join(word for word in words if word))}</p>'


def _validity(findings: Sequence[Finding]) -> str:
    bad = [f"{f.name}: {f.fact}" for f in findings if not f.ok]
    if bad:
        return f'<p><span class="tag bad">INVALID</span> {escape("; ".join(bad))}</p>'
    if findings:
        words = "; ".join(f"{f.name}: {f.fact}" for f in findings)
        return f'<p><span class="tag good">VALID</span> <small>{escape(words)}</small></p>'
    return ""


def _cards(metrics: Metrics, blame: Blame) -> str:
    share = blame.stalled_ms / blame.decoding_ms if blame.decoding_ms else 0.0
    worst = metrics.latencies["itl_ms"]
    leading = WORDS[next(iter(blame.causes))] if blame.causes else "-"
    cards = [
        ("p50 ITL", f"{milliseconds(metrics.latency('itl_ms', 50.0))} ms"),
        ("p99 ITL", f"{milliseconds(metrics.latency('itl_ms', 99.0))} ms"),
        ("worst gap", f"{milliseconds(worst.maximum if worst else None)} ms"),
        ("p95 TTFT", f"{milliseconds(metrics.latency('ttft_ms', 95.0))} ms"),
        ("output", f"{metrics.output_throughput:,.0f} tok/s"),
        ("stalled time", f"{share:.1%}"),
        ("leading cause", leading),
    ]
    inner = "".join(
        f'<div class="card"><small>{escape(name)}</small><b>{escape(value)}</b></div>'
        for name, value in cards
    )
    return f'<div class="cards">{inner}</div>'


def _note_intervals() -> str:
    return (
        '<p class="soft">In milliseconds. Below a percentile is its 95 % interval, from a '
        "bootstrap over blocks of time, since neighbouring gaps move together.</p>"
    )


def _no_steps() -> str:
    return (
        '<p class="soft">The records say nothing of the server\'s steps. Give a trace of ours with '
        "--steps, or the log of another engine with --log.</p>"
    )


def _how(contents: Contents) -> str:
    header = contents.records.header
    machine = header.get("machine") or {}
    pairs = [(name.replace("_", " "), str(value)) for name, value in machine.items()]
    workload = header.get("workload") or {}
    asked = workload.get("asked") or {} if isinstance(workload, dict) else {}
    pairs += [
        (name.replace("_", " "), str(value))
        for name, value in asked.items()
        if value not in (None, [], "")
    ]
    config = header.get("config") or {}
    pairs += [(name, str(value)) for name, value in config.items()]
    if contents.version:
        pairs.append(("evenflow", contents.version))
    notes = "".join(f"<p>note: {escape(p)}</p>" for p in contents.blame.problems)
    command = f"<pre>{escape(contents.command)}</pre>" if contents.command else ""
    return f"{tables.facts(pairs)}{notes}{command}"
