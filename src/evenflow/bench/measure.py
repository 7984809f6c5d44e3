"""The figures of a run, each under a name that says what it is: a pure function of its records.

Latency figures come from requests that ended well; the others are counted. Where a warm-up or a
cool-down is marked, requests sent outside the window between them, and gaps not wholly inside it,
are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evenflow.bench.gaps import (
    STALL_FACTOR,
    GapTable,
    Stalls,
    Window,
    deliveries,
    gap_table,
    stalls_by_factor,
    stalls_by_limit,
)
from evenflow.bench.quantiles import Distribution, describe
from evenflow.bench.records import CUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.bench.records import Records, RequestRecord

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
STALL_LIMIT_MS = 100.0
ATTACKER = "attacker"


class Latency(NamedTuple):
    """A figure's short title and what it is, in one line."""

    title: str
    meaning: str


LATENCIES = {
    "ttft_ms": Latency("TTFT", "sending to first token"),
    "itl_ms": Latency("ITL", "all gaps of all streams"),
    "itl_per_token_ms": Latency("ITL per token", "gaps shared out over their tokens"),
    "tpot_ms": Latency("TPOT", "each request's mean per token"),
    "worst_itl_ms": Latency("worst ITL", "each request's longest gap"),
    "e2el_ms": Latency("E2EL", "sending to the end"),
    "client_queue_ms": Latency("client queue", "place in the schedule to sending"),
}


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """What to compute.

    `goodput` maps "ttft", "tpot", "itl" (every gap of the stream) and "e2el" to limits in ms.
    """

    percentiles: tuple[float, ...] = PERCENTILES
    goodput: dict[str, float] = field(default_factory=dict)
    stall_factor: float = STALL_FACTOR
    stall_limit_ms: float = STALL_LIMIT_MS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests and tokens. `failed` are not in any latency figure; `errors` counts them by text."""

    requests: int
    completed: int
    failed: int
    errors: dict[str, int]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """How tokens came: `multi_token` messages carried more than one; `sources` counts requests.

    `together` came with the message before them, so that no gap lies between the two.
    """

    messages: int
    multi_token: int
    most_tokens: int
    empty: int
    together: int
    sources: dict[str, int]


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every limit."""

    limits_ms: dict[str, float]
    good: int
    share: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Attack:
    """What streams felt while a long prompt was being prefilled, and outside of that.

    `during` holds the gaps of all other streams that overlap a long prompt's wait for its first
    token; `outside` the others.
    """

    windows: int
    seconds: float
    during: Distribution | None
    outside: Distribution | None
    ttft_ms: Distribution | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """All figures of a run, or of one class of it."""

    window: Window
    counts: Counts
    request_throughput: float
    output_throughput: float
    total_throughput: float
    latencies: dict[str, Distribution | None]
    messages: MessageCounts
    stalls_by_factor: Stalls
    stalls_by_limit: Stalls
    goodput: Goodput | None
    attack: Attack | None
    classes: dict[str, Metrics]
    options: MeasureOptions

    def latency(self, name: str, percent: float) -> float | None:
        """One percentile of one figure, in ms."""
        found = self.latencies[name]
        return None if found is None else found.value(percent)


def measure(records: Records, options: MeasureOptions | None = None) -> Metrics:
    """Compute the figures of a run, and those of each class when there are several."""
    options = options or MeasureOptions()
    window = window_of(records)
    inside = [
        r
        for r in records.requests
        if r.send_s is None or window.holds(r.send_s) or _only(r, window)
    ]
    metrics = _measure(inside, window, options, attack=True)
    names = sorted({r.class_name for r in inside})
    if len(names) > 1:
        for name in names:
            members = [r for r in inside if r.class_name == name]
            metrics.classes[name] = _measure(members, window, options, attack=False)
    return metrics


def _only(request: RequestRecord, window: Window) -> bool:
    """Whether a stream that was started during the warm-up runs on in the window."""
    if request.send_s is None or request.send_s > window.end_s:
        return False
    return request.end_s is not None and request.end_s > window.start_s


def window_of(records: Records) -> Window:
    """The stretch to look at: between the marks of warm-up and cool-down, else the whole run."""
    sends = [r.send_s for r in records.requests if r.send_s is not None]
    ends = [r.end_s for r in records.requests if r.end_s is not None]
    warm, cool = records.mark("warmup_end"), records.mark("cooldown_start")
    start_s = warm.time_s if warm else min(sends, default=0.0)
    end_s = cool.time_s if cool else max(ends, default=start_s)
    return Window(start_s, max(start_s, end_s))


def _measure(
    requests: Sequence[RequestRecord], window: Window, options: MeasureOptions, *, attack: bool
) -> Metrics:
    done = [r for r in requests if r.ok]
    sent_inside = [r for r in done if window.holds(r.send_s)]
    gaps = gap_table(requests).within(window)
    arrived = [m for r in done for m in r.messages if window.holds(m.time_s)]
    output = sum(m.tokens for m in arrived)
    # a request's prompt counts where its prefill ended
    prefilled = [r for r in done if window.holds(r.first_token_s)]
    ended = [r for r in done if window.holds(r.end_s)]
    seconds = max(window.seconds, 1e-9)
    total = output + sum(r.prompt_tokens or 0 for r in prefilled)
    return Metrics(
        window,
        _counts(requests, prefilled, output),
        len(ended) / seconds,
        output / seconds,
        total / seconds,
        latencies_of(
            sent_inside, gaps, gap_table(requests, with_tokens=True).within(window), options
        ),
        _messages(done),
        stalls_by_factor(gaps, options.stall_factor),
        stalls_by_limit(gaps, options.stall_limit_ms),
        goodput(sent_inside, requests, options.goodput, seconds) if options.goodput else None,
        _attack(requests, gaps, options) if attack else None,
        {},
        options,
    )


def _counts(
    requests: Sequence[RequestRecord], prefilled: Sequence[RequestRecord], output: int
) -> Counts:
    errors: dict[str, int] = {}
    for r in requests:
        if not r.ok:
            errors[r.error] = errors.get(r.error, 0) + 1
    failed = sum(errors.values())
    return Counts(
        len(requests),
        len(requests) - failed,
        failed,
        errors,
        sum(r.prompt_tokens or 0 for r in prefilled),
        output,
    )


def _messages(requests: Sequence[RequestRecord]) -> MessageCounts:
    sizes = [m.tokens for r in requests for m in r.messages]
    sources: dict[str, int] = {}
    for r in requests:
        sources[r.tokens_from] = sources.get(r.tokens_from, 0) + 1
    return MessageCounts(
        len(sizes),
        sum(size > 1 for size in sizes),
        max(sizes, default=0),
        sum(r.empty_messages for r in requests),
        sum(len(r.messages) - len(deliveries(r.messages)) for r in requests),
        sources,
    )


def latencies_of(
    requests: Sequence[RequestRecord],
    gaps: GapTable,
    token_gaps: GapTable,
    options: MeasureOptions,
) -> dict[str, Distribution | None]:
    """All distributions of latency, by name; `token_gaps` end in messages that carry tokens."""
    longest_s = float(gaps.ms.max()) / 1e3 if gaps else 0.0
    shared = token_gaps.tokens
    per_token = np.repeat(token_gaps.ms / shared, shared)
    values = {
        "itl_ms": (gaps.ms, gaps.end_s),
        "itl_per_token_ms": (per_token, np.repeat(token_gaps.end_s, shared)),
    }
    per_request: dict[str, Callable[[RequestRecord], float | None]] = {
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "worst_itl_ms": worst_itl_ms,
        "e2el_ms": e2el_ms,
        "client_queue_ms": lambda r: None if r.send_s is None else (r.send_s - r.scheduled_s) * 1e3,
    }
    for name, compute in per_request.items():
        pairs = [(compute(r), r.send_s) for r in requests]
        known = [(value, at) for value, at in pairs if value is not None and at is not None]
        values[name] = (
            np.array([value for value, _ in known], np.float64),
            np.array([at for _, at in known], np.float64),
        )
    gap_names = ("itl_ms", "itl_per_token_ms")
    return {
        name: describe(
            *values[name],
            options.percentiles,
            seed=options.seed,
            longest_s=longest_s if name in gap_names else 0.0,
        )
        for name in LATENCIES
    }


def ttft_ms(request: RequestRecord) -> float | None:
    """From sending to the first token."""
    if request.send_s is None or request.first_token_s is None:
        return None
    return (request.first_token_s - request.send_s) * 1e3


def tpot_ms(request: RequestRecord) -> float | None:
    """Mean time per token after the first delivery: its tokens came at once and took no gap."""
    arrived = [m for m in deliveries(request.messages) if m.tokens]
    after = sum(m.tokens for m in arrived[1:])
    if not after:
        return None
    return (arrived[-1].time_s - arrived[0].time_s) * 1e3 / after


def worst_itl_ms(request: RequestRecord) -> float | None:
    """The longest gap."""
    arrived = deliveries(request.messages)
    if len(arrived) < 2:
        return None
    return float(np.diff([m.time_s for m in arrived]).max()) * 1e3


def e2el_ms(request: RequestRecord) -> float | None:
    """From sending to the last message; a stream that the client cut off has no end of its own."""
    if request.send_s is None or not request.messages or request.finish_reason == CUT:
        return None
    return (request.messages[-1].time_s - request.send_s) * 1e3


def goodput(
    done: Sequence[RequestRecord],
    requests: Sequence[RequestRecord],
    limits_ms: Mapping[str, float],
    seconds: float,
) -> Goodput:
    """Requests that met every limit; one that failed met none."""
    judges = {"ttft": ttft_ms, "tpot": tpot_ms, "itl": worst_itl_ms, "e2el": e2el_ms}

    def good(request: RequestRecord) -> bool:
        found = [(judges[name](request), limit) for name, limit in limits_ms.items()]
        return all(value is None or value <= limit for value, limit in found)

    met = sum(good(r) for r in done)
    failed = sum(not r.ok for r in requests)
    return Goodput(dict(limits_ms), met, met / max(1, len(done) + failed), met / seconds)


def _attack(
    requests: Sequence[RequestRecord], gaps: GapTable, options: MeasureOptions
) -> Attack | None:
    attackers = [r for r in requests if r.class_name == ATTACKER and r.ok and r.first_token_s]
    windows = [Window(r.send_s or 0.0, r.first_token_s or 0.0) for r in attackers]
    if not windows:
        return None
    indices = [i for i, r in enumerate(requests) if r.class_name == ATTACKER]
    others = gaps.only(~np.isin(gaps.request, indices))
    hit = others.overlaps(windows)

    def told(table: GapTable) -> Distribution | None:
        return describe(table.ms, table.end_s, options.percentiles, seed=options.seed)

    firsts = np.array([w.seconds * 1e3 for w in windows])
    return Attack(
        len(windows),
        sum(w.seconds for w in windows),
        told(others.only(hit)),
        told(others.only(~hit)),
        describe(firsts, np.array([w.start_s for w in windows]), options.percentiles),
    )


def as_json(metrics: Metrics) -> dict[str, Any]:
    """The figures as plain values, for `--json` and for files."""

    def distribution(found: Distribution | None) -> dict[str, Any] | None:
        return None if found is None else found.as_json()

    attack = metrics.attack
    return {
        "window_s": [metrics.window.start_s, metrics.window.end_s],
        "counts": metrics.counts,
        "request_throughput": metrics.request_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_throughput,
        **{name: distribution(found) for name, found in metrics.latencies.items()},
        "messages": metrics.messages,
        "stalls_over_factor": {
            "factor": metrics.options.stall_factor,
            "stalls": metrics.stalls_by_factor,
        },
        "stalls_over_limit": {
            "limit_ms": metrics.options.stall_limit_ms,
            "stalls": metrics.stalls_by_limit,
        },
        "goodput": metrics.goodput,
        "attack": None
        if attack is None
        else {
            "windows": attack.windows,
            "seconds": attack.seconds,
            "itl_during_ms": distribution(attack.during),
            "itl_outside_ms": distribution(attack.outside),
            "ttft_ms": distribution(attack.ttft_ms),
        },
        "classes": {name: as_json(one) for name, one in metrics.classes.items()},
    }
