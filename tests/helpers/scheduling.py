"""Small factories for scheduler tests: requests, options, a runner that computes nothing."""

from __future__ import annotations

from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler, SchedulerOptions
from evenflow.types import StepPlan, StepResult

STOP_TOKEN = 0


def make_options(**changes) -> SchedulerOptions:
    """Options of a small engine; every one can be changed."""
    values = {
        "max_num_batched_tokens": 32,
        "max_num_seqs": 16,
        "num_blocks": 64,
        "block_size": 4,
        "min_prefill_tokens": 4,
    } | changes
    return SchedulerOptions(**values)


def make_request(
    request_id: str,
    prompt: int | list[int],
    *,
    max_tokens: int = 4,
    priority: int = 0,
    stop_ids: frozenset[int] = frozenset({STOP_TOKEN}),
    **params,
) -> Request:
    """A request; an integer prompt means that many tokens that no other request has."""
    if isinstance(prompt, int):
        base = 1000 + sum(map(ord, request_id)) * 10_000
        prompt = [base + i for i in range(prompt)]
    return Request(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, priority=priority, **params),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
    )


def fake_token(request: Request, position: int) -> int:
    """The token at `position`: a function of the whole sequence before it, never STOP_TOKEN."""
    prefix = request.token_ids[:position]
    return 1 + hash((tuple(prefix[-8:]), position)) % 997


class FakeRunner:
    """Draws `fake_token` for every span that wants one, and checks what it was given."""

    def __init__(self, draw=fake_token) -> None:
        self.draw = draw

    def run(self, plan: StepPlan) -> StepResult:
        tokens = []
        for span in plan.spans:
            end = span.start + span.length
            tokens.append((self.draw(span.request, end),) if span.num_logits else ())
        return StepResult(plan.serial, tokens, [], 0.0)


def run_to_end(scheduler: Scheduler, max_steps: int = 10_000):
    """Plan and commit until nothing is left; yields (plan, events) of each step."""
    runner = FakeRunner()
    for _ in range(max_steps):
        plan = scheduler.plan()
        if plan is None:
            assert not scheduler.has_unfinished, "stuck: requests are left, but nothing to do"
            return
        events = scheduler.commit(runner.run(plan))
        yield plan, events
    raise AssertionError("the scheduler did not come to an end")
