"""Which prefill was in the way of each episode, as far as a client can tell.

In: episodes and the windows in which prompts were computed. Out: the episodes with culprits, where
a prefill explains them. Three facts speak against a prefill, however well it overlaps: most streams
went on meanwhile; the prompts in flight are too short for the time lost; or the gap is far longer
than the other gaps that the same prompt's chunks made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.model import Culprit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.bench.blame.model import Episode
    from evenflow.bench.blame.prefills import Prefills
    from evenflow.bench.records import RequestRecord

    Floats = NDArray[np.float64]

EXPLAINS = 0.5  # of the time lost must be prefill
EXPLAINS_ALONE = 0.8  # where only one stream ran, so that no other can show that it stood still
NEARLY = 0.8  # what is left of a loss is within the error of what a prompt is known to cost
MIN_CHUNKS = 3  # so many show how they grow
CHUNK = 0.7  # of the longer one beside it, at least: a chunk with as many tokens
SMALL = 0.02  # a share below this is not worth a culprit


def attribute(
    episodes: Sequence[Episode],
    prefills: Prefills,
    requests: Sequence[RequestRecord],
) -> None:
    """Set cause, culprits, evidence and a first confidence of every episode that prefills explain."""
    if not len(prefills):
        return
    for episode in episodes:
        if episode.alone:
            continue
        shared_s = prefills.shared_s(episode.start_s, episode.end_s)
        # a stalled stream's own prefill was over before its gap began
        candidates = np.flatnonzero(shared_s > 0)
        if not len(candidates):
            continue
        costs = []
        for i in candidates:
            ms = float(shared_s[i] * 1e3)
            most_ms = prefills.chunks.most_ms(int(i), episode.start_s, episode.end_s)
            costs.append(min(ms, most_ms, float(prefills.work_ms[i])))
        total = sum(costs)
        length_ms = (episode.end_s - episode.start_s) * 1e3
        excess = max(episode.excess_ms, 1e-9)
        coverage = min(1.0, total / excess)
        if coverage < (EXPLAINS if episode.num_decoding > 1 else EXPLAINS_ALONE):
            continue
        fit = min(1.0, length_ms / total)
        scale = fit * min(1.0, excess / length_ms)
        episode.culprits = sorted(
            (
                _culprit(prefills, int(i), (ms * scale, ms * fit), requests)
                for i, ms in zip(candidates, costs, strict=True)
                if ms >= SMALL * total
            ),
            key=lambda culprit: -culprit.ms,
        )
        episode.cause = "prefill"
        episode.share = coverage if coverage < NEARLY else 1.0
        episode.confidence = coverage * _sureness(episode, prefills, candidates)
        episode.evidence = _evidence(episode, coverage)
    _count_tokens(episodes)


def _count_tokens(episodes: Sequence[Episode]) -> None:
    """Tokens of each chunk, by the chunks' number.

    All chunks of a prompt have about as many tokens, but late ones take longer: the share of the time
    would give these too many. One that is much shorter than those beside it, as the last one mostly
    is, has fewer in proportion.
    """
    parts: dict[str, list[tuple[Episode, int]]] = {}
    for episode in episodes:
        for place, culprit in enumerate(episode.culprits):
            parts.setdefault(culprit.request_id, []).append((episode, place))
    for mine in parts.values():
        if len(mine) < MIN_CHUNKS:
            continue
        mine.sort(key=lambda part: part[0].start_s)
        chunks = [episode.culprits[place] for episode, place in mine]
        ms = np.array([chunk.ms for chunk in chunks])
        beside = np.maximum(np.append(ms[1:], 0.0), np.insert(ms[:-1], 0, 0.0))
        weights = np.where(ms >= CHUNK * beside, 1.0, ms / np.maximum(beside, 1e-9))
        tokens = weights / weights.sum() * sum(chunk.tokens for chunk in chunks)
        for (episode, place), count in zip(mine, tokens, strict=True):
            episode.culprits[place] = episode.culprits[place]._replace(tokens=float(count))


def _culprit(
    prefills: Prefills, index: int, ms: tuple[float, float], requests: Sequence[RequestRecord]
) -> Culprit:
    """What it cost, and the time in which it was computed, decodes beside it included.

    Its tokens are for now those of its window in proportion to that time.
    """
    cost_ms, took_ms = ms
    whole_ms = max(float(prefills.cost_ms[index]), 1e-9)
    tokens = float(prefills.tokens[index]) * min(1.0, took_ms / whole_ms)
    return Culprit(requests[int(prefills.request[index])].id, cost_ms, tokens)


def _sureness(episode: Episode, prefills: Prefills, candidates: NDArray[np.int64]) -> float:
    """How far the facts beyond the overlap support a prefill."""
    others = len(episode.stalls) + episode.num_progressing
    together = len(episode.stalls) / others
    seen = 1.0 if episode.num_decoding > 1 else 0.8  # one stream shows no common stall
    lengths_known = 1.0 if bool(prefills.known[candidates].all()) else 0.6
    return together * seen * lengths_known


def _evidence(episode: Episode, coverage: float) -> str:
    top = episode.culprits[0]
    words = f"{len(episode.stalls)} of {episode.num_decoding} streams stood still"
    more = f" and {len(episode.culprits) - 1} more" if len(episode.culprits) > 1 else ""
    return (
        f"{words}; the prefill of {top.request_id}{more} was under way and explains "
        f"{coverage:.0%} of the time lost"
    )
