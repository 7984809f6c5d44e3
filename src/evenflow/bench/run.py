"""One measured run from prepared pieces: warm up, start the clock, conduct, keep the records."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evenflow.bench.conduct import Clock, ConductOptions, Conductor
from evenflow.bench.drivers.http import HttpDriver
from evenflow.bench.drivers.interface import Turn
from evenflow.bench.live import LiveView
from evenflow.bench.machine import describe_machine
from evenflow.bench.probes import watch_cpu, watch_echo, watch_loop, watch_metrics
from evenflow.bench.records import Mark, Records, RecordWriter, RequestRecord
from evenflow.bench.workload.prompts import words_of
from evenflow.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from evenflow.bench.drivers.interface import Driver
    from evenflow.bench.workload.plan import Workload
    from evenflow.bench.workload.prompts import Calibration

WARMUP_WORDS = 64
WARMUP_TOKENS = 8
WARMUP_SEED = 11
HTTP_ERROR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run needs besides its workload.

    Attributes:
        conduct: pace and limits.
        num_warmups: requests sent before the run; they are not in its records.
        live: draw the run while it runs.
        header: facts for the first line of the records.
    """

    conduct: ConductOptions = field(default_factory=ConductOptions)
    num_warmups: int = 1
    live: bool = False
    header: dict[str, Any] = field(default_factory=dict)


async def run_workload(
    driver: Driver,
    workload: Workload,
    calibration: Calibration,
    path: Path,
    options: RunOptions,
) -> Records:
    """Run and write the records to a file.

    An interruption (Ctrl-C cancels the task) ends the run early and well: the records hold what
    there was, with a mark "interrupted".

    Raises:
        RecordError: the file cannot be written.
        TargetError: the server refuses a warm-up request.
    """
    clock = Clock()
    conductor = Conductor(
        workload, driver, options=options.conduct, calibration=calibration, clock=clock
    )
    conductor.prepare()
    notes = await _warm_up(driver, options.num_warmups, clock)
    if isinstance(driver, HttpDriver):
        await driver.pool.warm(_connections(workload, options.conduct))
    probes: list[Coroutine[object, object, object]] = []
    if isinstance(driver, HttpDriver):
        probes = [
            watch_loop(clock, conductor.add),
            watch_echo(clock, conductor.add),
            watch_cpu(clock, conductor.add),
            watch_metrics(driver, clock, conductor.add),
        ]
    if options.live:
        probes.append(LiveView(conductor).watch())
    with _no_collections():
        clock.restart()
        header = {
            **options.header,
            "driver": driver.name,
            "machine": describe_machine(),
            "calibration": calibration._asdict(),
            "workload": workload.header,
            "max_concurrency": options.conduct.max_concurrency,
            "started_unix_s": clock.started_unix_s,
            "started_monotonic_s": clock.started_monotonic_s,
        }
        with RecordWriter(path, header) as writer:
            try:
                await conductor.run(writer, probes)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()  # the run ends here; what follows is not to be cancelled
                writer.add(Mark(clock(), "interrupted"))
                conductor.state.records.add(Mark(clock(), "interrupted"))
    records = conductor.state.records
    records.header = header
    records.problems += [*workload.notes, *notes]
    return records


async def _warm_up(driver: Driver, count: int, clock: Clock) -> list[str]:
    """Send requests that are not measured; returns a word on those that failed.

    Raises:
        TargetError: the server refuses them, and so would it the run's own.
    """
    notes = []
    for number in range(count):
        record = RequestRecord(id=f"warmup-{number}")
        words = words_of(WARMUP_SEED + number, WARMUP_WORDS)
        await driver.send(driver.prepare(Turn(words, WARMUP_TOKENS)), record, clock)
        if record.status >= HTTP_ERROR:
            raise TargetError(
                f"the server refuses a warm-up request: {record.error}",
                hint="what it says above is what it dislikes about the request",
            )
        if not record.ok:
            notes.append(f"a warm-up request failed: {record.error}")
    return notes


def _connections(workload: Workload, options: ConductOptions) -> int:
    """How many connections to have open before the run, so that none is opened in it."""
    if workload.has_streams:
        return len(workload.requests)
    return min(options.max_concurrency or 32, len(workload.requests), 256)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep Python's cycle collector away: it stops the client for milliseconds at a time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
