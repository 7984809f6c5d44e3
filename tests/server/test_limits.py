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


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def test_headers_that_do_not_end_are_refused_after_a_while():
    """Each line comes in time for the last one; the whole does not."""
    with serving(header_timeout_s=0.2) as served, connect(served.port) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        stop = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not stop.wait(0.02):
                    slow.sendall(b"x-more: 1\r\n")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            answer = read_until(slow, b"}}")
        finally:
            stop.set()
            dripping.join()
        assert num_open(served) == 0
    status, fields, error = parts(answer)
    assert status == 408
    assert fields["connection"] == "close"
    assert error["error"]["code"] == "header_timeout"
    assert "0.2 s" in error["error"]["message"]


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
@pytest.mark.parametrize("used", [False, True])
def test_a_connection_that_asks_nothing_is_closed(sent, used):
    """A line break alone is no request, also behind an answer."""
    with serving(header_timeout_s=0.1) as served, connect(served.port) as idle:
        if used:
            idle.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            read_until(idle, b"}")
            sent = sent or b"\r\n"
        idle.sendall(sent)
        rest = read_all(idle)
    assert rest == b"" or (rest.startswith(b"HTTP/1.1 408 ") and sent)


def test_a_kept_connection_may_rest_longer_than_headers_may_take():
    with serving(header_timeout_s=0.1) as served, connect(served.port) as kept:
        for _ in range(2):
            kept.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            read_until(kept, b"}")
            with connect(
                served.port
            ) as other:  # closed by its own timer, after ours would have been
                assert read_all(other) == b""


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("what", ["line", "one header", "many headers"])
def test_headers_that_are_too_large_are_refused(what, pieces):
    head = {
        "line": b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\n",
        "one header": b"GET /health HTTP/1.1\r\nx-long: " + b"a" * 3000,
        "many headers": b"GET /health HTTP/1.1\r\n" + b"x-many: 1\r\n" * 300,
    }[what]
    with serving(max_header_bytes=2048) as served, connect(served.port) as large:
        size = -(-len(head) // pieces)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            for start in range(0, len(head), size):
                large.sendall(head[start : start + size])
        answer = read_until(large, b"}}")
    status, _, error = parts(answer)
    assert status == 431
    assert error["error"]["code"] == "headers_too_large"
    assert "2,048 bytes" in error["error"]["message"]


def test_a_body_does_not_count_as_a_header():
    """Both come in one piece; and the next request on the connection is counted from zero."""
    with serving(max_header_bytes=1024) as served, connect(served.port) as kept:
        body = json.dumps({"prompt": "a" * 3000, "max_tokens": 1}).encode()
        head = (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"x-fill: " + b"a" * 600 + b"\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        for _ in range(3):
            kept.sendall(head + body)
            assert b"HTTP/1.1 200 " in read_until(kept, b"}}")


def test_an_unread_body_does_not_hold_a_connection():
    with serving(header_timeout_s=0.1, max_body_bytes=2000) as served, connect(served.port) as idle:
        idle.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 9000\r\n\r\n{"
        )
        assert read_all(idle).startswith(b"HTTP/1.1 413 ")


def test_what_is_no_http_gets_an_error_of_the_usual_shape(served):
    with connect(served.port) as other:
        other.sendall(b"\x16\x03\x01 a TLS greeting\r\n\r\n")
        status, _, error = parts(read_all(other))
    assert status == 400
    assert error["error"]["code"] == "malformed_request"
