"""Runs a workload through a driver: who is sent when, and what is written down.

Open loop: every request has its moment, whether or not earlier ones are done; a cap makes it wait,
and the record shows for how long. Closed loop: a fixed number are under way. Attack: steady streams
run until the long prompts that land among them are through.

In: a workload, a driver, a sink for records. Out: records; nothing is computed here.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from evenflow.bench.drivers.interface import Turn
from evenflow.bench.records import CUT, INTERRUPTED, Mark, Probe, Records, RequestRecord, Scrape
from evenflow.bench.workload.prompts import Calibration, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from evenflow.bench.drivers.interface import Driver
    from evenflow.bench.workload.plan import PlannedRequest, Workload

OPEN_EVERY_S = 2.0
SETTLE_S = 1.0  # steady streams go on for so long after the last long prompt is through
DRAIN_S = 30.0  # grace for what still runs when a limited time is over


class Sink(Protocol):
    """Takes records as they come."""

    def add(self, record: RequestRecord | Probe | Scrape | Mark) -> None:
        """Take one."""
        ...

    def add_open(self, requests: Sequence[RequestRecord]) -> None:
        """Take what is new of requests that still run."""
        ...


@dataclass(frozen=True, slots=True)
class ConductOptions:
    """How to run.

    Attributes:
        max_concurrency: requests under way at most; None is no limit in an open loop and 1 in a
            closed one.
        duration_s: nothing is begun after it; a closed loop starts over until then.
        warmup_s: what is sent before it is not measured.
        cooldown_s: what is sent after the end less this is not measured.
        drain_s: how long requests may go on after the end of a limited duration.
    """

    max_concurrency: int | None = None
    duration_s: float | None = None
    warmup_s: float = 0.0
    cooldown_s: float = 0.0
    drain_s: float = DRAIN_S


@dataclass(slots=True)
class State:
    """How far a run is, for whoever watches; `expected_s` is when it should end, once known."""

    total: int
    records: Records
    running: dict[str, RequestRecord] = field(default_factory=dict)
    num_sent: int = 0
    expected_s: float | None = None
    is_over: bool = False


class Clock:
    """Seconds since the run's zero; monotonic, and callable from any thread."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Make now the run's zero."""
        self.started_unix_s = time.time()
        self.started_monotonic_s = time.perf_counter()

    def __call__(self) -> float:
        """Now."""
        return time.perf_counter() - self.started_monotonic_s


class Conductor:
    """One run.

    Args:
        workload: what to send.
        driver: how to send it.
        options: how to run.
        calibration: how long the words of a prompt are in tokens.
        clock: the run's clock.
    """

    def __init__(
        self,
        workload: Workload,
        driver: Driver,
        *,
        options: ConductOptions,
        calibration: Calibration,
        clock: Callable[[], float],
    ) -> None:
        self._workload = workload
        self._driver = driver
        self._sink: Sink | None = None
        self._options = options
        self._calibration = calibration
        self.clock = clock
        self.state = State(len(workload.requests), Records(), expected_s=options.duration_s)
        self._prepared: dict[str, object] = {}
        self._texts: dict[str, str] = {}
        self._followers: dict[str, list[PlannedRequest]] = {}
        self._written: dict[str, int] = {}
        self._why = INTERRUPTED  # of requests that are cut off
        for planned in workload.requests:
            if planned.turn:
                self._followers.setdefault(planned.session, []).append(planned)
        cap = options.max_concurrency or (1 if workload.is_closed else None)
        self._places = asyncio.Semaphore(cap) if cap else None

    def prepare(self) -> None:
        """Make all prompts, so that none is made while streams are being watched."""
        for planned in self._workload.requests:
            text = planned.text or text_of(planned.segments, self._calibration)
            self._texts[planned.id] = text
            if not planned.turn:
                self._prepared[planned.id] = self._driver.prepare(self._turn(planned))

    async def run(
        self, sink: Sink, probes: Sequence[Coroutine[object, object, object]] = ()
    ) -> Records:
        """Run to the end, or to cancellation: then what runs is written down as interrupted.

        Args:
            sink: where records go as they come; they are kept in `state.records` as well.
            probes: coroutines that run beside the work.
        """
        self._sink = sink
        helpers = [asyncio.create_task(p) for p in (*probes, self._write_open())]
        work = asyncio.create_task(self._work())
        try:
            await work
        finally:
            if not work.done():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._mark("end")
            self.state.is_over = True
        return self.state.records

    def add(self, record: RequestRecord | Probe | Scrape | Mark) -> None:
        """Write a record down and keep it."""
        self.state.records.add(record)
        if self._sink is not None:
            self._sink.add(record)

    def _mark(self, kind: str, note: str = "") -> None:
        self.add(Mark(self.clock(), kind, note))

    async def _work(self) -> None:
        options = self._options
        timers: list[asyncio.Task[None]] = []
        if options.warmup_s:
            timers.append(asyncio.create_task(self._mark_at(options.warmup_s, "warmup_end")))
        if options.duration_s is not None and options.cooldown_s:
            at_s = max(0.0, options.duration_s - options.cooldown_s)
            timers.append(asyncio.create_task(self._mark_at(at_s, "cooldown_start")))
        roots = [r for r in self._workload.requests if not r.turn]
        try:
            if self._workload.has_streams:
                await self._attack(roots)
            elif self._workload.is_closed:
                await self._closed(roots)
            else:
                await self._open(roots)
        finally:
            for timer in timers:
                timer.cancel()

    async def _mark_at(self, at_s: float, kind: str) -> None:
        await self._sleep_until(at_s)
        self._mark(kind)

    async def _open(self, roots: Sequence[PlannedRequest]) -> None:
        options = self._options
        last_s = max((r.at_s or 0.0 for r in roots), default=0.0)
        if self.state.expected_s is None and last_s > 0:
            self.state.expected_s = last_s
        cool_s = last_s - options.cooldown_s
        timer = None
        if options.cooldown_s and options.duration_s is None:
            timer = asyncio.create_task(self._mark_at(max(0.0, cool_s), "cooldown_start"))
        tasks = []
        try:
            for planned in sorted(roots, key=lambda r: r.at_s or 0.0):
                at_s = planned.at_s or 0.0
                if options.duration_s is not None and at_s > options.duration_s:
                    break
                await self._sleep_until(at_s)
                tasks.append(asyncio.create_task(self._session(planned, at_s)))
            await self._finish(tasks)
        finally:
            await _cancel(tasks)
            if timer is not None:
                timer.cancel()

    async def _closed(self, roots: Sequence[PlannedRequest]) -> None:
        end_s = self._options.duration_s
        tasks: list[asyncio.Task[None]] = []
        places = self._places or asyncio.Semaphore(1)
        self._places = None  # this loop does the waiting
        queue = deque(roots)
        cycle = 0
        try:
            while True:
                if not queue:
                    if end_s is None or not roots:
                        break
                    cycle += 1
                    queue.extend(replace(r, id=f"{r.id}~{cycle}") for r in roots)
                left_s = None if end_s is None else max(0.0, end_s - self.clock())
                try:
                    await asyncio.wait_for(places.acquire(), left_s)
                except TimeoutError:
                    break  # nobody was done before the duration was over
                free_s = self.clock()
                if end_s is not None and free_s >= end_s:
                    break
                task = asyncio.create_task(self._session(queue.popleft(), free_s))
                task.add_done_callback(lambda _: places.release())
                tasks.append(task)
            if end_s is None and self._options.cooldown_s:
                self._mark("cooldown_start", "no more requests to begin")
            await self._finish(tasks)
        finally:
            await _cancel(tasks)

    async def _finish(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait for what runs; for a limited time when the run's duration is limited."""
        if not tasks:
            return
        limit = self._options.drain_s if self._options.duration_s is not None else None
        _, late = await asyncio.wait(tasks, timeout=limit)
        if late:
            self._mark("drain_end", f"{len(late)} requests were cut off")
            self._why = f"cut off: it still ran {limit:g} s after the duration"

    async def _attack(self, roots: Sequence[PlannedRequest]) -> None:
        steady = [r for r in roots if r.steady]
        others = [r for r in roots if not r.steady]
        tasks = [asyncio.create_task(self._steady(r)) for r in steady]
        try:
            ready_s = await self._all_decoding(steady, tasks)
            self._mark("streams_ready", f"{len(steady)} streams are decoding")
            last_s = max((r.at_s or 0.0 for r in others), default=0.0)
            if self.state.expected_s is None and others:
                self.state.expected_s = ready_s + last_s + SETTLE_S
            landed = []
            for planned in sorted(others, key=lambda r: r.at_s or 0.0):
                at_s = (planned.at_s or 0.0) + (ready_s if planned.after_ready else 0.0)
                await self._sleep_until(at_s)
                self._mark("inject", planned.id)
                landed.append(asyncio.create_task(self._session(planned, at_s)))
            if landed:
                await asyncio.wait(landed)
            if self._options.duration_s is not None:
                await self._sleep_until(self._options.duration_s)
            elif landed:
                await asyncio.sleep(SETTLE_S)
            else:
                await asyncio.wait(tasks)
        finally:
            await _cancel(tasks)

    async def _all_decoding(
        self, steady: Sequence[PlannedRequest], tasks: Sequence[asyncio.Task[None]]
    ) -> float:
        """Wait until every stream has had its first token, or has ended for good."""
        waiting = {r.id: t for r, t in zip(steady, tasks, strict=True)}
        while waiting:
            await asyncio.sleep(0.005)
            ended = {r.id for r in self.state.records.requests}
            for name, task in list(waiting.items()):
                running = self.state.running.get(name)
                decoding = running is not None and bool(running.messages)
                if decoding or task.done() or name in ended:
                    del waiting[name]
        return self.clock()

    async def _steady(self, planned: PlannedRequest) -> None:
        """A stream that is begun anew whenever it ends; three failures in a row end it."""
        failures = again = 0
        while failures < 3:
            name = planned.id if not again else f"{planned.id}~{again}"
            record, _ = await self._one(
                replace(planned, id=name), self.clock(), self._prepared[planned.id]
            )
            failures = 0 if record.ok else failures + 1
            again += 1

    async def _session(self, planned: PlannedRequest, at_s: float) -> None:
        """A request, and the turns of its conversation that follow it."""
        source = planned.id.partition("~")[0]
        record, answer = await self._one(planned, at_s, self._prepared[source])
        history: list[tuple[str, str]] = []
        question, cycle = self._texts[source], planned.id[len(source) :]
        for turn in self._followers.get(planned.session, ()):
            if not record.ok:
                break
            history.append((question, answer))
            question = self._texts[turn.id]
            at_s = (record.end_s or self.clock()) + turn.think_s
            await self._sleep_until(at_s)
            prepared = self._driver.prepare(self._turn(turn, tuple(history)))
            record, answer = await self._one(replace(turn, id=turn.id + cycle), at_s, prepared)

    def _turn(self, planned: PlannedRequest, history: tuple[tuple[str, str], ...] = ()) -> Turn:
        exact = None if planned.text else planned.prompt_tokens
        return Turn(self._texts[planned.id], planned.output_tokens, exact, history)

    async def _one(
        self, planned: PlannedRequest, scheduled_s: float, prepared: object
    ) -> tuple[RequestRecord, str]:
        """Send one request and write its record; returns it with the answer's text."""
        _, again, cycle = planned.id.partition("~")
        record = RequestRecord(
            id=planned.id,
            class_name=planned.class_name,
            prompt_tokens=None if planned.text else planned.prompt_tokens,
            asked_tokens=planned.output_tokens,
            scheduled_s=scheduled_s,
            session=planned.session and planned.session + again + cycle,
            turn=planned.turn,
        )
        if self._places is not None:
            await self._places.acquire()
        self.state.running[record.id] = record
        self.state.num_sent += 1
        keep = True
        try:
            answer = await self._driver.send(prepared, record, self.clock)
        except asyncio.CancelledError:
            if planned.steady:
                record.error, record.finish_reason = "", CUT
                if not record.messages:
                    record.error = INTERRUPTED
                    keep = not again  # begun anew just before the end: it has nothing to say
            else:
                record.error = self._why
            raise
        finally:
            if self._places is not None:
                self._places.release()
            self.state.running.pop(record.id, None)
            self._written.pop(record.id, None)
            if keep:
                self.add(record)
        return record, answer

    async def _write_open(self) -> None:
        """Now and then write what came of requests that still run, lest a crash lose it."""
        while True:
            await asyncio.sleep(OPEN_EVERY_S)
            parts = []
            for name, record in self.state.running.items():
                seen = self._written.get(name, 0)
                parts.append(replace(record, messages=record.messages[seen:]))
                self._written[name] = len(record.messages)
            if parts and self._sink is not None:
                self._sink.add_open(parts)

    async def _sleep_until(self, at_s: float) -> None:
        left_s = at_s - self.clock()
        if left_s > 0:
            await asyncio.sleep(left_s)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel what still runs and wait for it; an error of ours in one of them comes out here."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
