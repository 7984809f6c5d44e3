"""What is bounded: the queue, the time, the body, and what a slow reader may leave unread."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import socket
import threading

import pytest

from helpers.engines import SpellingRunner
from helpers.servers import (
    LetterModel,
    PacedRunner,
    get,
    post,
    read_all,
    read_until,
    serving,
    until,
)

CLOSE = {"connection": "close"}


def parts(answer: bytes) -> tuple[int, dict[str, str], dict]:
    """Status, headers and JSON of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, json.loads(body)


def num_open(served) -> int:
    return served.on_loop(lambda: served.bridge.num_open)


def test_a_full_queue_is_refused_with_a_time_to_come_back():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    model = LetterModel(runner, max_num_seqs=2)
    with serving(model, max_num_queued_reqs=3) as served:
        body = {"prompt": "a", "max_tokens": 2}
        held = []
        for i in range(5):
            held.append(post(served.port, "/v1/completions", body, headers=CLOSE))
            until(lambda count=i + 1: num_open(served) == count)
        status, headers, answer = parts(
            read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        )
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert answer["error"]["type"] == "rate_limit_error"
        assert "3 may wait" in answer["error"]["message"]
        assert b"admission_rejections_total" in get(served.port, "/metrics")
        runner.gate.release(10_000)
        assert [parts(read_all(c))[0] for c in held] == [200] * 5
        assert parts(read_all(post(served.port, "/v1/completions", body, headers=CLOSE)))[0] == 200


def test_several_prompts_are_let_in_together_or_not_at_all():
    with serving(LetterModel(max_num_seqs=2), max_num_queued_reqs=1) as served:
        body = {"prompt": ["a", "b", "c", "d"], "max_tokens": 2}
        answer = read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        assert parts(answer)[0] == 429
        body["prompt"].pop()
        answer = read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        assert len(parts(answer)[2]["choices"]) == 3


@pytest.mark.parametrize("given", ["header", "flag"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_deadline_ends_the_request_and_frees_its_blocks(given, streaming):
    model = LetterModel(PacedRunner(0.01))
    limit = 0.15 if given == "flag" else 0
    headers = CLOSE | ({"x-request-timeout": "0.15"} if given == "header" else {})
    with serving(model, request_timeout_s=limit) as served:
        body = {"prompt": "a", "max_tokens": 4000, "stream": streaming}
        answer = read_all(post(served.port, "/v1/completions", body, headers=headers))
        model.wait_idle()
    assert b"not done in its time" in answer
    if streaming:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b'"text":') > 2
        assert answer.rstrip().endswith(b"0")  # the chunked body was ended properly
    else:
        status, fields, error = parts(answer)
        assert status == 504
        assert fields["x-should-retry"] == "false"
        assert error["error"]["code"] == "timeout"


def test_a_client_may_only_shorten_the_servers_deadline():
    with serving(LetterModel(PacedRunner(0.01)), request_timeout_s=0.1) as served:
        headers = CLOSE | {"x-request-timeout": "50"}
        body = {"prompt": "a", "max_tokens": 4000}
        answer = read_all(post(served.port, "/v1/completions", body, headers=headers))
    assert b"not done in its time" in answer


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_deadline_that_is_none_is_refused(served, value):
    headers = CLOSE | {"x-request-timeout": value}
    answer = read_all(post(served.port, "/v1/completions", {"prompt": "a"}, headers=headers))
    assert parts(answer)[0] == 400
    assert b"x-request-timeout" in answer


def test_a_body_that_is_too_large_is_refused_before_it_is_read():
    with serving(max_body_bytes=2000) as served:
        connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: 2001\r\n\r\n"
        )
        assert parts(read_all(connection))[0] == 413


def test_a_chunked_body_is_counted_as_it_comes():
    with serving(max_body_bytes=2000) as served:
        connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
            + (b"400\r\n" + b" " * 1024 + b"\r\n")
            * 2
        )
        status, _, answer = parts(read_all(connection))
    assert status == 413
    assert "2,048" in answer["error"]["message"]
    assert "2,000" in answer["error"]["message"]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_what_a_foreign_page_could_send_is_refused(served, media):
    headers = CLOSE | {"content-type": media}
    answer = read_all(post(served.port, "/v1/completions", {"prompt": "a"}, headers=headers))
    assert parts(answer)[0] == 415


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"{}" * 2]
)
def test_broken_bodies_get_a_400(served, body):
    status, _, answer = parts(read_all(post(served.port, "/v1/completions", body, headers=CLOSE)))
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


def test_a_slow_reader_is_cut_off_and_nobody_else_feels_it(caplog):
    """It reads nothing while tokens come as fast as they can; another reads all of its own."""
    model = LetterModel(num_kv_blocks=40_000, max_model_len=100_000)
    with (
        caplog.at_level(logging.WARNING, "evenflow.server"),
        serving(model, max_stream_buffer_bytes=20_000) as served,
        socket.socket() as lazy,
    ):
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", served.port))
        body = json.dumps({"prompt": "a", "max_tokens": 90_000, "stream": True}).encode()
        lazy.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        lively = {"prompt": "b", "max_tokens": 300, "stream": True}
        with post(served.port, "/v1/completions", lively) as connection:
            until(lambda: "cancelled" in caplog.text)
            with contextlib.suppress(ConnectionResetError):  # what was on its way may come first
                assert b"[DONE]" not in read_all(lazy)
            assert read_until(connection, b"[DONE]").count(b'"text":') == 300
        model.wait_idle()
    (line,) = [r.getMessage() for r in caplog.records if "unread" in r.getMessage()]
    assert "the limit is 20000" in line


def kept_alive(port: int) -> socket.socket:
    """A connection on which a request has been answered."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    read_until(connection, b'"version"')
    return connection


@pytest.fixture
def many_files():
    """Room for some 1,500 sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_idle_connections_and_a_queue_cost_no_step():
    """200 requests wait for a seat and 500 connections do nothing: the plans are the same."""

    def run(num_idle: int, num_queued: int) -> list[tuple]:
        runner = SpellingRunner()
        runner.gate = threading.Semaphore(0)
        model = LetterModel(runner, max_num_seqs=4)
        with serving(model) as served:
            idle = [kept_alive(served.port) for _ in range(num_idle)]
            body = {"prompt": "a", "max_tokens": 50}
            busy = []
            for i in range(4 + num_queued):
                busy.append(post(served.port, "/v1/completions", body, headers=CLOSE))
                if i < 4:
                    until(lambda count=i + 1: num_open(served) == count)
            until(lambda: num_open(served) == 4 + num_queued)
            runner.gate.release(60)
            until(lambda: len(runner.plans) >= 50)
            plans = [(p.num_decodes, len(p.spans)) for p in runner.plans[2:50]]
            runner.gate.release(100_000)
            for connection in busy:
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")
            for connection in idle:
                connection.close()
        return plans

    assert run(500, 200) == run(0, 0)
