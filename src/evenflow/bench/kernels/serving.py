"""Around the kernels: Python's share of a step, its steadiness, and the stall experiment."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenflow import _native
from evenflow.bench.kernels.rows import TARGET_MACHINE_GFLOPS, Row
from evenflow.bench.kernels.steps import BLOCK, step_times
from evenflow.bench.stall import StallShape, real_prompts, run_stall
from evenflow.bench.stall_report import summarize
from evenflow.llm import LLM
from evenflow.runner.native import NativeRunner
from evenflow.sampling import SamplingParams
from evenflow.schedule.options import SchedulerOptions
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from evenflow.bench.kernels.steps import Setting
    from evenflow.runner.batch import Batch
    from evenflow.runner.outcome import Report

PYTHON_TARGET_US = 150.0
GAP_TARGET_MS, TTFT_TARGET_S = 75.0, 1.9


class TimedRunner(NativeRunner):
    """Notes how long the C++ call of each step takes; once `idle`, leaves it out."""

    inside_s = 0.0
    idle = False

    def step(self, batch: Batch) -> tuple[list[int], Report | None]:
        """As always, or the same token for every row."""
        if self.idle:
            self.inside_s = 0.0
            return [5] * len(batch.logit_rows), None
        begin = time.perf_counter()
        drawn = super().step(batch)
        self.inside_s = time.perf_counter() - begin
        return drawn


def python_rows(at: Setting, threads: int) -> Iterator[Row]:
    """Microseconds of a step of 32 decodes outside the C++ call: plan, batch, result, commit.

    A step reads more bytes than the caches hold, so that Python then finds its own objects in memory;
    the second row is without the steps.
    """
    runner = TimedRunner(
        at.model, num_blocks=128, weights=at.weights, isa=at.machine.isa, num_threads=threads
    )
    scheduler = Scheduler(
        SchedulerOptions(
            num_blocks=128, block_size=BLOCK, max_num_batched_tokens=4096, max_num_seqs=32
        )
    )
    for i in range(32):
        params = SamplingParams(temperature=0, ignore_eos=True)
        ids = [3 + i] * 64
        scheduler.add(Request(f"r{i}", ids, params, max_tokens=128, stop_ids=frozenset()))
    outside: dict[bool, list[float]] = {False: [], True: []}
    while scheduler.has_unfinished:
        begin = time.perf_counter()
        plan = scheduler.plan()
        if plan is None:
            break
        events = scheduler.commit(runner.submit(plan).result())
        seconds = time.perf_counter() - begin
        if plan.num_decodes == len(events) == 32:
            outside[runner.idle].append(seconds - runner.inside_s)
            runner.idle = len(outside[False]) >= 50
    runner.close()
    for what, seen in (("", outside[False]), (", without the steps between", outside[True])):
        microseconds = 1e6 * statistics.median(seen)
        name = f"Python's share of 32 decodes{what}"
        yield Row(name, "us", PYTHON_TARGET_US, microseconds, 1.0, at_most=True)


def steadiness_rows(at: Setting) -> Iterator[Row]:
    """p99 / p50 of steps of 8 decodes, over the same of a spin loop of their length, in turns."""
    spans = at.load.decodes(8, 128)
    count = 100 * at.repeats
    spinner = _native.ThreadPool(1)
    usual = statistics.median(step_times(at.load, spans, 20))
    per_round = min(_spin(at.machine.isa, spinner, 1000) for _ in range(20)) / 1000
    rounds = max(1, int(usual / per_round))

    def ratios() -> tuple[float, float]:
        steps: list[float] = []
        spins: list[float] = []
        for _ in range(count):
            steps += step_times(at.load, spans, 1)
            spins.append(_spin(at.machine.isa, spinner, rounds))
        return tail_ratio(spins), tail_ratio(steps)

    yield Row("p99/p50 of 8 decodes, over a spin's", "", *ratios(), 1.5, at_most=True)
    with busy_process():
        yield Row("the same beside a busy process", "", *ratios(), 2.0, at_most=True)
    at.load.give_back(*[s.request for s in spans])


def _spin(isa: str, pool: _native.ThreadPool, rounds: int) -> float:
    begin = time.perf_counter()
    _native.peak_rate(isa, pool, max(1, rounds // 16))  # sixteen tiles of a thread
    return time.perf_counter() - begin


def tail_ratio(seconds: Sequence[float]) -> float:
    """The 99th percentile over the median."""
    return statistics.quantiles(seconds, n=100)[98] / statistics.median(seconds)


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process computes for as long as this lasts."""
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as process:  # noqa: S603 - this interpreter
        time.sleep(0.2)  # until it computes
        try:
            yield
        finally:
            process.kill()


def stall_rows(at: Setting, model: str | None, threads: int, tokens: int) -> Iterator[Row]:
    """8 streams, and a long prompt among them, 128 tokens a step."""
    shape = StallShape(8, 64, 8, tokens, 8, 128)
    gap_ms = ttft_s = float("inf")
    peak = at.machine.peak()
    options: dict[str, Any] = shape.options(chunked=True)
    options |= {"weights": at.weights, "threads": threads, "isa": at.machine.isa}
    for _ in range(min(2, at.repeats)):
        with LLM(model, runner="native", progress=False, **options) as llm:
            run = run_stall(llm.engine, real_prompts(llm.tokenizer, shape), shape)
        summary = summarize(run)
        gap_ms = min(gap_ms, summary.in_window.worst_ms or gap_ms)
        ttft_s = min(ttft_s, summary.ttft_s)
    peak = max(peak, at.machine.peak())
    slower = TARGET_MACHINE_GFLOPS / (peak / 1e9)
    what = f"stall: 8 streams, {tokens} tokens, 128 a step:"
    gap, ttft = GAP_TARGET_MS * slower, 1e3 * TTFT_TARGET_S * slower * tokens / 4000
    yield Row(f"{what} worst gap", "ms", gap, gap_ms, 1.0, at_most=True)
    yield Row(f"{what} TTFT", "ms", ttft, 1e3 * ttft_s, 1.0, at_most=True)
