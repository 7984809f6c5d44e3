"""Runs against one target: a server that was checked, or a loaded model; and what came of each.

The one place that turns "this URL" or "this model" into a driver, so that `bench`, `sweep` and
`compare` measure in the same way.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.bench.drivers.inprocess import InProcessDriver
from evenflow.bench.measure import MeasureOptions, Metrics, measure
from evenflow.bench.run import RunOptions, run_workload
from evenflow.bench.saturation import growing_queue
from evenflow.bench.target import check_target
from evenflow.bench.validity import Finding, cached_prompts, is_valid, judge
from evenflow.bench.workload.prompts import Calibration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from evenflow.bench.drivers.http import HttpOptions
    from evenflow.bench.drivers.interface import Driver
    from evenflow.bench.records import Records
    from evenflow.bench.workload.plan import Workload
    from evenflow.llm import LLM


class Outcome(NamedTuple):
    """A run, its figures, and whether they may be believed."""

    records: Records
    metrics: Metrics
    findings: list[Finding]

    @property
    def valid(self) -> bool:
        """Whether all checks passed."""
        return is_valid(self.findings)

    @property
    def interrupted(self) -> bool:
        """Whether somebody stopped it."""
        return self.records.mark("interrupted") is not None


@dataclass(slots=True)
class Session:
    """A target that is ready; `facts` go into the header of every run's records."""

    driver: Driver
    calibration: Calibration
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    async def run(
        self,
        workload: Workload,
        path: Path,
        options: RunOptions,
        measuring: MeasureOptions | None = None,
    ) -> Outcome:
        """Run a workload and look at what came.

        A workload that was calibrated before keeps its calibration, so that its texts are the same
        on every engine.
        """
        stored = workload.header.get("calibration")
        calibration = Calibration(**stored) if stored else self.calibration
        workload.header["calibration"] = calibration._asdict()
        asked = workload.header.get("asked") or {}
        rate = asked.get("request_rate") or (workload.rate if "trace" in workload.header else None)
        rate_facts = {"request_rate": rate, "burstiness": asked.get("burstiness", 1.0)}
        header = {**self.facts, **rate_facts, **options.header}
        records = await run_workload(
            self.driver, workload, calibration, path, replace(options, header=header)
        )
        records.problems += [*self.notes, *cached_prompts(records)]
        usable = rate if rate is not None and math.isfinite(rate) else None
        if rate is not None and (note := growing_queue(records.requests)):
            records.problems.append(note)
        findings = judge(records, asked_rate=usable)
        return Outcome(records, measure(records, measuring or MeasureOptions()), findings)


@asynccontextmanager
async def server_session(
    base_url: str, model: str | None, options: HttpOptions, *, count_each: bool | None
) -> AsyncIterator[Session]:
    """A session with a server.

    Raises:
        TargetError: it cannot be reached, refuses us or does not know the model.
    """
    target = await check_target(base_url, model, options, count_each=count_each)
    facts = {"target": str(target.driver.address), **target.facts}
    try:
        yield Session(target.driver, target.calibration, target.notes, facts)
    finally:
        await target.driver.close()


def local_session(
    llm: LLM, model: str, *, temperature: float | None = 0.0, ignore_eos: bool = False
) -> Session:
    """A session with a model in this process, which the caller closes."""
    driver = InProcessDriver(llm, temperature=temperature, ignore_eos=ignore_eos)
    effective = {name: getattr(llm.config, name) for name in llm.config.origins}
    facts = {"target": "in-process", "model": model, "config": effective}
    return Session(driver, Calibration(), [], facts)
