"""A client that goes away, at any moment and in any way, costs nothing after the step it went in."""

from __future__ import annotations

import socket
import threading

import pytest

from helpers.engines import SpellingRunner
from helpers.servers import LetterModel, post, read_until, serving, until


def close(connection: socket.socket) -> None:
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


@pytest.fixture
def gated():
    """A server whose engine makes a step only when it is told to, with chunks of 8 tokens."""
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    model = LetterModel(runner, max_num_batched_tokens=8, min_prefill_tokens=2)
    with serving(model) as found:
        yield found, runner
        runner.gate.release(10_000)


def steps(runner: SpellingRunner, count: int) -> None:
    """Let the engine make `count` more steps, and no other."""
    done = len(runner.plans)
    if count:
        runner.gate.release(count)
    until(lambda: len(runner.plans) == done + count)


def wait_open(served, count: int) -> None:
    until(lambda: served.on_loop(lambda: served.bridge.num_open) == count)


def wait_cancelled(served) -> None:
    """Wait until the server has seen that the client is gone."""
    until(
        lambda: (
            not served.model.engine._inbox.empty()
            or served.on_loop(lambda: served.bridge.num_open) == 0
        )
    )


@pytest.mark.parametrize("leave", [close, half_close, reset])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 7])
def test_blocks_are_free_within_one_step(gated, leave, streaming, num_steps):
    """A prompt of 40 tokens takes 5 steps of 8: the client leaves before, mid-prefill or after."""
    served, runner = gated
    body = {"prompt": [1] * 40, "max_tokens": 50, "stream": streaming}
    connection = post(served.port, "/v1/completions", body)
    wait_open(served, 1)
    steps(runner, num_steps)
    until(served.model.engine._inbox.empty)  # taken: what lies there next is the cancellation
    leave(connection)
    wait_cancelled(served)
    # the step that was being computed may end; the cancellation is taken before the next one
    runner.gate.release(1)
    wait_open(served, 0)
    stats = served.model.engine.stats()
    assert (stats.kv.held, stats.num_running, stats.num_waiting) == (0, 0, 0)
    assert len(runner.plans) <= num_steps + 1
    connection.close()


def test_the_others_go_on_with_the_same_tokens(gated):
    served, runner = gated
    stays = {"prompt": "stay", "max_tokens": 30, "stream": True}
    runner.gate.release(40)
    with post(served.port, "/v1/completions", stays) as connection:
        alone = read_until(connection, b"[DONE]")
    wait_open(served, 0)
    leaves = post(served.port, "/v1/completions", {"prompt": [1] * 99, "stream": True})
    connection = post(served.port, "/v1/completions", stays)
    wait_open(served, 2)
    runner.gate.release(3)
    leaves.close()
    runner.gate.release(10_000)
    with connection:
        crowded = read_until(connection, b"[DONE]")
    assert texts(crowded) == texts(alone)


def texts(raw: bytes) -> list[bytes]:
    return [part.split(b'"', 1)[0] for part in raw.split(b'"text":"')[1:]]


def test_a_client_that_leaves_while_it_sends_its_body(served):
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b'content-length: 1000\r\n\r\n{"prompt": "a'
    )
    connection.close()
    with post(served.port, "/v1/completions", {"prompt": "a"}) as connection:
        answer = read_until(connection, b"usage")
    assert answer.startswith(b"HTTP/1.1 200 ")
