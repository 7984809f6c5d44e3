"""Blame with the help of another engine's log.

The log has no request ids and its stamps are often whole seconds, so it cannot name anybody. But
it knows how many prompt tokens a step held: a stall whose step held none was no prefill, and one
whose step held many was. In: a parsed log. Out: episodes made surer, or corrected.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.blame.evidence import KnownStep
from evenflow.bench.blame.model import Culprit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.logs import EngineLog, LogStep, SlotTiming
    from evenflow.bench.blame.model import Depth, Episode
    from evenflow.bench.blame.prefills import Prefills
    from evenflow.bench.records import Records, RequestRecord

CONFIRMED = 0.95
NEAR = 0.15  # of its length: a logged step and the stall that it made differ by less than this
COARSE_S = 1.0  # the resolution of a stamp without a fraction
FINE_S = 0.05
ROOM_S = 0.1  # how much later than it happened a line may be written, or a message seen
ZONES_S = [quarter * 900.0 for quarter in range(-48, 57)]  # of all time zones, from -12 to +14 h


class LogEvidence:
    """Evidence from a log of vLLM, SGLang or llama.cpp."""

    def __init__(self, log: EngineLog) -> None:
        self._log = log
        self.engine = log.engine
        self.known_steps: list[KnownStep] = []
        self.problems = [log.words()] if log.unrecognised or not log.engine else []
        if len(log.engines_seen) > 1:
            self.problems.append(
                f"the log mixes {len(log.engines_seen)} engines; a step may be taken for a "
                "neighbour's"
            )

    def refine(self, prefills: Prefills, records: Records) -> Prefills:
        """Set windows to llama.cpp's own times, where a request with as many tokens is found."""
        if not self._log.slots:
            return prefills
        matched = self._match_slots(records.requests)
        starts = prefills.start_s.copy()
        for i, request in enumerate(prefills.request):
            slot = matched.get(int(request))
            if slot is not None:
                sent_s = records.requests[int(request)].send_s or 0.0
                starts[i] = max(sent_s, float(prefills.end_s[i]) - slot.ms / 1e3)
        if len(matched) < len(self._log.slots):
            self.problems.append(
                f"{len(self._log.slots) - len(matched):,} of {len(self._log.slots):,} slot timings "
                "fit no request of the records"
            )
        return replace(prefills, start_s=starts)

    def _match_slots(self, requests: Sequence[RequestRecord]) -> dict[int, SlotTiming]:
        """A slot speaks when its request ends: match in that order, by prompt tokens.

        A prompt's first tokens may have come from the cache, so a slot may count fewer.
        """
        ended = sorted(
            (i for i, r in enumerate(requests) if r.end_s is not None),
            key=lambda i: requests[i].end_s or 0.0,
        )
        matched: dict[int, SlotTiming] = {}
        for slot in self._log.slots:
            for i in ended:
                tokens = requests[i].prompt_tokens
                if i not in matched and (tokens is None or 0 <= tokens - slot.tokens <= 2):
                    matched[i] = slot
                    break
        return matched

    def apply(
        self, episodes: Sequence[Episode], records: Records, prefills: Prefills
    ) -> Depth | None:
        """Confirm or correct each episode by the logged step that it must have been."""
        del prefills
        if self._log.slots:
            return "log"
        began = records.header.get("started_unix_s")
        steps = [step for step in self._log.steps if step.stamp_s is not None]
        if began is None or not steps:
            self.problems.append(
                "the log's steps were not used: "
                + ("its lines carry no time" if began else "the records do not say when they began")
            )
            return None
        zone_s = self._zone(steps, float(began), records)
        if zone_s is None:
            self.problems.append("none of the log's lines falls into the run")
            return None
        timed = [(float(step.stamp_s or 0.0) - float(began) - zone_s, step) for step in steps]
        self.known_steps = _known(timed)
        for episode in episodes:
            if self._log.engine == "vllm":
                self._iteration(episode, timed, records)
            else:
                self._batch(episode, timed, records)
        return "log"

    def _zone(self, steps: Sequence[LogStep], began: float, records: Records) -> float | None:
        """The time zone under which most lines fall into the run; UTC when it does as well."""
        end_s = max((r.end_s or 0.0 for r in records.requests), default=0.0)
        stamps = np.array([step.stamp_s for step in steps]) - began

        def inside(zone_s: float) -> int:
            at = stamps - zone_s
            return int(((at > -COARSE_S) & (at < end_s + COARSE_S)).sum())

        best = max(ZONES_S, key=lambda zone_s: (inside(zone_s), -abs(zone_s)))
        if not inside(best):
            return None
        if best:
            self.problems.append(f"the log's times were taken as UTC{best / 3600:+g} h")
        return best

    def _iteration(
        self,
        episode: Episode,
        timed: Sequence[tuple[float, LogStep]],
        records: Records,
    ) -> None:
        """vLLM: the iteration, or two in a row, as long as the stall and logged when it ended.

        Every iteration has a line, so where none was about as long, the engine's steps are cleared.
        """
        if episode.alone or episode.cause in {"client", "buffering"}:
            return
        near = [step for at_s, step in timed if _fits(at_s, step, episode.end_s)]
        if not near:
            return
        length_ms = (episode.end_s - episode.start_s) * 1e3
        near_ms = max(NEAR * length_ms, 1.5 * episode.stalls[0].normal_ms)
        ways = [(step.ms or 0.0, step.prompt_tokens, step.line) for step in near]
        ways += [
            ((a.ms or 0.0) + (b.ms or 0.0), a.prompt_tokens + b.prompt_tokens, b.line)
            for a, b in pairwise(near)
        ]
        ms, tokens, line = min(ways, key=lambda way: abs(way[0] - length_ms))
        if abs(ms - length_ms) > near_ms:
            longest_ms = max(step.ms or 0.0 for step in near)
            episode.cause, episode.culprits = "server_pause", []
            episode.confidence = 0.8
            episode.evidence = f"no step near it in the log took longer than {longest_ms:.0f} ms"
            return
        told = f"the log has {ms:.0f} ms of steps up to line {line:,} with "
        if tokens:
            _confirm(episode, tokens, records)
            episode.evidence = f"{told}{tokens:,} prompt tokens; {episode.evidence}"
        else:
            episode.cause, episode.culprits = "server_pause", []
            episode.confidence = CONFIRMED
            episode.evidence = f"{told}no prompt tokens"

    def _batch(
        self,
        episode: Episode,
        timed: Sequence[tuple[float, LogStep]],
        records: Records,
    ) -> None:
        """SGLang: a prefill batch is logged when it begins, a retraction when it happens."""
        near = [step for at_s, step in timed if _within(at_s, step, episode)]
        if episode.alone:
            if any(step.kind == "retract" for step in near):
                episode.cause, episode.confidence = "preemption", CONFIRMED
                episode.evidence = f"the log has a retraction then; {episode.evidence}"
            return
        if episode.cause in {"client", "buffering"}:
            return
        tokens = max((s.prompt_tokens for s in near if s.kind == "prefill"), default=0)
        if tokens and episode.cause == "prefill":
            _confirm(episode, tokens, records)
            episode.evidence = (
                f"the log has a prefill batch of {tokens:,} tokens then; {episode.evidence}"
            )
        elif not tokens:
            episode.cause, episode.culprits = "server_pause", []
            episode.confidence = 0.9
            episode.evidence = "the log has no prefill batch then"


def _known(timed: Sequence[tuple[float, LogStep]]) -> list[KnownStep]:
    """The steps as a picture shows them: those stamped with one second follow one another in it."""
    found: list[KnownStep] = []
    last_s, within_s = -1.0, 0.0
    for at_s, step in timed:
        if step.kind == "retract":
            continue
        within_s = within_s if at_s == last_s else 0.0
        last_s = at_s
        start_s = at_s + within_s - (0.0 if step.ms is None or within_s else step.ms / 1e3)
        within_s += (step.ms or 0.0) / 1e3
        found.append(KnownStep(start_s, step.ms, step.num_decodes or 0, step.prompt_tokens))
    return found


def _fits(at_s: float, step: LogStep, end_s: float) -> bool:
    """Whether a line stamped so can have been written when the stall ended."""
    unit_s = FINE_S if step.precise else COARSE_S
    return at_s - ROOM_S <= end_s <= at_s + unit_s + ROOM_S


def _within(at_s: float, step: LogStep, episode: Episode) -> bool:
    """Whether a line stamped so can have been written during the stall."""
    unit_s = FINE_S if step.precise else COARSE_S
    return at_s <= episode.end_s and at_s + unit_s >= episode.start_s - ROOM_S


def _confirm(episode: Episode, tokens: int, records: Records) -> None:
    """A prefill for sure; its tokens are those of the log, and who it was is the client's guess."""
    if episode.cause != "prefill":
        waiting = [r for r in records.requests if _waited(r, episode)]
        if not waiting:
            episode.cause, episode.culprits = "unknown", []
            episode.evidence = "of somebody whom the client does not know"
            return
        longest = max(waiting, key=lambda r: r.prompt_tokens or 0)
        episode.cause = "prefill"
        episode.culprits = [Culprit(longest.id, episode.excess_ms, float(tokens))]
        episode.evidence = f"{longest.id} was waiting for its first token"
    total = sum(culprit.tokens for culprit in episode.culprits)
    episode.culprits = [c._replace(tokens=c.tokens / total * tokens) for c in episode.culprits]
    episode.confidence = max(episode.confidence, CONFIRMED)


def _waited(request: RequestRecord, episode: Episode) -> bool:
    """Whether a request was sent before the stall's end and had no token at its start."""
    until_s = request.first_token_s if request.first_token_s is not None else request.end_s
    if request.send_s is None or until_s is None:
        return False
    return request.send_s < episode.end_s and until_s > episode.start_s
