"""Blame from a record of every step: what the engine did while a stream stood still.

Each gap is laid over the steps. A step's time beyond that of a decode-only step belongs to the
prompts in it, by their share of the positions; a stream that lost its blocks stood still for that;
time without any step is a pause of the server; and where the engine emitted in time, the client or
the way to it was late. In: a trace. Knows nothing of windows or chance.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.evidence import KnownStep
from evenflow.bench.blame.model import Culprit
from evenflow.bench.records import Message, Records, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.model import Cause, Depth, Episode, Stall
    from evenflow.bench.blame.prefills import Prefills
    from evenflow.trace import RequestRecord as TracedRequest
    from evenflow.trace import StepRecord, Trace

SURE = 0.99
NEARLY = 0.8  # of a loss explained is as good as all: a step's usual time is not known better
DEAREST = (
    3.0  # times the typical cost of a prompt token: a step that took longer had another reason
)
LATE_S = 0.25  # a client's and an engine's view of one token differ by less than this


def records_of(trace: Trace) -> Records:
    """A trace's requests, as if a client without any way to it had seen them."""
    origin = min((r.arrival_s for r in trace.requests), default=0.0)
    records = Records({"imported_from": "evenflow trace", "trace_origin_s": origin})
    records.problems += trace.problems
    for r in trace.requests:
        times = [t - origin for t in r.token_times_s]
        failed = r.finish_reason in {"abort", "error"}
        records.add(
            RequestRecord(
                id=r.id,
                prompt_tokens=r.prompt_tokens,
                output_tokens=r.output_tokens,
                scheduled_s=r.arrival_s - origin,
                send_s=r.arrival_s - origin,
                first_byte_s=times[0] if times else None,
                end_s=r.finish_s - origin,
                messages=[Message(t, 1, 1) for t in times],
                tokens_from="usage",
                usage={"prompt_tokens_details": {"cached_tokens": r.cached_tokens}},
                error=r.finish_reason if failed else "",
                finish_reason=r.finish_reason,
            )
        )
    return records


class StepEvidence:
    """Evidence from our own engine's trace."""

    def __init__(self, trace: Trace) -> None:
        self.engine = "evenflow"
        self.problems: list[str] = []
        self.known_steps: list[KnownStep] = []
        self._trace = trace
        self._steps = sorted(trace.steps, key=lambda step: step.start_s)
        self._starts = [step.start_s for step in self._steps]
        plain = [s.seconds for s in self._steps if not s.chunks]
        if not plain:
            plain = [min((s.seconds for s in self._steps), default=0.0)]
        self._plain_s = float(np.median(plain))
        self._token_s = _typical_token_s(self._steps, self._plain_s)

    def refine(self, prefills: Prefills, records: Records) -> Prefills:
        """Nothing to refine: the steps settle every stall themselves."""
        del records
        return prefills

    def apply(
        self, episodes: Sequence[Episode], records: Records, prefills: Prefills
    ) -> Depth | None:
        """Settle every episode by the steps under its stalls."""
        del prefills
        matched, offset_s = self._match(records)
        names = {traced.id: request for request, traced in matched.items()}
        if not matched:
            self.problems.append(
                "no request of the records is in the trace, so its steps were not used"
            )
            return None
        self.known_steps = [
            KnownStep(
                step.start_s - offset_s,
                step.seconds * 1e3,
                step.num_decodes,
                sum(chunk.length for chunk in step.chunks),
            )
            for step in self._steps
        ]
        for episode in episodes:
            self._settle(episode, matched, names, offset_s)
        return "steps"

    def _match(self, records: Records) -> tuple[dict[str, TracedRequest], float]:
        """Which traced request is which of the client's, and trace time minus run time."""
        origin = records.header.get("trace_origin_s")
        by_id = {traced.id: traced for traced in self._trace.requests}
        matched = {r.id: by_id[r.id] for r in records.requests if r.id in by_id}
        if origin is not None:
            return matched, float(origin)
        if not matched:
            matched = self._match_by_order(records)
        sent = {r.id: r for r in records.requests}
        lags = [
            traced.first_token_s - first_s
            for name, traced in matched.items()
            if traced.first_token_s is not None
            and (first_s := sent[name].first_token_s) is not None
        ]
        return (matched, float(np.median(lags))) if lags else ({}, 0.0)

    def _match_by_order(self, records: Records) -> dict[str, TracedRequest]:
        """By order of arrival and length of the prompt, where the two lists agree."""
        ours = sorted((r for r in records.requests if r.send_s is not None), key=_sent)
        theirs = sorted(self._trace.requests, key=lambda traced: traced.arrival_s)
        matched: dict[str, TracedRequest] = {}
        at = 0
        for request in ours:
            for i in range(at, len(theirs)):
                if request.prompt_tokens in {None, theirs[i].prompt_tokens}:
                    matched[request.id] = theirs[i]
                    at = i + 1
                    break
        return matched

    def _settle(
        self,
        episode: Episode,
        matched: dict[str, TracedRequest],
        names: dict[str, str],
        offset_s: float,
    ) -> None:
        seconds: dict[Cause, float] = {}
        prompts: dict[str, list[float]] = {}
        known = 0
        for stall in episode.stalls:
            traced = matched.get(stall.request_id)
            if traced is None:
                continue
            known += 1
            for cause, s in self._account(stall, traced, offset_s, prompts, names).items():
                seconds[cause] = seconds.get(cause, 0.0) + s
        if not known or not seconds:
            return
        lost_s = episode.stream_ms / 1e3 * known / len(episode.stalls)
        cause = max(seconds, key=lambda name: seconds[name])
        episode.cause = cause
        episode.confidence = min(SURE, seconds[cause] / max(lost_s, 1e-9))
        episode.culprits = []
        if cause == "prefill":
            episode.share = seconds[cause] / max(lost_s, 1e-9)
            episode.share = episode.share if episode.share < NEARLY else 1.0
            episode.culprits = sorted(
                (
                    Culprit(name, s * 1e3 / known, tokens / known)
                    for name, (s, tokens) in prompts.items()
                ),
                key=lambda culprit: -culprit.ms,
            )
        episode.evidence = "by the steps: " + ", ".join(
            f"{name.replace('_', ' ')} {s * 1e3 / known:.0f} ms"
            for name, s in sorted(seconds.items(), key=lambda item: -item[1])
        )

    def _account(
        self,
        stall: Stall,
        traced: TracedRequest,
        offset_s: float,
        prompts: dict[str, list[float]],
        names: dict[str, str],
    ) -> dict[Cause, float]:
        """Seconds of one gap by cause; adds to `prompts` the seconds and tokens of each prompt."""
        start_s, end_s = stall.start_s + offset_s, stall.end_s + offset_s
        if _emitted_in_time(traced.token_times_s, start_s, end_s):
            return {"client": stall.excess_ms / 1e3}
        found: dict[Cause, float] = {}
        stepped_s = 0.0
        lost = False
        low = bisect_right(self._starts, start_s) - 1
        for step in self._steps[max(0, low) : bisect_left(self._starts, end_s)]:
            shared_s = min(end_s, step.start_s + step.seconds) - max(start_s, step.start_s)
            if shared_s <= 0:
                continue
            stepped_s += shared_s
            lost = lost or traced.id in step.preempted
            part = shared_s / step.seconds
            if lost or any(chunk.request_id == traced.id for chunk in step.chunks):
                _add(found, "preemption", shared_s)
                continue
            beyond_s = max(0.0, step.seconds - self._plain_s) * part
            if step.chunks:
                tokens = sum(chunk.length for chunk in step.chunks) * part
                prefill_s = min(beyond_s, DEAREST * self._token_s * tokens)
                _add(found, "prefill", prefill_s)
                _share(step, prefill_s, part, prompts, names)
                if beyond_s > prefill_s:
                    _add(found, "server_pause", beyond_s - prefill_s)
            elif step.seconds > 2 * self._plain_s:
                _add(found, "server_pause", beyond_s)
        idle_s = end_s - start_s - stepped_s
        if idle_s > stall.normal_ms / 1e3:
            _add(found, "server_pause", idle_s)
        return found


def _typical_token_s(steps: Sequence[StepRecord], plain_s: float) -> float:
    """Seconds that a prompt token adds to a step: the median over all prompt tokens of the run."""
    costs = []
    for step in steps:
        tokens = sum(chunk.length for chunk in step.chunks)
        if tokens:
            costs.append((max(0.0, step.seconds - plain_s) / tokens, tokens))
    if not costs:
        return 0.0
    costs.sort()
    weights = np.cumsum([tokens for _, tokens in costs])
    return costs[int(np.searchsorted(weights, weights[-1] / 2))][0]


def _sent(request: RequestRecord) -> float:
    return request.send_s or 0.0


def _add(found: dict[Cause, float], cause: Cause, seconds: float) -> None:
    found[cause] = found.get(cause, 0.0) + seconds


def _share(
    step: StepRecord,
    beyond_s: float,
    part: float,
    prompts: dict[str, list[float]],
    names: dict[str, str],
) -> None:
    """Share a step's extra time out over its prompts, by positions computed."""
    total = sum(chunk.length for chunk in step.chunks)
    for chunk in step.chunks:
        name = names.get(chunk.request_id, chunk.request_id)
        entry = prompts.setdefault(name, [0.0, 0.0])
        entry[0] += beyond_s * chunk.length / total
        entry[1] += chunk.length * part


def _emitted_in_time(times_s: Sequence[float], start_s: float, end_s: float) -> bool:
    """Whether the engine's own gaps in this stretch were all less than half as long."""
    inside = [t for t in times_s if start_s + 0.02 * (end_s - start_s) < t < end_s - LATE_S]
    edges = [start_s, *inside, end_s]
    longest = max(b - a for a, b in itertools.pairwise(edges))
    return bool(inside) and longest < 0.5 * (end_s - start_s)
