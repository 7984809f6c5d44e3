"""A random world around one scheduler: arrivals, cancellations, failures, plans in flight.

`World` plays; a `Watcher` looks. Every law is a watcher, so the quick tests, which let
hypothesis choose, and the long ones, which take a seed, check the same things in the same way.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest

from evenflow.errors import InvalidRequestError
from evenflow.schedule.request import Request, Stage
from evenflow.schedule.scheduler import Scheduler
from helpers.scheduling import KvRunner, OracleDrafter, make_options, make_request

if TYPE_CHECKING:
    from random import Random

    from evenflow.types import StepPlan, TokenEvent


class Watcher:
    """Looks at a world; a law overrides what it needs."""

    def __init__(self, world: World) -> None:
        self.world = world

    def called(self) -> None:
        """After every call of the scheduler."""

    def added(self, request: Request) -> None:
        """A request was taken."""

    def planning(self) -> None:
        """The next call is `plan`."""

    def planned(self, plan: StepPlan) -> None:
        """A plan was made."""

    def events(self, events: list[TokenEvent]) -> None:
        """Events came out of `commit`, `fail` or `cancel`."""

    def ended(self) -> None:
        """Nothing is left to do."""


def draw_options(rng: Random, **fixed):
    """Random options of a small engine: small numbers, so that every limit is met often."""
    budget = rng.choice([2, 3, 5, 8, 16, 40])
    block_size = rng.choice([1, 2, 4, 8])
    values = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.choice([1, 2, 4, 8, 16]),
        "num_blocks": rng.choice([4, 6, 10, 20, 60]) * (1 if block_size > 2 else 3),
        "block_size": block_size,
        "enable_prefix_caching": rng.random() < 0.75,
        "policy": rng.choice(["chunked"] * 4 + ["prefill-first", "decode-first"]),
        "long_prefill_token_threshold": rng.choice([0, 0, 1, budget // 2]),
        "max_partial_prefills": rng.choice([1, 2, 4]),
        "min_prefill_tokens": rng.choice([0, 1, budget // 2, budget - 1]),
        "priority_aging_steps": rng.choice([1, 10, 1000]),
        "max_admission_skips": rng.choice([0, 1, 4, 64]),
        "max_preemptions": rng.choice([0, 1, 3]),
        "plan_depth": rng.choice([1, 1, 2, 3]),
        "num_speculative_tokens": rng.choice([0, 0, 1, 3, 7]),
        "speculative_disable_by_batch_size": rng.choice([0, 0, 1, 3]),
    }
    return make_options(**(values | fixed))


class World:
    """Plays random scenes with one scheduler and shows them to watchers."""

    def __init__(
        self, rng: Random, watchers=(), *, calm: bool = False, priorities=(0, 0, 1, -1), **fixed
    ) -> None:
        self.rng = rng
        self.options = draw_options(rng, **fixed)
        self.drafter = OracleDrafter(rng, wrong=rng.choice([0.0, 0.5, 1.0]))
        self.scheduler = Scheduler(self.options, drafter=self.drafter)
        self.runner = KvRunner(self.scheduler)
        self.requests: dict[str, Request] = {}
        self.in_flight: deque[StepPlan] = deque()
        self.num_plans = 0
        self.calm = calm  # nobody cancels and nothing fails
        self.priorities = priorities
        self.arrival_rate = rng.choice([0.05, 0.3, 0.9])
        self.max_waiting = rng.choice([1, 4, 12])
        self.cancel_rate = 0.0 if calm else rng.choice([0.0, 0.02, 0.15])
        self.fail_rate = 0.0 if calm else rng.choice([0.0, 0.0, 0.03])
        self._documents = [[rng.randrange(1, 5) for _ in range(200)] for _ in range(3)]
        self.watchers = [kind(self) for kind in watchers]

    @property
    def capacity(self) -> int:
        """KV slots of the pool."""
        return self.options.num_blocks * self.options.block_size

    def play(self, num_scenes: int) -> World:
        """Let things happen for a while, then let everything come to its end."""
        for _ in range(num_scenes):
            crowded = len(self.scheduler._waiting) >= self.max_waiting
            if self.rng.random() < self.arrival_rate and not crowded:
                self.arrive()
            if self.rng.random() < self.cancel_rate:
                self.cancel_somebody()
            self.advance()
        self.drain()
        return self

    def drain(self) -> None:
        """Plan and commit until nothing is left."""
        while self.scheduler.has_unfinished:
            assert self.advance(hurry=True), "stuck: requests are left, but nothing to do"
        while self.in_flight:
            self.settle()
        for watcher in self.watchers:
            watcher.ended()

    # -- single scenes ----------------------------------------------------------------------

    def arrive(self) -> None:
        """Add a random request; one that cannot fit must be refused."""
        rng, size, budget = self.rng, self.options.block_size, self.options.max_num_batched_tokens
        around = rng.choice([1, size, 2 * size, budget, 2 * budget, 3 * budget])
        length = max(1, around + rng.choice([-1, 0, 0, 1]))
        if rng.random() < 0.3:
            length = rng.randint(1, max(1, min(160, self.capacity)))
        length = min(length, 190)
        prompt = rng.choice(self._documents)[:length]
        if rng.random() < 0.5:
            keep = rng.randint(0, length - 1)
            prompt = prompt[:keep] + [rng.randrange(5, 9) for _ in range(length - keep)]
        max_tokens = rng.choice([1, 1, 2, 5, 12, 30])
        request = make_request(
            f"r{len(self.requests)}",
            prompt,
            max_tokens=max_tokens,
            min_tokens=rng.choice([0, 0, max_tokens // 2, max_tokens]),
            priority=rng.choice(self.priorities),
        )
        self.add(request)

    def add(self, request: Request) -> bool:
        """Give a request to the scheduler; returns whether it was taken."""
        most = request.num_prompt_tokens + request.max_tokens - 1
        if most > self.capacity:
            with pytest.raises(InvalidRequestError):
                self.scheduler.add(request)
            self._called()
            return False
        self.scheduler.add(request)
        self.requests[request.id] = request
        self._called()
        for watcher in self.watchers:
            watcher.added(request)
        return True

    def cancel_somebody(self) -> None:
        """Cancel a random request, most likely one that leads, runs or is in flight."""
        alive = [r for r in self.requests.values() if r.stage is not Stage.FINISHED]
        leaders = [r for r in alive if r.pending_key is not None]
        flying = [r for r in alive if r.num_in_flight]
        group = self.rng.choice([alive, leaders, flying])
        self.cancel(self.rng.choice(group).id if group else "nobody")

    def cancel(self, request_id: str) -> None:
        """Cancel by id."""
        event = self.scheduler.cancel(request_id)
        self._called()
        self._tell([event] if event is not None else [])

    def advance(self, *, hurry: bool = False) -> bool:
        """Plan or commit, whichever comes first; returns whether there was anything to do."""
        full = len(self.in_flight) >= self.options.plan_depth
        if not full and (hurry or not self.in_flight or self.rng.random() < 0.7) and self.plan():
            return True
        if not self.in_flight:
            return False
        self.settle()
        return True

    def plan(self) -> bool:
        """Make a plan and hand it to the runner; returns whether there was one."""
        for watcher in self.watchers:
            watcher.planning()
        plan = self.scheduler.plan()
        if plan is not None:
            self.runner.submit(plan)
        self._called()
        if plan is None:
            return False
        self.in_flight.append(plan)
        self.num_plans += 1
        for watcher in self.watchers:
            watcher.planned(plan)
        if self.rng.random() < 0.5:
            self.runner.execute()
        return True

    def settle(self) -> None:
        """Commit the oldest plan in flight, or let it fail."""
        plan = self.in_flight.popleft()
        result = self.runner.result(plan.serial)
        if self.rng.random() < self.fail_rate:
            events = self.scheduler.fail(plan.serial)
        else:
            events = self.scheduler.commit(result)
        self._called()
        self._tell(events)

    def _called(self) -> None:
        self.runner.poison()
        for watcher in self.watchers:
            watcher.called()

    def _tell(self, events: list[TokenEvent]) -> None:
        for watcher in self.watchers:
            watcher.events(events)
