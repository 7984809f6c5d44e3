"""Builds the records of steps and requests and hands them to whoever observes.

In: what the engine did and when, in seconds of its clock. Out: `StepRecord` and `RequestRecord`.
An observer that fails is dropped with a word in the log; it never stops a stream.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from evenflow.errors import EvenflowError
from evenflow.trace import ChunkRecord, RequestRecord, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.schedule.request import Request
    from evenflow.schedule.scheduler import Scheduler
    from evenflow.types import FinishReason, StepPlan

log = logging.getLogger("evenflow")


class Observer(Protocol):
    """Takes records, on the engine's thread; `TraceWriter` is one."""

    def step(self, record: StepRecord) -> None:
        """Take the record of a step that was committed."""
        ...

    def request(self, record: RequestRecord) -> None:
        """Take the record of a request that has ended."""
        ...


class _Times:
    """What became of one request, and when."""

    __slots__ = ("arrival_s", "cached_tokens", "first_scheduled_s", "token_times_s")

    def __init__(self, arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.first_scheduled_s: float | None = None
        self.cached_tokens = 0
        self.token_times_s: list[float] = []


class Journal:
    """Keeps the times of open requests; makes records only while somebody observes."""

    def __init__(self, scheduler: Scheduler, observers: Sequence[Observer] = ()) -> None:
        self.observers = list(observers)
        self._scheduler = scheduler
        self._times: dict[str, _Times] = {}
        self._num_recomputed_tokens = 0
        self._num_accepted_tokens = 0

    def add_observer(self, observer: Observer) -> None:
        """Send all later records to one more observer."""
        stats = self._scheduler.stats()
        if not self.observers:  # what nobody saw is not the next step's
            self._num_recomputed_tokens = stats.num_recomputed_tokens
            self._num_accepted_tokens = stats.num_accepted_tokens
        self.observers.append(observer)

    def arrive(self, request: Request, now_s: float) -> None:
        """A request was queued."""
        self._times[request.id] = _Times(now_s)

    def plan(self, plan: StepPlan, now_s: float) -> list[int]:
        """A step is about to run: note who is scheduled for the first time.

        Returns:
            For each chunk, how many positions its request found in the prefix cache.
        """
        cached = []
        for span in plan.spans[plan.num_decodes :]:
            times = self._times[span.request.id]
            if times.first_scheduled_s is None:
                times.first_scheduled_s = now_s
                times.cached_tokens = span.request.num_cached_tokens
            cached.append(span.request.num_cached_tokens)
        return cached

    def token(self, request_id: str, now_s: float) -> int | None:
        """A token was drawn.

        Returns:
            For the first one, how many of the prompt's tokens were in the prefix cache.
        """
        times = self._times[request_id]
        times.token_times_s.append(now_s)
        return times.cached_tokens if len(times.token_times_s) == 1 else None

    def end(self, request: Request, finish: FinishReason, now_s: float) -> None:
        """A request got its terminal event."""
        times = self._times.pop(request.id)
        if not self.observers:
            return
        record = RequestRecord(
            id=request.id,
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=times.cached_tokens,
            output_tokens=len(times.token_times_s),
            arrival_s=times.arrival_s,
            first_scheduled_s=times.first_scheduled_s,
            first_token_s=times.token_times_s[0] if times.token_times_s else None,
            token_times_s=times.token_times_s,
            finish_s=now_s,
            finish_reason=finish,
            num_preemptions=request.num_preemptions,
            priority=request.params.priority,
        )
        self._tell(lambda observer: observer.request(record))

    def step(self, plan: StepPlan, cached: Sequence[int], start_s: float, now_s: float) -> None:
        """A step was committed.

        Args:
            plan: the step.
            cached: what `plan` returned for it.
            start_s: when it was handed to the runner.
            now_s: when its tokens were there.
        """
        if not self.observers:
            return
        stats = self._scheduler.stats()
        recomputed = stats.num_recomputed_tokens - self._num_recomputed_tokens
        self._num_recomputed_tokens = stats.num_recomputed_tokens
        accepted = stats.num_accepted_tokens - self._num_accepted_tokens
        self._num_accepted_tokens = stats.num_accepted_tokens
        drafted = sum(s.length for s in plan.spans[: plan.num_decodes]) - plan.num_decodes
        chunks = zip(plan.spans[plan.num_decodes :], cached, strict=True)
        record = StepRecord(
            serial=plan.serial,
            start_s=start_s,
            seconds=now_s - start_s,
            predicted_s=None,
            num_decodes=plan.num_decodes,
            chunks=[ChunkRecord(s.request.id, s.start, s.length, c) for s, c in chunks],
            num_tokens=plan.num_tokens,
            budget=plan.budget,
            budget_reason=plan.reason,
            blocked=plan.blocked,
            kv_blocks_used=stats.kv.held,
            kv_blocks_cached=stats.kv.cached,
            kv_blocks_free=stats.kv.free,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            preempted=list(plan.preempted),
            recomputed_tokens=recomputed,
            graph="none: cpu",
            draft_tokens=drafted,
            accepted_tokens=accepted,
        )
        self._tell(lambda observer: observer.step(record))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in list(self.observers):
            try:
                call(observer)
            except EvenflowError as error:
                self.observers.remove(observer)
                log.warning("a trace was cut short: %s", error)
