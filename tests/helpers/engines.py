"""An engine without a model: a tokenizer of letters and a runner that spells."""

from __future__ import annotations

import itertools
import queue

from evenflow.config import EngineConfig
from evenflow.engine import Engine
from evenflow.errors import RunnerError
from evenflow.llm import scheduler_options
from evenflow.schedule.scheduler import Scheduler
from evenflow.types import StepPlan, StepResult, StreamEvent
from helpers.scheduling import fake_token

EOS = 0


class LetterTokenizer:
    """Token t stands for one ASCII letter, but for 0, the end."""

    def __init__(self) -> None:
        self.vocab_size = 1000
        self.eos_ids = frozenset({EOS})
        self.special_ids = frozenset({EOS})
        self.pieces = [bytes([97 + t % 26]) for t in range(self.vocab_size)]


class StepHandle:
    def __init__(self, outcome) -> None:
        self.outcome = outcome

    def result(self) -> StepResult:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class SpellingRunner:
    """Draws `draw(request, position)`; `fail_at` maps a step's serial to what goes wrong in it."""

    name = "spelling"

    def __init__(self, draw=fake_token, fail_at=None) -> None:
        self.draw = draw
        self.fail_at = fail_at or {}
        self.plans: list[StepPlan] = []
        self.closed = False
        self.gate = None  # a threading.Semaphore: one step per release

    def submit(self, plan: StepPlan) -> StepHandle:
        if self.gate is not None:
            self.gate.acquire()
        self.plans.append(plan)
        if plan.serial in self.fail_at:
            return StepHandle(self.fail_at[plan.serial])
        tokens = [
            (self.draw(s.request, s.start + s.length),) if s.num_logits else () for s in plan.spans
        ]
        return StepHandle(StepResult(plan.serial, tokens, [], 0.0))

    def close(self) -> None:
        self.closed = True


def make_engine(runner=None, observers=(), **options) -> Engine:
    """An engine over a `SpellingRunner`; the clock ticks once a call."""
    values = {"num_kv_blocks": 64, "block_size": 4, "max_model_len": 128} | options
    if values.get("runner") in {None, "auto"}:
        values["runner"] = "reference"  # by name: falling back to it is worth a warning
    config = EngineConfig.resolve(
        values, context_length=256, kv_bytes_per_token=4, free_memory_bytes=2**30
    )
    return Engine(
        config,
        Scheduler(scheduler_options(config)),
        runner or SpellingRunner(),
        LetterTokenizer(),
        clock=itertools.count().__next__,
        observers=observers,
    )


class Collector:
    """A sink that can wait for the end of requests."""

    def __init__(self) -> None:
        self.batches: list[list[StreamEvent]] = []
        self._ends: queue.SimpleQueue = queue.SimpleQueue()

    def __call__(self, events: list[StreamEvent]) -> None:
        self.batches.append(events)
        for event in events:
            if event.finish_reason is not None:
                self._ends.put(event)

    def wait(self, count: int = 1) -> list[StreamEvent]:
        """The next `count` terminal events."""
        return [self._ends.get(timeout=60) for _ in range(count)]

    def of(self, request_id: str) -> list[StreamEvent]:
        return [e for batch in self.batches for e in batch if e.request_id == request_id]

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.of(request_id))


def step_failure() -> RunnerError:
    return RunnerError("the step went wrong", hint="none")
