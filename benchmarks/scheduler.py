"""What plan + commit cost per step, with nothing computed in between.

    python benchmarks/scheduler.py [--steps 300] [--repeats 5]

In each scene a fixed number of requests decode. Printed are the median and the best step in microseconds, the cost of
one decode, the stated limit and how much of it the median takes; then the growth from 64 to 1,024
decodes against a linear one (from the best steps, which other work on the machine disturbs least),
and everything again as one JSON line.

Scenes: `decodes` alone; `prompt`: a long prompt in flight beside them; `queue`: 70 prompts wait for
blocks, so that each step looks at as many of them as it ever does.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
from time import perf_counter
from typing import NamedTuple

from evenflow.sampling import SamplingParams
from evenflow.schedule.options import SchedulerOptions
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler
from evenflow.types import StepResult

LIMITS_US = {64: 100.0, 1024: 1500.0}  # plan + commit of one step
BLOCK_SIZE = 16
PROMPT_TOKENS = 64
SCENES = ("decodes", "prompt", "queue")


class Cost(NamedTuple):
    """Microseconds of one step in one scene."""

    scene: str
    num_decodes: int
    median_us: float
    best_us: float


def main() -> None:
    """Measure every scene and print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of one repeat")
    parser.add_argument("--repeats", type=int, default=5, help="fresh schedulers per scene")
    arguments = parser.parse_args()
    costs = []
    header = ("scene", "decodes", "median us", "best us", "us/decode", "limit us", "of limit")
    print("{:8} {:>8} {:>10} {:>9} {:>10} {:>9} {:>9}".format(*header))
    for scene in SCENES:
        for num_decodes in (64, 256, 1024):
            cost = measure(scene, num_decodes, arguments.steps, arguments.repeats)
            costs.append(cost)
            print(row(cost))
    growths = {scene: growth([c for c in costs if c.scene == scene]) for scene in SCENES}
    for scene, value in growths.items():
        print(f"{scene}: 64 -> 1,024 decodes costs {value:.2f} of what linear growth would")
    print(
        json.dumps(
            {
                "benchmark": "scheduler",
                "python": platform.python_version(),
                "machine": platform.machine(),
                "steps": arguments.steps,
                "repeats": arguments.repeats,
                "limits_us": LIMITS_US,
                "costs": [cost._asdict() for cost in costs],
                "growth_over_linear": growths,
            }
        )
    )


def row(cost: Cost) -> str:
    """A line of the table."""
    limit = LIMITS_US.get(cost.num_decodes)
    last = f"{limit:9,.0f} {cost.median_us / limit:9.0%}" if limit else f"{'-':>9} {'-':>9}"
    per_decode = cost.median_us / cost.num_decodes
    return (
        f"{cost.scene:8} {cost.num_decodes:8,} {cost.median_us:10.1f} {cost.best_us:9.1f} "
        f"{per_decode:10.3f} {last}"
    )


def growth(costs: list[Cost]) -> float:
    """Best cost at the most decodes over that at the fewest, divided by the ratio of decodes."""
    few, many = costs[0], costs[-1]
    return (many.best_us / few.best_us) / (many.num_decodes / few.num_decodes)


def measure(scene: str, num_decodes: int, num_steps: int, num_repeats: int) -> Cost:
    """Time `num_steps` steps of `num_repeats` fresh schedulers."""
    times = []
    for _ in range(num_repeats):
        scheduler = prepare(scene, num_decodes, num_steps)
        gc.collect()
        gc.disable()
        try:
            times += [timed_step(scheduler, num_decodes) for _ in range(num_steps)]
        finally:
            gc.enable()
    return Cost(scene, num_decodes, statistics.median(times) * 1e6, min(times) * 1e6)


def timed_step(scheduler: Scheduler, num_decodes: int) -> float:
    """Seconds of one plan and its commit, without what the stand-in for a runner takes."""
    start = perf_counter()
    plan = scheduler.plan()
    planned = perf_counter()
    if plan is None or plan.num_decodes != num_decodes:
        sys.exit(f"the scene is not what it says: {plan}")
    result = stand_in(plan.serial, [span.num_logits for span in plan.spans])
    resumed = perf_counter()
    scheduler.commit(result)
    return perf_counter() - resumed + planned - start


def stand_in(serial: int, num_logits: list[int]) -> StepResult:
    """A result with a token wherever one is due."""
    return StepResult(serial, [(7,) if n else () for n in num_logits], [], 0.0)


def prepare(scene: str, num_decodes: int, num_steps: int) -> Scheduler:
    """A scheduler in which `num_decodes` requests decode for `num_steps` steps and more."""
    max_tokens = num_steps + 2 * num_decodes + 100
    blocks_each = -(-(PROMPT_TOKENS + num_steps + num_decodes) // BLOCK_SIZE) + 2
    long_prompt = 64 * num_steps + 1000 if scene == "prompt" else 0
    options = SchedulerOptions(
        max_num_batched_tokens=num_decodes + 64,
        max_num_seqs=num_decodes + 8,
        num_blocks=num_decodes * blocks_each + -(-long_prompt // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
    )
    scheduler = Scheduler(options)
    for i in range(num_decodes):
        scheduler.add(make_request(f"decode{i}", i, PROMPT_TOKENS, max_tokens))
    while len(scheduler._decodes) < num_decodes:  # noqa: SLF001 - no public count of decodes
        plan = scheduler.plan()
        if plan is None:
            sys.exit("nothing to plan")
        scheduler.commit(stand_in(plan.serial, [span.num_logits for span in plan.spans]))
    if long_prompt:
        scheduler.add(make_request("prompt", 1 << 20, long_prompt, 1))
    if scene == "queue":
        usage = scheduler.stats().kv
        too_long = (usage.free + usage.cached + 1) * BLOCK_SIZE
        params = SamplingParams(max_tokens=1)
        for i in range(70):  # more than are looked at in one step
            request_id, prompt = f"queue{i}", [i] * too_long
            scheduler.add(Request(request_id, prompt, params, max_tokens=1, stop_ids=frozenset()))
    return scheduler


def make_request(request_id: str, number: int, num_tokens: int, max_tokens: int) -> Request:
    """A request with a prompt that shares no block with another's."""
    prompt = list(range(number * 10_000, number * 10_000 + num_tokens))
    params = SamplingParams(max_tokens=max_tokens)
    return Request(request_id, prompt, params, max_tokens=max_tokens, stop_ids=frozenset({2}))


if __name__ == "__main__":
    main()
