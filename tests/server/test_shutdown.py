"""Signals, in a process of its own: drain, stop at once, exit code 0, nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.servers import get, post, read_all, read_until, until

CLOSE = {"connection": "close"}
TESTS = Path(__file__).parents[1]


class Process:
    """`python -m helpers.servers`, ready."""

    def __init__(self, step_s: float, drain_s: float) -> None:
        path = [str(TESTS), *sys.path]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "helpers.servers", str(step_s), str(drain_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        )
        self.port = int(self.popen.stdout.readline().rsplit(":", 1)[1])

    def end(self) -> tuple[int, str, str]:
        """Exit code, and what it wrote."""
        out, err = self.popen.communicate(timeout=60)
        return self.popen.returncode, out, err


@pytest.fixture
def start():
    started = []

    def make(step_s: float, drain_s: float) -> Process:
        started.append(Process(step_s, drain_s))
        return started[-1]

    yield make
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.communicate()


def stream(port: int, max_tokens: int) -> socket.socket:
    body = {"prompt": "a", "max_tokens": max_tokens, "stream": True}
    connection = post(port, "/v1/completions", body, headers=CLOSE)
    read_until(connection, b'"text"')
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_it_stops_with_0_and_no_threads(start, number):
    process = start(0.001, 5)
    process.popen.send_signal(number)
    code, out, err = process.end()
    assert (code, out, err) == (0, "threads:\n", "")


def test_running_requests_finish_and_new_ones_are_refused(start):
    process = start(0.01, 60)
    running = stream(process.port, 100)
    process.popen.send_signal(signal.SIGTERM)
    until(lambda: get(process.port, "/health").startswith(b"HTTP/1.1 503 "))
    refused = read_all(post(process.port, "/v1/completions", {"prompt": "a"}, headers=CLOSE))
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after" in refused
    rest = read_all(running)
    assert b'"finish_reason":"length"' in rest
    assert b"[DONE]" in rest
    code, out, err = process.end()
    assert (code, out) == (0, "threads:\n")
    assert "draining: 1 requests" in err


def test_the_drain_ends_at_its_timeout(start):
    process = start(0.01, 0.3)
    running = stream(process.port, 4000)
    process.popen.send_signal(signal.SIGTERM)
    rest = read_all(running)
    assert b"the server stops" in rest
    code, out, err = process.end()
    assert (code, out) == (0, "threads:\n")
    assert "cut off by the drain timeout" in err


def test_a_second_signal_stops_at_once(start):
    process = start(0.01, 600)
    running = stream(process.port, 4000)
    process.popen.send_signal(signal.SIGINT)
    until(lambda: get(process.port, "/health").startswith(b"HTTP/1.1 503 "))
    process.popen.send_signal(signal.SIGINT)
    assert b"the server stops" in read_all(running)
    code, out, err = process.end()
    assert (code, out) == (0, "threads:\n")
    assert "stopping at once" in err


def test_a_watcher_does_not_hold_up_the_end(start):
    process = start(0.001, 60)
    watcher = socket.create_connection(("127.0.0.1", process.port), timeout=60)
    watcher.sendall(b"GET /v1/steps HTTP/1.1\r\nhost: x\r\n\r\n")
    read_until(watcher, b": steps")
    process.popen.send_signal(signal.SIGTERM)
    assert read_all(watcher).endswith(b"0\r\n\r\n")
    assert process.end()[0] == 0
