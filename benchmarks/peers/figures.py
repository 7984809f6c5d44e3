"""From the times of tokens to figures, from figures to ratios with intervals. Pure functions."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.paired import interval
from peers.worker import LONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from peers.plan import Measured

SAME_TOKENS = 16  # of each stream: greedy outputs of the same weights agree at least so far, mostly


class Figure(NamedTuple):
    """A figure of a job. `higher` says whether more is better."""

    name: str
    unit: str
    higher: bool


class Ratio(NamedTuple):
    """How many times better one side is, from pairs of one repeat each.

    `low` and `high` bound the mean with 95 % (Student's, of the logarithms); None for one pair.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int


def figures(one: Measured) -> dict[Figure, float]:
    """All figures of one answer."""
    job, answer = one.job, one.answer
    if job.kind == "prefill":
        first = answer["times_s"]["stream-0"][0]
        rate = job.prompt_tokens / (first - answer["sent_s"]["stream-0"])
        return {Figure("prefill", "tok/s", higher=True): rate}
    if job.kind == "decode":
        return {
            Figure(f"decode, {job.streams} streams", "tok/s", higher=True): decode_rate(
                answer["times_s"].values()
            )
        }
    step = "whole" if not job.budget else f"{job.budget} a step"
    sent, first = answer["sent_s"][LONG], answer["times_s"][LONG][0]
    gaps = gaps_in(sent, first, (t for name, t in answer["times_s"].items() if name != LONG))
    return {
        Figure(f"worst gap, {step}", "ms", higher=False): max(gaps) * 1e3,
        Figure(f"TTFT, {step}", "s", higher=False): first - sent,
    }


def decode_rate(times_s: Iterable[Sequence[float]]) -> float:
    """Tokens per second once every stream has its first: what came later, by how long it took."""
    streams = list(times_s)
    begun = max(times[0] for times in streams)
    ended = max(times[-1] for times in streams)
    return sum(t > begun for times in streams for t in times) / (ended - begun)


def gaps_in(start_s: float, end_s: float, streams: Iterable[Sequence[float]]) -> list[float]:
    """Seconds of every gap that overlaps a stretch of time."""
    return [
        after - before
        for times in streams
        for before, after in itertools.pairwise(times)
        if before < end_s and after > start_s
    ]


def outlasted(one: Measured) -> bool:
    """Whether all streams were there to be stalled until the long prompt had its first token."""
    times = dict(one.answer["times_s"])
    long = times.pop(LONG, None)
    return long is None or all(stream[-1] >= long[0] for stream in times.values())


def medians(all_of: Iterable[Measured]) -> dict[Figure, dict[str, float]]:
    """The median over repeats, by figure and peer."""
    values: dict[Figure, dict[str, list[float]]] = {}
    for one in all_of:
        for figure, value in figures(one).items():
            values.setdefault(figure, {}).setdefault(one.peer, []).append(value)
    return {
        figure: {peer: statistics.median(found) for peer, found in by_peer.items()}
        for figure, by_peer in values.items()
    }


def ratios(all_of: Sequence[Measured], us: str, them: str) -> dict[Figure, Ratio]:
    """How many times better `us` is than `them`, repeat by repeat: above 1 is better."""
    ours, theirs = (_by_repeat(all_of, name) for name in (us, them))
    found: dict[Figure, list[float]] = {}
    for repeat in sorted(ours.keys() & theirs.keys()):
        for figure in ours[repeat].keys() & theirs[repeat].keys():
            log = math.log(ours[repeat][figure] / theirs[repeat][figure])
            found.setdefault(figure, []).append(log if figure.higher else -log)
    return {figure: _ratio(logs) for figure, logs in found.items()}


def _by_repeat(all_of: Iterable[Measured], peer: str) -> dict[int, dict[Figure, float]]:
    found: dict[int, dict[Figure, float]] = {}
    for one in all_of:
        if one.peer == peer:
            found.setdefault(one.repeat, {}).update(figures(one))
    return found


def _ratio(logs: Sequence[float]) -> Ratio:
    mean, low, high = interval(logs)
    bounds = [None if x is None else math.exp(x) for x in (low, high)]
    return Ratio(math.exp(mean), bounds[0], bounds[1], len(logs))


def agreement(all_of: Iterable[Measured], us: str, them: str) -> float | None:
    """The share of streams whose first tokens are the same on both sides; None without streams."""
    ours, theirs = ({(m.repeat, m.job): m.answer["tokens"] for m in all_of if m.peer == name}
                    for name in (us, them))  # fmt: skip
    pairs = [
        (mine[:SAME_TOKENS], theirs[key][name][:SAME_TOKENS])
        for key in ours.keys() & theirs.keys()
        for name, mine in ours[key].items()
    ]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else None
