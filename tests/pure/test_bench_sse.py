"""Streams as servers send them, cut at any byte, into messages."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from evenflow.bench.drivers.sse import EventReader, error_of
from evenflow.bench.records import RequestRecord


def event(**value) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def completion(text, finish=None, **more) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}], **more)


def chat(delta, finish=None, **more) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}], **more)


DONE = b"data: [DONE]\n\n"


def read(*chunks: bytes, every: float = 1.0) -> RequestRecord:
    """Feed the chunks, one per tick of the clock."""
    record = RequestRecord(id="r", send_s=0.0)
    reader = EventReader(record)
    for number, chunk in enumerate(chunks, start=1):
        reader.feed(chunk, number * every)
    reader.end(len(chunks) * every)
    return record


STREAM = b"".join(
    [
        completion(" größer"),
        b": a comment\r\n\r\n",
        completion(" ist"),
        completion(" 水", "length"),
        event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3}),
        DONE,
    ]
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_where_the_bytes_are_cut_changes_nothing(cuts):
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    record = read(*(STREAM[a:b] for a, b in itertools.pairwise(edges)))
    assert [m.chars for m in record.messages] == [7, 4, 2]
    assert record.tokens_from == "message"
    assert (record.prompt_tokens, record.output_tokens) == (7, 3)
    assert (record.finish_reason, record.error) == ("length", "")


def test_the_role_only_message_of_a_chat_is_no_first_token():
    record = read(
        chat({"role": "assistant", "content": ""}),
        chat({"content": "so"}),
        chat({}, "stop"),
        DONE,
    )
    assert record.first_token_s == 2.0
    assert len(record.messages) == 1
    assert record.empty_messages == 2


def test_reasoning_and_tool_calls_are_output():
    record = read(
        chat({"role": "assistant", "content": None}),
        chat({"reasoning_content": "hm"}),
        chat({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
        chat({"content": "yes"}, "stop"),
        DONE,
    )
    assert [m.chars for m in record.messages] == [2, 3, 3]


def test_the_servers_running_count_gives_each_messages_tokens():
    record = read(
        completion("", usage={"prompt_tokens": 4, "completion_tokens": 0}),
        completion("a b", usage={"prompt_tokens": 4, "completion_tokens": 2}),
        completion("", usage={"prompt_tokens": 4, "completion_tokens": 3}),
        completion(" c d", "length", usage={"prompt_tokens": 4, "completion_tokens": 5}),
        DONE,
    )
    assert [m.tokens for m in record.messages] == [2, 1, 2]
    assert (record.tokens_from, record.empty_messages) == ("usage", 1)


def test_a_total_that_comes_with_the_last_message_is_not_that_messages():
    record = read(
        completion("a"),
        completion("b"),
        completion("", "length", usage={"prompt_tokens": 4, "completion_tokens": 2}),
        DONE,
    )
    assert [m.tokens for m in record.messages] == [1, 1]
    assert record.tokens_from == "message"


def test_token_ids_count_where_a_server_sends_them():
    ids = {"index": 0, "text": "ab", "token_ids": [5, 6], "finish_reason": "length"}
    record = read(event(choices=[ids]), DONE)
    assert [m.tokens for m in record.messages] == [2]


def test_a_total_above_the_messages_is_spread():
    record = read(
        completion("abcdefgh"),
        completion("ab", "length"),
        event(choices=[], usage={"prompt_tokens": 1, "completion_tokens": 10}),
        DONE,
    )
    assert [m.tokens for m in record.messages] == [8, 2]
    assert record.tokens_from == "spread"


def test_a_stream_that_ends_early_failed():
    assert (
        read(completion("a"), completion("b")).error == "the stream ended early, after 2 messages"
    )
    assert read(b"").error == "the stream ended early, after 0 messages"
    assert read(completion("", "stop"), DONE).error == "no output"


def test_what_is_no_utf8_or_no_json_is_named():
    assert "not UTF-8: byte 2 of it is 0xff" in read(b'data: "a\xff"\n\n', DONE).error
    assert "not a JSON object" in read(b"data: {broken\n\n", DONE).error
    assert "not a JSON object" in read(b"data: 7\n\n", DONE).error


def test_an_error_in_the_stream_is_the_requests_error():
    record = read(completion("a"), event(error={"message": "out of\nmemory"}), DONE)
    assert record.error == "the server said: out of memory"
    assert not record.ok


def test_error_bodies_of_any_shape_become_one_line():
    assert error_of(401, b'{"error": {"message": "no key"}}') == "HTTP 401: no key"
    assert error_of(422, b'{"detail": "bad"}') == "HTTP 422: bad"
    assert error_of(502, b"<html>\n  bad gateway") == "HTTP 502: <html> bad gateway"
    assert error_of(500, b"") == "HTTP 500"


def test_timings_of_the_server_are_kept():
    record = read(completion("a", "stop", timings={"prompt_ms": 3.5}), DONE)
    assert record.metrics == {"prompt_ms": 3.5}
