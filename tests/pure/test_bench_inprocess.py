"""A model in this process: the same records, with times from the engine's own thread."""

from __future__ import annotations

import asyncio

from evenflow.bench.conduct import Clock
from evenflow.bench.drivers.inprocess import InProcessDriver
from evenflow.bench.drivers.interface import Turn
from evenflow.bench.records import RequestRecord
from helpers.engines import SpellingRunner, make_engine


class Tokenizer:
    def encode(self, text):
        return [1 + len(word) for word in text.split()]


class Loaded:
    """What the in-process driver needs of an `LLM`."""

    def __init__(self, runner=None):
        self.engine = make_engine(runner or SpellingRunner())
        self.tokenizer = Tokenizer()


def send_here(loaded, turn, name="r"):
    async def go():
        driver = InProcessDriver(loaded, ignore_eos=True)
        record = RequestRecord(id=name)
        text = await driver.send(driver.prepare(turn), record, Clock())
        return record, text

    return asyncio.run(go())


def test_a_model_in_this_process_gives_the_same_kind_of_records():
    loaded = Loaded()
    try:
        record, text = send_here(loaded, Turn("so the sea", 7, prompt_tokens=20))
    finally:
        loaded.engine.close()
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (20, 7, "length")
    assert record.send_s < record.first_token_s <= record.end_s
    assert [m.tokens for m in record.messages] == [1] * 7
    assert len(text) == 7


def test_a_prompt_that_the_engine_refuses_is_a_failed_request():
    loaded = Loaded()
    try:
        record, _ = send_here(loaded, Turn("so", 7, prompt_tokens=5000))
    finally:
        loaded.engine.close()
    assert "5,000" in record.error
    assert not record.messages


def test_a_run_that_begins_anew_does_not_meet_the_streams_that_the_last_one_cut():
    """Its first requests once failed: "a request with id ... is running"."""
    loaded = Loaded()

    async def go():
        driver = InProcessDriver(loaded, ignore_eos=True)
        cut = asyncio.ensure_future(
            driver.send(driver.prepare(Turn("so the sea", 400)), RequestRecord(id="r"), Clock())
        )
        await asyncio.sleep(0)
        cut.cancel()
        record = RequestRecord(id="r")
        await driver.send(driver.prepare(Turn("so the sea", 3)), record, Clock())
        return record

    try:
        record = asyncio.run(go())
    finally:
        loaded.engine.close()
    assert (record.error, record.output_tokens, record.finish_reason) == ("", 3, "length")
