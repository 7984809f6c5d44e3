"""What went wrong in other clients: messages that come together, tokens without text, late queues.

Each test is one kind of fault that was reported of a client that people use.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from evenflow.bench.conduct import Clock, ConductOptions, Conductor
from evenflow.bench.drivers.connection import Pool
from evenflow.bench.drivers.http import HttpDriver, HttpOptions
from evenflow.bench.drivers.interface import Turn
from evenflow.bench.drivers.sse import EventReader
from evenflow.bench.export import to_vllm
from evenflow.bench.gaps import TOGETHER_S, deliveries, gap_table, stalls_by_factor
from evenflow.bench.imports import from_vllm
from evenflow.bench.live import LiveView
from evenflow.bench.measure import MeasureOptions, as_json, measure
from evenflow.bench.probes import ECHO, LAG
from evenflow.bench.records import Mark, Message, Probe, Records, RequestRecord
from evenflow.bench.saturation import growing_queue
from evenflow.bench.validity import judge
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.prompts import Calibration
from evenflow.errors import ConfigError
from helpers.bench import FAST, FakeDriver, run
from helpers.recorded import make_record, make_records, steady
from helpers.synthetic_server import Behaviour, serve

EXACT = MeasureOptions(percentiles=(50.0, 99.0))


def drafting(steps: int, each: int, *, apart_s: float = 0.0, first_s: float = 0.1):
    """A server that drafts: `each` messages of one token per step of 50 ms, all sent at once."""
    times = [first_s + 0.05 * step + apart_s * i for step in range(steps) for i in range(each)]
    return make_record(times)


@pytest.mark.parametrize("apart_s", [0.0, 0.00003])
def test_messages_that_come_together_have_no_gap_between_them(apart_s):
    """ITL had a p50 of 0 ms where a server sent its accepted drafts one by one."""
    record = drafting(20, 5, apart_s=apart_s)
    metrics = measure(make_records(record), EXACT)
    itl, per_token = metrics.latencies["itl_ms"], metrics.latencies["itl_per_token_ms"]
    assert itl is not None
    assert per_token is not None
    assert (itl.count, itl.value(50.0)) == (19, pytest.approx(50))
    assert (per_token.count, per_token.value(50.0)) == (95, pytest.approx(10))
    assert metrics.latency("tpot_ms", 50.0) == pytest.approx(10)
    assert metrics.messages.together == 80
    assert metrics.messages.messages == 100
    # the stream's median gap was 0, and each step a stall beside it
    assert stalls_by_factor(gap_table([record])).count == 0


def test_a_first_delivery_of_many_messages_does_not_speed_up_the_rest():
    record = make_record([0.1] * 10 + [0.2, 0.3])
    assert measure(make_records(record), EXACT).latency("tpot_ms", 50.0) == pytest.approx(100)


def test_what_is_apart_stays_apart():
    messages = [Message(i * TOGETHER_S * 0.6, 1, 4) for i in range(6)]
    together = deliveries(messages)
    assert [m.tokens for m in together] == [2, 2, 2]  # from the first of each, not in a chain
    assert [m.chars for m in together] == [8, 8, 8]
    slow = [Message(i * 0.01, 1, 4) for i in range(6)]
    assert list(deliveries(slow)) == slow


def test_the_stall_of_a_drafting_server_is_found():
    record = drafting(40, 5)
    late = [Message(m.time_s + 0.4 * (m.time_s > 1.0), 1, 4) for m in record.messages]
    record.messages = late
    found = stalls_by_factor(gap_table([record]))
    assert (found.count, found.worst_ms) == (1, pytest.approx(450))


def test_an_export_keeps_every_message_and_comes_back_with_the_same_figures():
    records = make_records(drafting(20, 5))
    result = to_vllm(records, EXACT, detailed=True)
    assert len(result["itls"][0]) == 99
    again = measure(from_vllm(json.loads(json.dumps(result)), "f"), EXACT)
    assert again.latency("itl_ms", 50.0) == pytest.approx(50)


async def _serve_writes(writes: list[bytes], gap_s: float) -> asyncio.Server:
    """A server that answers any request with these pieces, each in one write."""

    async def answer(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for data in writes:
                writer.write(data)
                await asyncio.sleep(gap_s)
            writer.write(b"0\r\n\r\n")
        finally:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


def chunked(*events: dict) -> bytes:
    """HTTP chunks with one event each."""
    datas = [b"data: " + json.dumps(e).encode() + b"\n\n" for e in events]
    return b"".join(b"%x\r\n%s\r\n" % (len(d), d) for d in datas)


def test_what_one_read_brought_has_one_time():
    token = {"choices": [{"text": "so ", "finish_reason": None}]}
    end = {"choices": [{"text": "so", "finish_reason": "stop"}]}
    writes = [chunked(*[token] * 40), chunked(*[token] * 40), chunked(end)]

    async def go():
        server = await _serve_writes(writes, 0.05)
        driver = HttpDriver(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", HttpOptions("m")
        )
        record = RequestRecord(id="r")
        async with server:
            await driver.send(driver.prepare(Turn("so", 81)), record, Clock())
            await driver.close()
        return record

    record = asyncio.run(go())
    assert record.error == ""
    assert len(record.messages) == 81
    assert [m.tokens for m in deliveries(record.messages)] == [40, 40, 1]
    assert len({m.time_s for m in record.messages}) == 3


def read(*events: dict) -> RequestRecord:
    """Feed events, one a second."""
    record = RequestRecord(id="r", send_s=0.0)
    reader = EventReader(record)
    for number, one in enumerate(events, start=1):
        reader.feed(b"data: " + json.dumps(one).encode() + b"\n\n", float(number))
    reader.feed(b"data: [DONE]\n\n", len(events))
    reader.end(len(events))
    return record


def token(text, finish=None, **more):
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}


def total(count):
    return {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": count}}


def test_the_gap_before_an_end_token_is_a_gap():
    """An end token has no text; the last gap of every stream was lost with it."""
    record = read(token("a"), token(" b"), token("", "stop"), total(3))
    assert [(m.time_s, m.tokens) for m in record.messages] == [(1, 1), (2, 1), (3, 1)]
    assert (record.tokens_from, record.empty_messages) == ("message", 0)


def test_half_a_character_is_a_token_in_its_place():
    record = read(token("a"), token(""), token("水"), token("b", "length"), total(4))
    assert [m.time_s for m in record.messages] == [1, 2, 3, 4]
    assert record.tokens_from == "message"


def test_a_message_without_text_is_no_token_where_the_total_does_not_say_so():
    ends = read(token("a"), token(" b"), token("", "stop"), total(2))
    assert [m.time_s for m in ends.messages] == [1, 2]
    several = read(token("a b c"), token(" d"), token("", "stop"), total(9))
    assert (sum(m.tokens for m in several.messages), several.tokens_from) == (9, "spread")
    cut = read(token("a b"), token("", "length"), total(2))
    assert [m.tokens for m in cut.messages] == [2]


def test_messages_on_a_prompts_progress_are_no_tokens():
    record = read(token(""), token(""), token("a"), token(" b"), token("", "stop"), total(3))
    assert [m.time_s for m in record.messages] == [3, 4, 5]
    assert record.empty_messages == 2


class Piece(bytes):
    """Bytes that may not be copied into a longer string one by one."""

    def __radd__(self, _before):
        raise AssertionError("everything that came so far was copied for one more piece")


def test_a_long_event_is_put_together_once():
    """A first message with the scores of a long prompt once stopped the client for seconds."""
    data = b"data: " + json.dumps(token("so", "stop", prompt_logprobs=[0.5] * 20_000)).encode()
    record = RequestRecord(id="r", send_s=0.0)
    reader = EventReader(record)
    for start in range(0, len(data), 1000):
        reader.feed(Piece(data[start : start + 1000]), 1.0)
    reader.feed(b"\n\ndata: [DO", 2.0)
    reader.feed(b"NE]\n\n", 2.0)
    reader.end(2.0)
    assert [m.time_s for m in record.messages] == [2.0]
    assert (record.error, reader.done) == ("", True)


def test_the_role_of_a_chat_is_never_a_token():
    def delta(value, finish=None):
        return {"choices": [{"index": 0, "delta": value, "finish_reason": finish}]}

    record = read(delta({"role": "assistant", "content": ""}), delta({"content": "a b"}), total(2))
    assert record.first_token_s == 2.0
    assert [m.tokens for m in record.messages] == [2]


def test_text_without_a_token_divides_nothing_by_zero_and_is_not_counted():
    """A server that counts each message may send text that it had held back: no token more."""

    def counted(text, count, finish=None):
        return token(text, finish, usage={"prompt_tokens": 4, "completion_tokens": count})

    record = read(
        counted("a", 1), counted("b", 2), counted("c", 2), counted("d", 4), counted("e", 5, "stop")
    )
    assert [m.tokens for m in record.messages] == [1, 1, 0, 2, 1]
    found = measure(make_records(record), EXACT)
    per_token, itl = found.latencies["itl_per_token_ms"], found.latencies["itl_ms"]
    assert per_token is not None
    assert itl is not None
    assert per_token.count == 4  # as many as tokens after the first
    assert per_token.mean == pytest.approx(1000)  # 4 s for 4 tokens
    assert itl.count == 4
    assert found.latency("tpot_ms", 50.0) == pytest.approx(1000)


def test_several_answers_to_one_request_are_refused():
    """Their tokens come in turns: the gaps of the one stream would be those of none."""
    with pytest.raises(ConfigError, match="asks for 2 answers"):
        HttpDriver("http://127.0.0.1:9", HttpOptions("m", extra_body={"n": 2}))
    HttpDriver("http://127.0.0.1:9", HttpOptions("m", extra_body={"n": 1}))


@pytest.mark.parametrize("kind", [LAG, ECHO])
def test_long_gaps_are_no_excuse_for_a_client_that_is_late_with_the_first_token(kind):
    records = make_records(
        *(
            make_record(steady(20, 0.4, first_s=i + 0.02), id=f"r{i}", send_s=float(i))
            for i in range(9)
        )
    )
    records.probes = [Probe(i / 10, kind, 0.03) for i in range(90)]
    (first, last) = [f for f in judge(records) if f.name.startswith("client")]
    assert (first.ok, last.ok) == (False, False)
    assert "against a p50 TTFT of 20.0 ms" in first.fact


def test_a_connection_is_made_before_the_clock_of_a_request_starts(tmp_path, monkeypatch):
    """TLS handshakes were once part of TTFT."""
    take = Pool.take

    async def slow(self, *, fresh=False):
        connection = await take(self, fresh=True)
        await asyncio.sleep(0.05)  # a handshake
        return connection

    workload = make_workload(
        WorkloadOptions(num_prompts=3, request_rate=50.0, input_len="9", output_len="3")
    )
    with serve(FAST, Behaviour(metrics=False)) as server:
        monkeypatch.setattr(Pool, "take", slow)
        outcome = run(server.url, tmp_path / "r.jsonl", workload)
    assert all(r.send_s - r.scheduled_s >= 0.05 for r in outcome.records.requests)


def waits(ttfts, *, every_s=0.1):
    return [
        make_record(
            steady(5, first_s=i * every_s + ttft),
            id=f"r{i}",
            send_s=i * every_s,
            scheduled_s=i * every_s,
        )
        for i, ttft in enumerate(ttfts)
    ]


def test_a_server_that_does_not_keep_up_is_said_to():
    """Its waits grow as long as the run does, so that they are no property of the server."""
    note = growing_queue(waits(np.linspace(0.05, 10.0, 100)))
    assert note.startswith("the server did not keep up: ")
    assert growing_queue(waits([0.05] * 100)) == ""
    assert growing_queue(waits([3.0] * 100)) == ""  # slow, and no slower in the end
    assert growing_queue(waits([0.05] * 2)) == ""
    assert growing_queue([]) == ""


def test_a_few_who_wait_at_the_end_by_chance_are_no_queue():
    assert growing_queue(waits([0.05] * 90 + [1.0] * 10)) == ""


def test_a_percentile_beyond_the_data_says_so_to_programs_too():
    found = as_json(measure(make_records(*waits([0.05] * 20))))["ttft_ms"]
    assert found is not None
    assert (found["p50"]["beyond"], found["p99"]["beyond"]) == (False, True)


@pytest.mark.parametrize("rate", [None, 200.0])
def test_conversations_whose_turns_fail_hold_up_nobody(rate):
    """A multi-turn client once waited for ever on the turns of a conversation that had failed."""

    class Failing(FakeDriver):
        async def send(self, prepared, record, clock):
            answer = await super().send(prepared, record, clock)
            record.error = "broken" if record.turn == 1 else ""
            return answer

    load = {"max_concurrency": 2} if rate is None else {"request_rate": rate}
    workload = make_workload(
        WorkloadOptions(num_prompts=6, turns=4, input_len="5", output_len="2", **load)
    )
    conductor = Conductor(
        workload,
        Failing(),
        options=ConductOptions(max_concurrency=2),
        calibration=Calibration(),
        clock=Clock(),
    )
    conductor.prepare()
    records = asyncio.run(conductor.run(Records()))
    assert sorted(r.turn for r in records.requests) == [0] * 6 + [1] * 6
    assert not conductor.state.running


def test_the_warm_up_is_no_part_of_what_is_exported():
    """The file said other figures than the screen."""
    records = make_records(
        make_record(steady(50, 0.1, first_s=0.9), id="early"),
        *(make_record(steady(9, first_s=2.1), id=f"mid{i}", send_s=2.0) for i in range(3)),
        make_record([], id="failed early", send_s=0.5, error="HTTP 500"),
        make_record(steady(50, 0.1, first_s=4.9), id="late", send_s=4.0),
    )
    records.marks = [Mark(1.0, "warmup_end"), Mark(3.0, "cooldown_start")]
    result = to_vllm(records, EXACT, detailed=True)
    assert (result["completed"], result["failed"], result["num_prompts"]) == (3, 0, 3)
    assert result["p99_ttft_ms"] == pytest.approx(100)
    assert result["p99_itl_ms"] == pytest.approx(10)
    assert result["duration"] == pytest.approx(0.18)
    assert len(result["itls"]) == len(result["ttfts"]) == 3


def test_the_live_view_takes_what_came_together_for_one_message():
    workload = make_workload(WorkloadOptions(num_prompts=1, max_concurrency=1))
    conductor = Conductor(
        workload,
        FakeDriver(),
        options=ConductOptions(),
        calibration=Calibration(),
        clock=lambda: 2.0,
    )
    conductor.state.records.add(drafting(30, 5))
    (median_ms, worst_ms), rate = LiveView(conductor)._recent(2.0)
    assert (median_ms, worst_ms) == (pytest.approx(50), pytest.approx(50))
    assert rate == pytest.approx(150 / 2.0)
