"""Before the model is there, and when it never comes."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from evenflow.cli.main import main
from evenflow.errors import ConfigError, ModelError
from helpers.servers import LetterModel, get, post, read_all, serving, until


@contextlib.contextmanager
def opened(gate: threading.Event):
    """Open the gate at the end, also of a test that fails."""
    try:
        yield
    finally:
        gate.set()


def test_a_stop_does_not_wait_for_the_model():
    gate = threading.Event()
    with opened(gate), serving(load=gate.wait, wait=False) as served:
        until(lambda: get(served.port, "/health").startswith(b"HTTP/1.1 503 "))
        served.loop.call_soon_threadsafe(served.server.stop)
        until(lambda: not served.loop.is_running())
        assert not gate.is_set()


def test_it_answers_while_the_model_is_being_loaded():
    gate = threading.Event()

    def load() -> LetterModel:
        gate.wait()
        return LetterModel()

    with serving(load=load, wait=False) as served, opened(gate):
        until(lambda: get(served.port, "/health").startswith(b"HTTP/1.1 503 "))
        answer = get(served.port, "/health")
        assert b"being loaded" in answer
        assert b"retry-after" in answer
        assert get(served.port, "/metrics").startswith(b"HTTP/1.1 200 ")
        body = {"prompt": "a", "max_tokens": 1}
        early = read_all(
            post(served.port, "/v1/completions", body, headers={"connection": "close"})
        )
        assert early.startswith(b"HTTP/1.1 503 ")
        gate.set()
        until(lambda: get(served.port, "/health").startswith(b"HTTP/1.1 200 "))
        late = read_all(post(served.port, "/v1/completions", body, headers={"connection": "close"}))
        assert late.startswith(b"HTTP/1.1 200 ")


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_error():
    def load() -> LetterModel:
        raise ModelError("no such model", hint="none")

    with pytest.raises(ModelError, match="no such model"), serving(load=load):
        pass


def test_a_bug_while_loading_ends_the_server_too():
    def load() -> LetterModel:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError), serving(load=load):
        pass


def test_a_taken_port_is_said_at_once(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1 port {port}" in err
    assert "hint:" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--port", "99999"], "port is 99,999"),
        (["--public-metrics"], "public_metrics"),
        (["--stream-interval", "0"], "stream_interval"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_flags_exit_with_2(capsys, arguments, word):
    assert main(["serve", *arguments]) == 2
    assert word in capsys.readouterr().err


def test_settings_know_no_listening_twice():
    with (
        serving() as served,
        pytest.raises(ConfigError, match="cannot listen"),
        serving(port=served.port),
    ):
        pass
