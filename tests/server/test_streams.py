"""What goes over the wire, and what it costs the event loop."""

from __future__ import annotations

import json
import threading

import pytest

from helpers.engines import EOS, SpellingRunner, step_failure
from helpers.servers import LetterModel, get, post, read_all, read_until, serving, until

CLOSE = {"connection": "close"}


def events_of(raw: bytes) -> list[dict | str]:
    """The messages of a chunked event stream."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert b"200 OK" in head.splitlines()[0]
    assert b"content-type: text/event-stream" in head
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    messages = body.split(b"\n\n")
    assert messages.pop() == b""
    found = []
    for message in messages:
        assert message.startswith(b"data: ")
        text = message[6:].decode()
        found.append(text if text == "[DONE]" else json.loads(text))
    return found


def stream(port, path="/v1/completions", **body) -> list[dict | str]:
    body = {"prompt": "abc", "stream": True} | body
    return events_of(read_all(post(port, path, body, headers=CLOSE)))


def test_one_message_per_token_and_nothing_else(served):
    *tokens, done = stream(served.port, max_tokens=9)
    assert done == "[DONE]"
    assert len(tokens) == 9
    assert [t["choices"][0]["finish_reason"] for t in tokens] == [None] * 8 + ["length"]
    assert all(len(t["choices"][0]["text"]) == 1 for t in tokens)
    assert all("usage" not in t for t in tokens)
    assert {t["object"] for t in tokens} == {"text_completion"}


def test_the_role_comes_with_the_first_token(served):
    messages = [{"role": "user", "content": "x"}]
    *tokens, _ = stream_chat(served.port, messages)
    first, *rest = [t["choices"][0]["delta"] for t in tokens]
    assert first["role"] == "assistant"
    assert len(first["content"]) == 1
    assert all(list(delta) == ["content"] for delta in rest)


def stream_chat(port, messages, **body):
    body = {"messages": messages, "stream": True, "max_tokens": 3} | body
    return events_of(read_all(post(port, "/v1/chat/completions", body, headers=CLOSE)))


def test_usage_is_null_until_the_last_message(served):
    *tokens, last, done = stream(
        served.port, prompt=[1, 2, 3, 4, 5], max_tokens=3, stream_options={"include_usage": True}
    )
    assert done == "[DONE]"
    assert [t["usage"] for t in tokens] == [None] * 3
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_end_token_is_counted_and_has_no_text():
    model = LetterModel(SpellingRunner(lambda _, position: EOS if position == 6 else 1))
    with serving(model) as served:
        *tokens, last, _ = stream(
            served.port,
            prompt=[1, 2, 3],
            max_tokens=50,
            stream_options={"include_usage": True},
        )
    assert [t["choices"][0]["text"] for t in tokens] == ["b", "b", "b", ""]
    assert tokens[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == 4


def test_a_stream_interval_gathers_tokens_but_not_the_first():
    with serving(stream_interval=4) as served:
        *tokens, _ = stream(served.port, max_tokens=11)
        (plain,) = json.loads(
            read_all(
                post(
                    served.port,
                    "/v1/completions",
                    {"prompt": "abc", "max_tokens": 11},
                    headers=CLOSE,
                )
            ).partition(b"\r\n\r\n")[2]
        )["choices"]
    texts = [t["choices"][0]["text"] for t in tokens]
    assert list(map(len, texts)) == [1, 4, 4, 2]
    assert "".join(texts) == plain["text"]


def test_all_tokens_of_a_step_reach_the_loop_in_one_wakeup():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    with serving(LetterModel(runner)) as served:
        bodies = {"prompt": [1, 2], "stream": True, "max_tokens": 40}
        connections = [
            post(served.port, "/v1/completions", bodies, headers=CLOSE) for _ in range(8)
        ]
        until(lambda: served.on_loop(lambda: served.bridge.num_open) == 8)
        runner.gate.release(10_000)
        for connection in connections:
            assert len(events_of(read_all(connection))) == 41
        steps = [plan for plan in runner.plans if any(s.num_logits for s in plan.spans)]
        assert served.on_loop(lambda: served.bridge.num_wakeups) == len(steps)
        assert len(steps) < 8 * 40 / 4


def test_a_failed_step_ends_the_stream_with_an_error_and_the_server_goes_on():
    with serving(LetterModel(SpellingRunner(fail_at={2: step_failure()}))) as served:
        *tokens, error, done = stream(served.port, max_tokens=9)
        assert len(tokens) == 2
        assert "went wrong" in error["error"]["message"]
        assert error["error"]["type"] == "server_error"
        assert done == "[DONE]"
        assert len(stream(served.port, max_tokens=9)) == 10


def test_a_crash_ends_every_request_and_health_fails(caplog):
    runner = SpellingRunner(fail_at={5: ZeroDivisionError("a bug")})
    runner.gate = threading.Semaphore(0)
    with serving(LetterModel(runner)) as served:
        streams = [
            post(
                served.port,
                "/v1/completions",
                {"prompt": "a", "stream": True, "max_tokens": 99},
                headers=CLOSE,
            )
            for _ in range(3)
        ]
        whole = post(
            served.port, "/v1/completions", {"prompt": "a", "max_tokens": 99}, headers=CLOSE
        )
        until(lambda: served.on_loop(lambda: served.bridge.num_open) == 4)
        runner.gate.release(10_000)
        for connection in streams:
            *_, error, done = events_of(read_all(connection))
            assert error["error"]["type"] == "server_error"
            assert done == "[DONE]"
        answer = read_all(whole)
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert b"a bug" not in answer
        for path, status in (("/v1/completions", b"503"), ("/tokenize", b"503")):
            assert read_all(post(served.port, path, {"prompt": "a"}, headers=CLOSE))[9:12] == status
        health = get(served.port, "/health")
        assert health.startswith(b"HTTP/1.1 503 ")
        assert b"ZeroDivisionError" in health
    assert "a bug" in caplog.text  # what the answers keep from the client


@pytest.mark.parametrize("path", ["/health", "/version", "/v1/models", "/metrics", "/openapi.json"])
def test_views_answer_and_carry_the_request_id(served, path):
    answer = get(served.port, path, {"x-request-id": "my-7"})
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: my-7" in answer


def test_two_requests_on_one_connection(served):
    connection = post(served.port, "/v1/completions", {"prompt": "a", "max_tokens": 2})
    first = read_until(connection, b'"usage"')
    assert b'"completion_tokens":2' in first
    body = b'{"prompt": "a", "max_tokens": 3, "stream": true}'
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    assert read_until(connection, b"[DONE]\n\n").count(b"data: ") == 4
    connection.close()
