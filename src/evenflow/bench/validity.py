"""May this run be believed? Verdicts on the client and on the experiment, each with its figure.

In: the records of a run and what was asked for. Out: findings; one that is not ok makes the run
INVALID. A benchmark whose client was the bottleneck measures the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.bench.gaps import Window, gap_table
from evenflow.bench.measure import ATTACKER, ttft_ms, window_of
from evenflow.bench.probes import CPU, ECHO, LAG
from evenflow.bench.records import INTERRUPTED
from evenflow.bench.workload.draw import VICTIM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.records import Records, RequestRecord

MAX_SHARE = 0.2  # of a measured figure that the client's own delay may be
FLOOR_S = 0.002  # delays below this disturb nothing that is worth measuring
MAX_BUSY = 0.8  # of one core
MIN_RATE = 0.95  # of the rate that was asked for
MAX_FAILED = 0.05
COUNTERS = ("queries", "hits")  # of vLLM's prefix cache, and of ours
MAX_CACHED = 0.2  # of the prompts: chat templates and first words are always shared
EDGE_S = 0.005  # clocks and buffers blur the edges of a window by so much


class Finding(NamedTuple):
    """One check: its name, whether it passed, and the figures in words."""

    name: str
    ok: bool
    fact: str


def judge(records: Records, *, asked_rate: float | None = None) -> list[Finding]:
    """All checks that apply to a run.

    Args:
        records: of the run.
        asked_rate: requests per second that an open loop was to send.
    """
    findings = [
        *_client_delay(records),
        *_client_busy(records),
        *_rate(records, asked_rate),
        *_victims(records),
        *_measured(records),
        *_failures(records),
    ]
    return [f for f in findings if f is not None]


def _client_delay(records: Records) -> list[Finding]:
    """The client's own delay against the gaps and the TTFT that it measured."""
    gaps = gap_table(records.requests)
    firsts = [t for r in records.requests if r.ok and (t := ttft_ms(r)) is not None]
    found = []
    for kind, name in ((LAG, "loop lag"), (ECHO, "echo delay")):
        values = [p.value_s for p in records.probes if p.kind == kind]
        if not values:
            continue
        p50, p99 = np.percentile(values, [50, 99])
        for delay_s, percent in ((p50, 50), (p99, 99)):
            # the smaller of the two suffers more: long gaps are no excuse for a TTFT that is wrong
            measured = [(gaps.ms, "ITL")] if gaps else []
            measured += [(np.array(firsts), "TTFT")] if firsts else []
            if not measured:
                continue
            measured_ms, figure = min((float(np.percentile(v, percent)), n) for v, n in measured)
            allowed_s = max(FLOOR_S, MAX_SHARE * measured_ms / 1e3)
            found.append(
                Finding(
                    f"client {name}",
                    bool(delay_s <= allowed_s),
                    f"p{percent} {name} {delay_s * 1e3:.2f} ms against a p{percent} {figure} of "
                    f"{measured_ms:.1f} ms (allowed {allowed_s * 1e3:.1f} ms)",
                )
            )
    return found


def _client_busy(records: Records) -> list[Finding]:
    """How much of a core the client took, where it is a process of its own."""
    samples = [p for p in records.probes if p.kind == CPU]
    if len(samples) < 2:
        return []
    busy = samples[-1].value_s - samples[0].value_s
    share = busy / max(samples[-1].time_s - samples[0].time_s, 1e-9)
    messages = sum(len(r.messages) for r in records.requests)
    each = f", {busy / messages * 1e6:.0f} microseconds a message" if messages else ""
    return [
        Finding("client cpu", share <= MAX_BUSY, f"{share * 100:.0f} % of one core{each}"),
    ]


def _rate(records: Records, asked: float | None) -> list[Finding]:
    """Whether an open loop kept its schedule.

    A schedule of random moments that a duration cuts short has a rate of its own: the client is
    held to that where it is the lower one.
    """
    sent = [r for r in records.requests if r.send_s is not None and not r.turn]
    sends = sorted(r.send_s for r in sent if r.send_s is not None)
    if asked is None or len(sends) < 3 or sends[-1] <= sends[0]:
        return []
    due = sorted(r.scheduled_s for r in sent)
    if due[-1] > due[0]:
        asked = min(asked, (len(due) - 1) / (due[-1] - due[0]))
    reached = (len(sends) - 1) / (sends[-1] - sends[0])
    return [
        Finding(
            "rate",
            reached >= MIN_RATE * asked,
            f"{reached:.2f} requests/s sent, {asked:.2f} asked for",
        )
    ]


def cached_prompts(records: Records) -> list[str]:
    """A word on prompts that the server knew from an earlier run; none where they share by plan."""
    workload = records.header.get("workload")
    asked = (workload.get("asked") if isinstance(workload, dict) else None) or {}
    if asked.get("prefix_len") or asked.get("dataset_path"):
        return []
    # a conversation goes on from its own words, and a steady stream that is begun anew from its own
    fresh = [
        r for r in records.requests if not r.turn and not (r.class_name == VICTIM and "~" in r.id)
    ]
    told = [r for r in fresh if r.cached_tokens is not None]
    total: float = sum(r.prompt_tokens or 0 for r in told)
    cached: float = sum(r.cached_tokens or 0 for r in told)
    if not told and len(fresh) == len(records.requests):
        total, cached = (_counted(records, f"prefix_cache_{what}_total") for what in COUNTERS)
    if cached <= MAX_CACHED * total:
        return []
    fact = (
        f"the server had {cached / total:.0%} of the prompts' tokens in its prefix cache, so it did "
        "not compute them: these prompts came before; choose another --seed, or more --num-prompts "
        "where a closed loop starts over"
    )
    return [fact]


def _counted(records: Records, name: str) -> float:
    """By how much a counter of the server's /metrics grew in the run."""
    seen = [
        sum(v for key, v in s.values.items() if key.partition("{")[0].endswith(name))
        for s in records.scrapes
    ]
    return seen[-1] - seen[0] if seen else 0.0


def _measured(records: Records) -> list[Finding]:
    """Whether warm-up and cool-down left anything to measure."""
    window = window_of(records)
    inside = any(r.send_s is not None and window.holds(r.send_s) for r in records.requests)
    marked = records.mark("warmup_end") or records.mark("cooldown_start")
    if not records.requests or not marked or inside:
        return []
    fact = "no request was sent between warm-up and cool-down; make them shorter"
    return [Finding("window", ok=False, fact=fact)]


def _victims(records: Records) -> list[Finding]:
    """Whether every stream was decoding all through every long prompt's prefill."""
    victims = [r for r in records.requests if r.class_name == VICTIM]
    windows = [
        Window(r.send_s, r.first_token_s)
        for r in records.requests
        if r.class_name == ATTACKER and r.send_s is not None and r.first_token_s is not None
    ]
    if not victims:
        return []
    streams = {r.id.partition("~")[0] for r in victims}
    if not windows:
        attackers = any(r.class_name == ATTACKER for r in records.requests)
        fact = "no long prompt got a first token"
        return [Finding("victims", ok=False, fact=fact)] if attackers else []
    worst = min(
        len(
            {
                r.id.partition("~")[0]
                for r in victims
                if r.ok
                and len(r.messages) > 1
                and r.messages[0].time_s <= w.start_s + EDGE_S
                and r.messages[-1].time_s >= w.end_s - EDGE_S
            }
        )
        for w in windows
    )
    return [
        Finding(
            "victims",
            worst == len(streams),
            f"{worst} of {len(streams)} streams were decoding all through the "
            f"{'prefill' if len(windows) == 1 else 'worst prefill'}"
            + ("" if worst == len(streams) else _remedy(victims, windows)),
        )
    ]


def _remedy(victims: Sequence[RequestRecord], windows: Sequence[Window]) -> str:
    """What helps where not all streams were decoding."""
    queued = any(
        r.send_s is not None
        and r.send_s <= w.start_s
        and (r.first_token_s is None or r.first_token_s > w.start_s + EDGE_S)
        for r in victims
        for w in windows
    )
    if queued:
        return "; some were waiting for a place: the server runs fewer requests at once"
    return "; raise --output-len"


def _failures(records: Records) -> list[Finding]:
    cut = 0
    if records.mark("interrupted"):  # whoever stopped the run knows about these
        cut = sum(r.error == INTERRUPTED for r in records.requests)
    failed = sum(not r.ok for r in records.requests) - cut
    total = len(records.requests)
    if not total:
        return [Finding("requests", ok=False, fact="no request was sent")]
    fact = f"{failed:,} of {total:,} failed" + (f", {cut:,} were cut off by Ctrl-C" if cut else "")
    return [Finding("requests", failed <= MAX_FAILED * (total - cut), fact)]


def is_valid(findings: Sequence[Finding]) -> bool:
    """Whether all checks passed."""
    return all(f.ok for f in findings)
