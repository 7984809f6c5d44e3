"""A driver that answers by the clock and needs no server."""

from __future__ import annotations

import asyncio

from evenflow.bench.records import Message


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
