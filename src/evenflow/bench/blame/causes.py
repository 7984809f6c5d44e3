"""What the stalls that no prefill explains look like.

In: episodes, and whatever else the records hold: probes of the client, the server's metrics. Out:
the episodes with a cause and the reason for it. A cause is a likeness, not a proof; `confidence`
says how good it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.gaps import TOGETHER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.model import Episode, Stall
    from evenflow.bench.records import Records, RequestRecord, Scrape

LATENESS = ("loop_lag", "echo")  # kinds of probe: see `records.Probe`
BURST = 0.25  # of a usual gap: a message this soon after the last was held back with it
CAUGHT_UP = 0.6  # of what was missed, come in a burst: it was made in time and held back
LAG_SHARE = 0.5  # of the time lost, in the client's own lag
TURNS = 3  # so many lone stalls in a stream: it takes turns
PREEMPTIONS = ("num_preemptions", "num_retracted_requests")
WAITING = ("num_requests_waiting", "num_queue_reqs", "requests_deferred")


def name_causes(episodes: Sequence[Episode], records: Records) -> None:
    """Give every episode without a culprit the cause that it resembles most."""
    requests = {r.id: r for r in records.requests}
    lone = [episode for episode in episodes if episode.alone]
    turns = _take_turns(lone, len(requests))
    for episode in episodes:
        if _buffered(episode, requests) or _client(episode, records, requests):
            continue
        if episode.cause == "prefill":
            continue
        if episode.alone:
            _lone(episode, records.scrapes, turns=turns)
        elif episode.num_decoding > 1:
            episode.cause = "server_pause"
            episode.confidence = 0.7
            episode.evidence = (
                f"{len(episode.stalls)} of {episode.num_decoding} streams stood still, and no "
                "prefill in flight is long enough for it"
            )
        else:
            episode.cause = "unknown"
            episode.confidence = 0.0
            episode.evidence = "a single stream ran, and no prefill overlaps its stall"


def _buffered(episode: Episode, requests: dict[str, RequestRecord]) -> bool:
    """Whether the tokens were made in time: they all came, in one message or in a burst after."""
    whole = [
        stall
        for stall in episode.stalls
        if stall.gap_ms < 2 * stall.expected_ms and not _gathered(stall, requests[stall.request_id])
    ]
    if 2 * len(whole) > len(episode.stalls):
        most = max(stall.tokens for stall in whole)
        episode.culprits = []
        episode.cause, episode.confidence = "buffering", 0.9
        episode.evidence = f"the message that ended it brought up to {most} tokens: none was lost"
        return True
    burst = [s for s in episode.stalls if _caught_up(s, requests[s.request_id])]
    if episode.alone and 2 * len(burst) > len(episode.stalls):
        episode.culprits = []
        episode.cause, episode.confidence = "buffering", 0.8
        episode.evidence = "the messages that were missing came in a burst right after it"
        return True
    return False


def _gathered(stall: Stall, request: RequestRecord) -> bool:
    """Whether several messages ended it at once: a burst, and not one message with many tokens."""
    times = [m.time_s for m in request.messages]
    at = int(np.searchsorted(times, stall.end_s, side="left"))
    return at + 1 < len(times) and times[at + 1] - times[at] < TOGETHER_S


def _caught_up(stall: Stall, request: RequestRecord) -> bool:
    """Whether the messages that were due during the stall came right after it, all at once."""
    times = [m.time_s for m in request.messages]
    due = stall.excess_ms / max(stall.normal_ms, 1e-6)
    at = int(np.searchsorted(times, stall.end_s, side="left")) + 1
    came = 0
    while at < len(times) and (times[at] - times[at - 1]) * 1e3 < BURST * stall.normal_ms:
        came += 1
        at += 1
    return came >= 1 and came >= CAUGHT_UP * due - 1


def _client(episode: Episode, records: Records, requests: dict[str, RequestRecord]) -> bool:
    """Whether our own side stood still: its event loop was late, or everything came in a burst."""
    lag_ms = 0.0
    for probe in records.probes:
        if probe.kind not in LATENESS:
            continue
        if probe.time_s - probe.value_s < episode.end_s and probe.time_s > episode.start_s:
            shared = min(probe.time_s, episode.end_s + 0.005) - max(
                probe.time_s - probe.value_s, episode.start_s
            )
            lag_ms = max(lag_ms, min(shared, probe.value_s) * 1e3)
    prefill_ms = sum(culprit.ms for culprit in episode.culprits)
    if lag_ms >= LAG_SHARE * max(episode.excess_ms, 1e-9) and lag_ms > prefill_ms:
        episode.culprits = []
        episode.cause, episode.confidence = "client", 0.95
        episode.evidence = f"the client itself was {lag_ms:.0f} ms late then"
        return True
    burst = [s for s in episode.stalls if _caught_up(s, requests[s.request_id])]
    if not episode.alone and 2 * len(burst) > len(episode.stalls):
        episode.culprits = []
        episode.cause, episode.confidence = "client", 0.7
        episode.evidence = (
            "what was missing came in a burst right after it, in most streams: it was made in time "
            "and held back on the way, by the client or something before it"
        )
        return True
    return False


def _lone(episode: Episode, scrapes: Sequence[Scrape], *, turns: bool) -> None:
    """A stream that stood still while the others went on lost its place, or waits for one."""
    others = episode.num_progressing
    went_on = f"{others} other stream{'s' if others > 1 else ''} went on"
    preempted = rise(scrapes, PREEMPTIONS, episode.start_s, episode.end_s)
    waiting = highest(scrapes, WAITING, episode.start_s, episode.end_s)
    if preempted:
        episode.cause, episode.confidence = "preemption", 0.95
        episode.evidence = f"{went_on}, and the server counted {preempted:.0f} preemptions"
    elif preempted is not None and waiting:
        episode.cause, episode.confidence = "queueing", 0.8
        episode.evidence = (
            f"{went_on}, no preemption was counted, and {waiting:.0f} requests waited"
        )
    elif turns:
        episode.cause, episode.confidence = "queueing", 0.6
        episode.evidence = f"{went_on}; streams take turns at standing still"
    elif preempted is not None:
        episode.cause, episode.confidence = "unknown", 0.0
        episode.evidence = f"{went_on}; the server counted no preemption, and nobody waited"
    else:
        episode.cause, episode.confidence = "preemption", 0.6
        episode.evidence = f"{went_on}: this one lost its place, or its blocks"


def _take_turns(lone: Sequence[Episode], num_streams: int) -> bool:
    """Whether standing still alone goes round: most streams do, and each does again and again."""
    counts: dict[str, int] = {}
    for episode in lone:
        for stall in episode.stalls:
            counts[stall.request_id] = counts.get(stall.request_id, 0) + 1
    often = [count for count in counts.values() if count >= TURNS]
    return len(often) > 1 and 2 * len(often) >= num_streams


def rise(
    scrapes: Sequence[Scrape], names: Sequence[str], start_s: float, end_s: float
) -> float | None:
    """By how much counters rose between the scrapes around a stretch; None when not scraped."""
    before = [s for s in scrapes if s.time_s <= start_s]
    after = [s for s in scrapes if s.time_s >= end_s]
    if not before or not after:
        return None
    low, high = _sum(before[-1], names), _sum(after[0], names)
    return None if low is None or high is None else max(0.0, high - low)


def highest(
    scrapes: Sequence[Scrape], names: Sequence[str], start_s: float, end_s: float
) -> float | None:
    """The highest value of gauges in the scrapes within a stretch and the ones around it."""
    inside = [s for s in scrapes if start_s <= s.time_s <= end_s]
    inside += [s for s in scrapes if s.time_s < start_s][-1:]
    inside += [s for s in scrapes if s.time_s > end_s][:1]
    values = [value for s in inside if (value := _sum(s, names)) is not None]
    return max(values, default=None)


def _sum(scrape: Scrape, names: Sequence[str]) -> float | None:
    """The sum over all samples whose name, without prefix, labels and `_total`, is one of these."""
    found = [
        value
        for sample, value in scrape.values.items()
        if sample.split("{", 1)[0].rsplit(":", 1)[-1].removesuffix("_total") in names
    ]
    return sum(found) if found else None
