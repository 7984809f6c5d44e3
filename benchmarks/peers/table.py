"""What came out, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from peers.figures import agreement, figures, medians, ratios
from peers.plan import LEAD_TOKENS, PROMPT_TOKENS, STALL_STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peers.conduct import Run
    from peers.figures import Figure, Ratio
    from peers.plan import Peer

HOW = """\
Same token ids for all, greedy, end token ignored, prefix caching off, both cores for each; the peers
took turns job by job and were stopped by a signal while another was measured. Decode: prompts of {short}
tokens, {output} outputs, from the moment every stream has its first token. Prefill: one prompt of {long:,}
tokens, whole. Stall: {streams} streams, a prompt of {long:,} lands once each has {lead} tokens; the worst gap
is of all that overlap its prefill. All run in their own process without HTTP, but llama.cpp, whose server
is asked over the loopback."""


def pairs_of(peers: Sequence[Peer]) -> list[tuple[str, str]]:
    """Who is held against whom: this engine against every other with weights of the same format."""
    return [
        (us.name, them.name)
        for them in peers
        for us in peers
        if us.engine == "evenflow" and them.engine != "evenflow" and us.weights == them.weights
    ]


def as_markdown(run: Run, peers: Sequence[Peer], machine: dict[str, Any], date: str) -> str:
    """A page with two tables: figures, and ratios with intervals."""
    names = [peer.name for peer in peers if peer.name in run.versions]
    found = medians(run.measured)
    lines = [f"# Beside other engines, {date}", "", _machine(machine), "", _how(run), ""]
    lines += [f"Medians of {run.repeats} repeat{'s' * (run.repeats != 1)}:", ""]
    lines += _table(
        ["", *[f"{name} {run.versions[name]}" for name in names]],
        [
            [f"{figure.name}, {figure.unit}", *[_value(by.get(name), figure) for name in names]]
            for figure, by in found.items()
        ],
    )
    pairs = [p for p in pairs_of(peers) if p[0] in names and p[1] in names]
    if pairs:
        lines += ["", "How many times better evenflow is, with 95 % intervals:", ""]
        by_pair = [ratios(run.measured, us, them) for us, them in pairs]
        rows = [[figure.name, *[_ratio(r.get(figure)) for r in by_pair]] for figure in found]
        lines += _table(["", *[f"{us} : {them}" for us, them in pairs]], rows)
        same = [(them, agreement(run.measured, us, them)) for us, them in pairs]
        words = ", ".join(f"{name} {share:.0%}" for name, share in same if share is not None)
        lines += ["", f"Streams whose first 16 tokens are evenflow's: {words}."]
    for name, problem in run.problems.items():
        lines += ["", f"{name} is missing: `{problem}`"]
    return "\n".join(lines) + "\n"


def as_data(run: Run, peers: Sequence[Peer], machine: dict[str, Any], date: str) -> dict[str, Any]:
    """The same, with the figures of every repeat."""
    values: dict[str, dict[str, list[float]]] = {}
    units: dict[str, str] = {}
    for one in run.measured:
        for figure, value in figures(one).items():
            units[figure.name] = figure.unit
            values.setdefault(figure.name, {}).setdefault(one.peer, []).append(value)
    return {
        "date": date,
        "machine": machine,
        "repeats": run.repeats,
        "versions": run.versions,
        "problems": run.problems,
        "figures": {
            name: {
                "unit": units[name],
                "values": by_peer,
                "medians": {peer: statistics.median(v) for peer, v in by_peer.items()},
            }
            for name, by_peer in values.items()
        },
        "ratios": {
            f"{us} : {them}": {
                figure.name: ratio._asdict()
                for figure, ratio in ratios(run.measured, us, them).items()
            }
            for us, them in pairs_of(peers)
        },
        "agreement": {
            f"{us} : {them}": agreement(run.measured, us, them) for us, them in pairs_of(peers)
        },
    }


def _how(run: Run) -> str:
    return HOW.format(
        short=PROMPT_TOKENS,
        output=max(
            (m.job.output_tokens for m in run.measured if m.job.kind == "decode"), default=0
        ),
        long=max((m.job.long_tokens for m in run.measured), default=0),
        streams=STALL_STREAMS,
        lead=LEAD_TOKENS,
    )


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cpu'] or machine['system']}, {machine['cores']} cores, "
        f"{machine['memory_gib']:g} GiB, load {machine['load_1m']:.2f} at the start. "
        "SmolLM2-135M-Instruct."
    )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [line(head), line(["---", *["---:"] * (len(head) - 1)]), *map(line, rows)]


def _value(value: float | None, figure: Figure) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if figure.unit == "s" else f"{value:,.0f}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
