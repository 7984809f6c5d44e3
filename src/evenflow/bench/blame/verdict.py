"""From episodes with causes to a table of offenders, a budget and a verdict.

Pure functions over what the other modules found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.knobs import budget_knob, chunking_knob
from evenflow.bench.blame.model import BudgetAdvice, Offender
from evenflow.bench.records import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.model import Blame, BlameOptions, Cause, Episode, Verdict
    from evenflow.bench.blame.prefills import Prefills

    Floats = NDArray[np.float64]

PART = 0.1  # of a stall, for a request to have had a part in it
LEADS = 0.5  # of all stalled time, for a cause to be the cause
MIN_STALLS = 2  # one can be anything
MIN_FIT = 4  # stalls, whose lengths differ by SPREAD, show how the cost grows with the length
SPREAD = 1.5
WHOLE = 0.75  # of a prefill in one gap: it was not divided


def offenders_of(
    episodes: Sequence[Episode], requests: Sequence[RequestRecord], prefills: Prefills
) -> list[Offender]:
    """Who made others wait, the dearest first."""
    by_id = {r.id: r for r in requests}
    windows = {requests[int(r)].id: i for i, r in enumerate(prefills.request)}
    all_ms = sum(episode.stream_ms for episode in episodes)
    mine: dict[str, list[tuple[Episode, float, float]]] = {}
    for episode in episodes:
        total = sum(c.ms for c in episode.culprits)
        for culprit in episode.culprits:
            part = episode.explained_ms * culprit.ms / max(total, 1e-9)
            mine.setdefault(culprit.request_id, []).append((episode, part, culprit.ms / total))
    found = []
    for name, parts in mine.items():
        # an engine's own records may name requests of other clients
        request = by_id.get(name) or RequestRecord(id=name)
        real = [e for e, _, share in parts if share >= PART]
        cost = sum(part for _, part, _ in parts)
        found.append(
            Offender(
                request_id=name,
                class_name=request.class_name,
                prompt_tokens=request.prompt_tokens,
                send_s=request.send_s or 0.0,
                stalls=sum(len(e.stalls) for e in real),
                episodes=len(real),
                stream_ms=cost,
                worst_ms=max(stall.gap_ms for e, _, _ in parts for stall in e.stalls),
                share=cost / max(all_ms, 1e-9),
                confidence=sum(e.confidence * part for e, part, _ in parts) / max(cost, 1e-9),
                whole=_whole(name, parts, prefills, windows),
            )
        )
    return sorted(found, key=lambda o: (-o.stream_ms, o.request_id))


def _whole(
    name: str,
    parts: Sequence[tuple[Episode, float, float]],
    prefills: Prefills,
    windows: dict[str, int],
) -> bool | None:
    """Whether one gap held (nearly) all of the prefill."""
    if name not in windows:
        return None
    cost_ms = float(prefills.cost_ms[windows[name]])
    culprits = [c for e, _, _ in parts for c in e.culprits if c.request_id == name]
    return max(c.ms for c in culprits) >= WHOLE * cost_ms


def causes_of(episodes: Sequence[Episode]) -> dict[Cause, float]:
    """Stalled stream time by cause, the largest first; a prefill's only as far as it explains it."""
    found: dict[Cause, float] = {}
    for episode in episodes:
        explained_ms = episode.explained_ms if episode.cause == "prefill" else episode.stream_ms
        found[episode.cause] = found.get(episode.cause, 0.0) + explained_ms
        if rest_ms := episode.stream_ms - explained_ms:
            other: Cause = "server_pause" if episode.num_decoding > 1 else "unknown"
            found[other] = found.get(other, 0.0) + rest_ms
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def advise(
    episodes: Sequence[Episode],
    offenders: Sequence[Offender],
    pace_ms: float | None,
    options: BlameOptions,
) -> BudgetAdvice | None:
    """The budget whose steps would have kept gaps under the target.

    A step's time is taken as a + b x prompt tokens: a is the usual gap, and b what a token costs
    at the end of the longest prompts, since late chunks cost more than first ones.
    """
    pairs = []
    for episode in episodes:
        tokens = sum(c.tokens for c in episode.culprits)
        if episode.cause == "prefill" and tokens >= 1:
            pairs.append((tokens, sum(c.ms for c in episode.culprits)))
    if not pairs or pace_ms is None:
        return None
    whole = any(offender.whole for offender in offenders)
    rate = _dear_ms(np.array(pairs), from_zero=whole)
    target_ms = options.target_ms or options.limit_ms or options.factor * pace_ms
    # while a prompt is computed every step holds a chunk, and a gap as many steps as tokens
    steps = float(np.median([stall.tokens for e in episodes for stall in e.stalls]))
    tokens = int((target_ms - pace_ms) / rate / max(1.0, steps)) if target_ms > pace_ms else 0
    grain = 64 if tokens >= 256 else 16
    rounded = tokens // grain * grain
    return BudgetAdvice(
        tokens=rounded or None,
        target_ms=target_ms,
        decode_ms=pace_ms,
        ms_per_token=rate,
        chunk_tokens=round(max(tokens for tokens, _ in pairs)),
        knob=budget_knob(options.engine),
    )


def _dear_ms(pairs: Floats, *, from_zero: bool) -> float:
    """What a prompt token costs where it is dear: the dearer tenth of what the stalls show.

    Where stalls hold whole prompts, each shows only the mean over its prompt. If the mean grows
    with the length, as b + k x length does, the last token costs b + 2 k x length.

    Args:
        pairs: tokens and milliseconds of each stall. [stalls, 2].
        from_zero: the stalls hold whole prompts.
    """
    tokens = pairs[:, 0]
    rates = pairs[:, 1] / tokens
    dear = float(np.percentile(rates, 90))
    if not from_zero or len(pairs) < MIN_FIT or tokens.max() < SPREAD * tokens.min():
        return dear
    slope, base = np.polyfit(tokens, rates, 1, w=np.sqrt(tokens))
    return max(dear, float(base + 2 * slope * tokens.max())) if slope > 0 else dear


def judge(blame: Blame) -> None:
    """Set the verdict, what else it looks like, and the sentences that say so."""
    verdict, looks_like, why = _verdict(blame)
    blame.verdict, blame.looks_like, blame.summary = verdict, looks_like, why


def _verdict(blame: Blame) -> tuple[Verdict, Cause | None, str]:
    if not blame.num_gaps:
        return "inconclusive", None, "No stream has two messages, so there is no gap to look at."
    if not blame.episodes:
        return "no_stalls", None, f"None of {blame.num_gaps:,} gaps was a stall."
    leader, led_ms = next(iter(blame.causes.items()))
    share = led_ms / blame.stalled_ms
    if blame.num_stalls < MIN_STALLS:
        why = f"A single stall in {blame.num_gaps:,} gaps is too little to judge by."
        return "inconclusive", None, why
    if leader == "prefill" and blame.explained_share >= LEADS:
        if blame.depth != "steps" and blame.p_value > blame.options.level:
            why = (
                f"Prefills overlap {blame.explained_share:.0%} of the stalled time, but at other "
                f"times they would often do so too (p = {blame.p_value:.2f})."
            )
            return "inconclusive", None, why
        return _prefill(blame)
    if leader not in {"prefill", "unknown"} and share >= LEADS:
        why = (
            f"{share:.0%} of the stalled time looks like {WORDS[leader]}; prefills explain "
            f"{blame.explained_share:.0%}."
        )
        return "not_prefill", leader, why
    parts = ", ".join(
        f"{WORDS[cause]} {ms / blame.stalled_ms:.0%}" for cause, ms in blame.causes.items()
    )
    return "inconclusive", None, f"No cause leads: {parts} of the stalled time."


WORDS: dict[Cause, str] = {
    "prefill": "prefill",
    "preemption": "preemption",
    "queueing": "queueing",
    "server_pause": "a pause of the server",
    "client": "the client or the way to it",
    "buffering": "buffering",
    "unknown": "nothing known",
}


def _prefill(blame: Blame) -> tuple[Verdict, Cause | None, str]:
    """Chunking is off when whole prompts sit in single gaps; otherwise its chunks are too large."""
    sure = [o for o in blame.offenders if o.whole is not None]
    whole_ms = sum(o.stream_ms for o in sure if o.whole)
    split_ms = sum(o.stream_ms for o in sure if not o.whole)
    longest = max((o.prompt_tokens or 0 for o in sure if o.whole), default=0)
    start = (
        f"Prefills explain {blame.explained_share:.0%} of the stalled time "
        f"(p = {blame.p_value:.3f}). "
    )
    engine = blame.options.engine
    if whole_ms >= split_ms:
        known = f"up to {longest:,} tokens " if longest else ""
        steps = int(np.median([s.tokens for e in blame.episodes for s in e.stalls]))
        share = f" one part in {steps} of that (messages carry {steps} tokens)" if steps > 1 else ""
        why = (
            f"{start}Prompts {known}were computed whole, in one gap each: chunked prefill is off, "
            f"or its budget is at least{share or ' as large'}. Knob: {chunking_knob(engine)}."
        )
        return "chunked_prefill_off", None, why
    chunk = blame.budget.chunk_tokens if blame.budget else 0
    about = f"of about {chunk:,} tokens " if chunk else ""
    why = f"{start}Prompts were computed in chunks, but chunks {about}are too long for the streams."
    return "budget_too_large", None, why
