"""Runs against a synthetic server, and a driver that needs none."""

from __future__ import annotations

import asyncio

from evenflow.bench.conduct import ConductOptions
from evenflow.bench.drivers.http import HttpOptions
from evenflow.bench.measure import MeasureOptions
from evenflow.bench.records import Message
from evenflow.bench.run import RunOptions
from evenflow.bench.session import server_session
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from helpers.synthetic import Plan

FAST = Plan(decode_ms=4, token_ms=0.01)


def run(url, path, workload, *, http=None, conduct=None, model=None, count_each=None):
    async def go():
        options = http or HttpOptions("")
        async with server_session(url, model, options, count_each=count_each) as session:
            return await session.run(
                workload,
                path,
                RunOptions(conduct=conduct or ConductOptions()),
                MeasureOptions(),
            )

    return asyncio.run(go())


def closed(count=12, places=4, **options):
    values = {"mix": "short:20/10@0.75,long:200/5@0.25"} | options
    return make_workload(
        WorkloadOptions(num_prompts=count, max_concurrency=places, **values)
    ), ConductOptions(max_concurrency=places)


class FakeDriver:
    """Streams one token every `gap_s`; keeps the turns that it was given."""

    name = "fake"

    def __init__(self, gap_s: float = 0.002, error: str = "") -> None:
        self.gap_s = gap_s
        self.error = error
        self.turns = []

    def prepare(self, turn):
        self.turns.append(turn)
        return turn

    async def send(self, prepared, record, clock):
        record.send_s = clock()
        for _ in range(prepared.output_tokens):
            await asyncio.sleep(self.gap_s)
            record.messages.append(Message(clock(), 1, 2))
        record.first_byte_s = record.messages[0].time_s
        record.end_s = clock()
        record.tokens_from = "usage"
        record.output_tokens = len(record.messages)
        record.finish_reason = "length"
        record.error = self.error
        return "so" * prepared.output_tokens

    async def close(self):
        pass
