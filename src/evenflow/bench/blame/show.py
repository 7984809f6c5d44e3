"""What blame found, for programs and for a terminal. Formats and computes nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from evenflow.bench.blame.verdict import WORDS
from evenflow.bench.show import with_unit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from evenflow.bench.blame.model import Blame, Episode

MAX_NAME = 16  # columns of a request's name on one line
STYLES = {"no_stalls": "bold green", "inconclusive": "bold yellow"}
DEPTHS = {
    "records": "what the client saw",
    "metrics": "what the client saw, and the server's /metrics",
    "log": "what the client saw, and the server's log",
    "steps": "the record of every step",
}


def as_json(blame: Blame) -> dict[str, Any]:
    """One document with everything; times in seconds of the run's clock, durations in ms."""
    return {
        "verdict": blame.verdict,
        "looks_like": blame.looks_like,
        "summary": blame.summary,
        "explained_share": blame.explained_share,
        "p_value": blame.p_value,
        "depth": blame.depth,
        "streams": blame.num_streams,
        "gaps": blame.num_gaps,
        "normal_ms": blame.normal_ms,
        "ms_per_prompt_token": blame.ms_per_token,
        "stalled_stream_ms": blame.stalled_ms,
        "decoding_stream_ms": blame.decoding_ms,
        "causes": blame.causes,
        "budget": None
        if blame.budget is None
        else {
            "tokens": blame.budget.tokens,
            "target_ms": blame.budget.target_ms,
            "decode_ms": blame.budget.decode_ms,
            "ms_per_token": blame.budget.ms_per_token,
            "largest_chunk_tokens": blame.budget.chunk_tokens,
            "knob": blame.budget.knob,
        },
        "offenders": [
            {
                "request": o.request_id,
                "class": o.class_name,
                "prompt_tokens": o.prompt_tokens,
                "send_s": o.send_s,
                "stalls": o.stalls,
                "episodes": o.episodes,
                "stream_ms": o.stream_ms,
                "worst_ms": o.worst_ms,
                "share": o.share,
                "confidence": o.confidence,
                "whole_prefill_in_one_gap": o.whole,
            }
            for o in blame.offenders
        ],
        "stalls": [
            stall for i, episode in enumerate(blame.episodes) for stall in _stalls(episode, i)
        ],
        "problems": blame.problems,
    }


def _stalls(episode: Episode, index: int) -> list[dict[str, Any]]:
    return [
        {
            "request": stall.request_id,
            "start_s": stall.start_s,
            "end_s": stall.end_s,
            "gap_ms": stall.gap_ms,
            "excess_ms": stall.excess_ms,
            "episode": index,
            "cause": episode.cause,
            "confidence": episode.confidence,
            "culprits": [{"request": c.request_id, "ms": c.ms} for c in episode.culprits],
            "evidence": episode.evidence,
        }
        for stall in episode.stalls
    ]


def show_blame(blame: Blame, *, top: int = 10) -> RenderableType:
    """The verdict, the offenders, and what the other stalls look like."""
    parts: list[RenderableType] = [_head(blame)]
    if blame.episodes:
        parts.append(_causes(blame))
    if blame.offenders:
        parts.append(_offenders(blame, top))
    others = [e for e in blame.episodes if e.cause != "prefill"]
    if others:
        parts.append(_others(others, top))
    if blame.budget is not None:
        parts.append(Text(budget_words(blame)))
    parts += [Text(f"note: {problem}", style="yellow") for problem in blame.problems]
    return Group(*parts)


def _head(blame: Blame) -> Text:
    text = Text()
    text.append(blame.verdict, style=STYLES.get(blame.verdict, "bold red"))
    if blame.looks_like is not None:
        text.append(f" ({WORDS[blame.looks_like]})", style="bold red")
    text.append(f"\n{blame.summary}\n")
    share = blame.stalled_ms / blame.decoding_ms if blame.decoding_ms else 0.0
    facts = (
        f"{blame.num_stalls:,} stalls in {blame.num_gaps:,} gaps of {blame.num_streams:,} streams; "
        f"{blame.stalled_ms / 1e3:,.2f} s of stream time stood still ({share:.1%}); "
        f"judged by {DEPTHS[blame.depth]}"
    )
    text.append(facts, style="dim")
    return text


def _causes(blame: Blame) -> Table:
    grid = _table("stalled time by cause")
    for name in ("cause", "episodes", "stalls", "ms x streams", "share"):
        grid.add_column(name, justify="left" if name == "cause" else "right")
    for cause, ms in blame.causes.items():
        mine = [e for e in blame.episodes if e.cause == cause]
        grid.add_row(
            WORDS[cause],
            f"{len(mine):,}",
            f"{sum(len(e.stalls) for e in mine):,}",
            f"{ms:,.0f}",
            f"{ms / blame.stalled_ms:.1%}",
        )
    return grid


def _offenders(blame: Blame, top: int) -> Table:
    shown = blame.offenders[:top]
    more = len(blame.offenders) - len(shown)
    grid = _table("offenders" + (f" (the first {top} of {len(blame.offenders):,})" if more else ""))
    # a class that is in every name would only take the columns of the others
    classed = any(o.class_name not in o.request_id for o in shown)
    widest = min(MAX_NAME, max(len(o.request_id) for o in shown))
    grid.add_column("request", overflow="fold", min_width=widest)  # cut off it names nobody
    if classed:
        grid.add_column("class", overflow="fold")
    for name in ("prompt", "sent at", "stalls", "worst", "ms x streams", "share", "sure"):
        wide = 7 if name == "ms x streams" else len(name)
        grid.add_column(name, justify="right", overflow="fold", min_width=wide)
    for o in shown:
        grid.add_row(
            Text(o.request_id),
            *([Text(o.class_name)] if classed else ()),
            "-" if o.prompt_tokens is None else f"{o.prompt_tokens:,}",
            f"{o.send_s:.2f} s",
            f"{o.stalls:,}",
            with_unit(o.worst_ms),
            f"{o.stream_ms:,.0f}",
            f"{o.share:.1%}",
            f"{o.confidence:.0%}",
        )
    return grid


def _others(episodes: list[Episode], top: int) -> Table:
    grid = _table("stalls that no prefill explains")
    for name in ("at", "lasted", "streams", "looks like", "sure", "why"):
        grid.add_column(name, justify="right" if name in {"at", "lasted", "streams"} else "left")
    worst = sorted(episodes, key=lambda e: -e.stream_ms)[:top]
    for e in sorted(worst, key=lambda e: e.start_s):
        grid.add_row(
            f"{e.start_s:.2f} s",
            with_unit((e.end_s - e.start_s) * 1e3),
            f"{len(e.stalls)} of {e.num_decoding}",
            WORDS[e.cause],
            f"{e.confidence:.0%}",
            Text(e.evidence),
        )
    return grid


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)


def budget_words(blame: Blame) -> str:
    """The budget that would have bounded the gaps, with the figures behind it."""
    advice = blame.budget
    if advice is None:
        return ""
    basis = (
        f"a decode step takes {with_unit(advice.decode_ms)} and a prompt token "
        f"{advice.ms_per_token:.3g} ms where it is dear; the largest chunk held about "
        f"{advice.chunk_tokens:,} tokens"
    )
    if advice.tokens is None:
        return (
            f"no budget keeps gaps under {with_unit(advice.target_ms)}: {basis}. "
            "Allow longer gaps, or fewer streams at once."
        )
    return (
        f"a budget of {advice.tokens:,} tokens would have kept gaps under "
        f"{with_unit(advice.target_ms)}: {basis}. Knob: {advice.knob}. Then measure again."
    )
