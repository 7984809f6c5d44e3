"""Which prompts get how much of a step: admission, lanes, chunks.

A lane is a seat for a prompt that is part-way through; a prompt that finishes within the step
leaves its lane at once and the next one takes it. One lane is kept for prompts that fit into a
single step, so a few very long prompts never bar the door to the short ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from evenflow.schedule.order import OrderedRequests
from evenflow.schedule.request import Request, Stage
from evenflow.types import Span

if TYPE_CHECKING:
    from evenflow.schedule.kv import KvLedger
    from evenflow.schedule.options import SchedulerOptions

# Waiting prompts looked at in one scan: bounds the cost of a step, not the length of the queue.
SCAN_LIMIT = 64


class PrefillPlanner(ABC):
    """What both policies share: taking prompts off the queue under the rules of KV and seats."""

    def __init__(
        self,
        options: SchedulerOptions,
        kv: KvLedger,
        waiting: OrderedRequests,
        running: dict[str, Request],
    ) -> None:
        self._options = options
        self._kv = kv
        self._waiting = waiting
        self._running = running
        self._lanes = OrderedRequests()
        self._blocked = ""
        self._only_kv = True  # whether the last scan met no other refusal
        self._in_vain = (-1, -1)  # queue and blocks as they were when a scan found "kv" only
        self.num_recomputed_tokens = 0

    @abstractmethod
    def plan(self, room: int, serial: int) -> tuple[list[Span], str]:
        """Share out `room` tokens of step `serial`.

        Returns:
            The chunks, and why the first prompt that waits got nothing ("" when none waits).
        """

    @abstractmethod
    def _screen(self, num_tokens: int) -> str:
        """Whether a prompt with `num_tokens` left to compute may enter now.

        Returns:
            "" for yes, "lanes" to look further, "budget" to stop looking.
        """

    def is_wanted(self) -> bool:
        """Whether any prompt is part-way or could be admitted, KV permitting."""
        if self._lanes:
            return True
        return bool(self._waiting) and len(self._running) < self._options.max_num_seqs

    def drop(self, request: Request) -> None:
        """Forget a request that was cancelled or preempted in the middle of its prompt."""
        if request in self._lanes:
            self._lanes.remove(request)

    def _admit(self, *, now: bool) -> Request | None:
        """Admit the first prompt in order that may enter and fits; note why others did not."""
        if not self._waiting:
            return None
        if len(self._running) >= self._options.max_num_seqs:
            self._note("seqs")
            return None
        if not self._kv.has_room():
            self._note("kv")
            return None
        state = (self._waiting.version, self._kv.num_openings)
        if state == self._in_vain:
            self._note("kv")
            return None
        request = self._scan(now=now)
        if request is None and self._only_kv:
            self._in_vain = state
        return request

    def _scan(self, *, now: bool) -> Request | None:
        """The first waiting prompt that may enter and fits, entered."""
        self._only_kv = True
        self._kv.forget_wishes()
        passed: list[Request] = []
        for count, request in enumerate(self._waiting):
            if count == SCAN_LIMIT:
                return None
            left = request.num_prefill_tokens - self._kv.match(request)
            refusal = self._screen(max(left, 1))  # a full hit still computes one token
            if not refusal:
                reserve_all = request.num_preemptions >= self._options.max_preemptions
                refusal = self._kv.admit(request, reserve_all=reserve_all, now=now)
            if not refusal:
                for other in passed:
                    other.num_skips += 1
                self._enter(request)
                return request
            self._note(refusal)
            self._only_kv = self._only_kv and refusal == "kv"
            if refusal == "kv":
                if request.num_skips >= self._options.max_admission_skips:
                    return None
                passed.append(request)
            elif refusal == "budget":
                return None
        return None

    def _enter(self, request: Request) -> None:
        self._waiting.remove(request)
        self._running[request.id] = request
        request.stage = Stage.PREFILL
        # a full hit still needs the last position's logits: it is computed, and not written
        start = min(request.num_cached_tokens, request.num_prefill_tokens - 1)
        request.num_computed_tokens = request.num_planned_tokens = start
        recomputed = max(0, request.num_lost_tokens - start)
        request.num_recomputed_tokens += recomputed
        self.num_recomputed_tokens += recomputed
        request.num_lost_tokens = 0
        self._lanes.add(request)

    def _note(self, reason: str) -> None:
        self._blocked = self._blocked or reason

    def _chunk(self, request: Request, start: int, serial: int) -> Span:
        """The span of what was granted to a request in this step, from `start`."""
        end = request.num_planned_tokens
        num_logits = int(end == request.num_prefill_tokens)
        if request.scores_prompt:
            first = max(start, request.num_scored_tokens)
            if first < request.num_prompt_tokens - 1:
                num_logits = end - first
        request.num_in_flight += 1
        request.last_step = serial
        return Span(request, start, end - start, num_logits)

    def check(self) -> None:
        """What must hold between two calls; for tests.

        Raises:
            AssertionError: it does not.
        """
        for request in self._lanes:
            assert request.stage is Stage.PREFILL, f"{request} has a lane"
            assert request.num_planned_tokens < request.num_prefill_tokens, f"{request} is done"


class ChunkedPrefill(PrefillPlanner):
    """Slices of prompts beside the decodes; the default."""

    def plan(self, room: int, serial: int) -> tuple[list[Span], str]:
        """Half of the room in order, the other half to the shortest remaining.

        The first half is what bounds everybody's wait: whatever arrives later, the prompts ahead
        of a request and its own get at least half of every step's room until it is done.
        """
        self._blocked = ""
        starts: dict[Request, int] = {}
        stuck: set[Request] = set()  # can take no more in this step: KV, or its own cap
        half = (room + 1) // 2
        used = 0
        self._fill_lanes()
        while used < room:
            in_order = used < half
            request = self._next(stuck, in_order=in_order)
            if request is None:
                break
            start = starts.setdefault(request, request.num_planned_tokens)
            used += self._grant(request, start, (half if in_order else room) - used, stuck)
            if request.num_planned_tokens == request.num_prefill_tokens:
                self._lanes.remove(request)
                self._fill_lanes()
        chunks = [
            self._chunk(request, start, serial)
            for request, start in starts.items()
            if request.num_planned_tokens > start
        ]
        if self._waiting or stuck or any(r.last_step != serial for r in self._lanes):
            self._note("budget" if used == room else "lanes")
            return chunks, self._blocked
        return chunks, ""

    def _screen(self, num_tokens: int) -> str:
        """A prompt of more than one step's budget leaves one lane to shorter ones."""
        lanes = self._options.max_partial_prefills
        budget = self._options.max_num_batched_tokens
        if lanes == 1 or num_tokens <= budget:
            return ""
        long = sum(r.num_prefill_tokens - r.num_planned_tokens > budget for r in self._lanes)
        return "" if long < lanes - 1 else "lanes"

    def _fill_lanes(self) -> None:
        while len(self._lanes) < self._options.max_partial_prefills:
            if self._admit(now=False) is None:
                return

    def _next(self, stuck: set[Request], *, in_order: bool) -> Request | None:
        able = [r for r in self._lanes if r not in stuck]
        if not able:
            return None
        if in_order:
            return able[0]
        return min(able, key=lambda r: r.num_prefill_tokens - r.num_planned_tokens)

    def _grant(self, request: Request, start: int, room: int, stuck: set[Request]) -> int:
        """Lengthen a request's chunk by at most `room`; returns by how much."""
        planned = request.num_planned_tokens
        end = min(request.num_prefill_tokens, planned + room)
        threshold = self._options.long_prefill_token_threshold
        if threshold and (len(self._running) > 1 or self._waiting):
            end = min(end, start + threshold)
        reached = self._kv.grow(request, end)
        if reached < end:
            stuck.add(request)
            self._note("kv")
            reached = max(reached, planned)
        elif threshold and end == start + threshold < request.num_prefill_tokens:
            stuck.add(request)
            self._note("threshold")
        request.num_planned_tokens = reached
        return reached - planned


class WholePrefill(PrefillPlanner):
    """Whole prompts in steps of their own, for comparison and for batch jobs."""

    _room = 0
    _used = 0

    def plan(self, room: int, serial: int) -> tuple[list[Span], str]:
        """As many whole prompts, in order, as fit into `room`; at least one, however long."""
        self._blocked = ""
        self._room = room
        self._used = 0
        chunks = []
        while (request := self._admit(now=True)) is not None:
            start = request.num_planned_tokens
            reached = self._kv.grow(request, request.num_prefill_tokens)
            assert reached == request.num_prefill_tokens, "admission promised the whole prompt"
            request.num_planned_tokens = reached
            self._lanes.remove(request)
            self._used += reached - start
            chunks.append(self._chunk(request, start, serial))
        return chunks, self._blocked if self._waiting else ""

    def _screen(self, num_tokens: int) -> str:
        return "" if self._used == 0 or self._used + num_tokens <= self._room else "budget"
