"""A real server on a real socket, in a thread, over an engine that computes nothing.

`python -m helpers.servers` runs one as a process of its own, for tests of signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import uvloop

from evenflow.config import EngineConfig
from evenflow.engine import Engine
from evenflow.llm import scheduler_options
from evenflow.schedule.scheduler import Scheduler
from evenflow.server.run import Server, listen
from evenflow.server.settings import Settings
from evenflow.text.chat import ChatTemplate
from helpers.engines import LetterTokenizer, SpellingRunner


class SpeakingTokenizer(LetterTokenizer):
    """Letters both ways: a character's token is 1 + its code modulo 26."""

    chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
    )
    special_tokens: ClassVar[dict[str, str]] = {}

    def encode(self, text, *, add_special_tokens=True) -> list[int]:
        return ([1] if add_special_tokens else []) + [1 + ord(c) % 26 for c in text]

    def encode_chat(self, rendered) -> list[int]:
        return self.encode(rendered, add_special_tokens=False)

    def prepare_grammars(self) -> None:
        pass

    def decode(self, ids, *, skip_special_tokens=True) -> str:
        return b"".join(self.pieces[i] for i in ids).decode()


class PacedRunner(SpellingRunner):
    """A step takes `step_s`, asleep: the engine's thread leaves the interpreter to others."""

    def __init__(self, step_s: float, **options) -> None:
        super().__init__(**options)
        self.step_s = step_s
        self.keep_plans = False

    def submit(self, plan):
        time.sleep(self.step_s)
        handle = super().submit(plan)
        if not self.keep_plans:
            self.plans.clear()
        return handle


class LetterModel:
    """What `LLM` is to the server."""

    def __init__(self, runner=None, tokenizer=None, **options) -> None:
        values = {"num_kv_blocks": 4096, "block_size": 4, "max_model_len": 4096} | options
        self.config = EngineConfig.resolve(
            {"model": "letters", **values},
            context_length=values["max_model_len"],
            kv_bytes_per_token=4,
            free_memory_bytes=2**30,
        )
        self.tokenizer = tokenizer or SpeakingTokenizer()
        self._template = ChatTemplate.from_tokenizer(self.tokenizer, now=datetime.now)
        self.runner = runner or SpellingRunner()
        self.scheduler = Scheduler(scheduler_options(self.config))
        self.engine = Engine(self.config, self.scheduler, self.runner, self.tokenizer)

    def render_chat(self, messages, **options) -> str:
        return self._template.render(messages, **options)

    def close(self) -> None:
        self.engine.close()

    def wait_idle(self) -> None:
        """Wait until no request holds a block; a test's runner limits how long that is."""
        until(lambda: not (self.engine.stats().kv.held or self.engine.stats().num_waiting))


@dataclass
class Served:
    """A running server and what is behind it."""

    port: int
    server: Server
    model: LetterModel
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on_loop(self, call, *args):
        """Call on the loop's thread and return the result."""

        async def run():
            return call(*args)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=60)

    @property
    def bridge(self):
        return self.server.state.loaded()[1]


@contextlib.contextmanager
def serving(model=None, *, load=None, wait=True, **settings):
    """A server in a thread; stopped, drained and joined at the end."""
    made = Settings(**({"port": 0, "drain_timeout_s": 5} | settings))
    ready = threading.Event()
    ends: list[BaseException] = []
    found = Served(0, None, model, None)
    if load is None:
        found.model = model = model or LetterModel()

    server = Server(made, load or (lambda: model), lambda *_: ready.set())
    listener = listen(made.host, made.port)
    found.server, found.port = server, listener.getsockname()[1]

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found.loop = runner.get_loop()
                runner.run(server.serve(listener))
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            ends.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=main, name="test-server")
    thread.start()
    if wait:
        ready.wait()
    try:
        yield found
    finally:
        gate = getattr(getattr(model, "runner", None), "gate", None)
        if gate is not None:
            gate.release(1_000_000)  # a test that failed must not leave the engine waiting
        until(lambda: found.loop is not None)
        with contextlib.suppress(RuntimeError):  # the test has stopped it
            found.loop.call_soon_threadsafe(server.stop)
        thread.join()
    if ends:
        raise ends[0]


def make_document() -> dict:
    """The OpenAPI document, without a server."""
    return Server(Settings(), LetterModel, lambda *_: None).document()


def until(condition) -> None:
    """Wait for something that must come; minutes late is a hang, and says so."""
    given_up = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < given_up, "waited in vain"
        time.sleep(0.001)


def post(port: int, path: str, body: object, *, headers=None) -> socket.socket:
    """A raw connection on which a request has been sent."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {
        "host": "test",
        "content-type": "application/json",
        "content-length": str(len(data)),
    } | (headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return connection


def get(port: int, path: str, headers=None) -> bytes:
    """A whole answer to a GET."""
    fields = {"host": "test", "connection": "close"} | (headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes; closes this side too."""
    parts = []
    with connection:
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until a mark has come."""
    data = b""
    while mark not in data:
        part = connection.recv(65_536)
        assert part, f"closed after {data[-200:]!r}"
        data += part
    return data


def main() -> None:
    """Serve until a signal: step seconds, drain seconds."""
    step_s, drain_s = float(sys.argv[1]), float(sys.argv[2])
    model = LetterModel(PacedRunner(step_s))
    settings = Settings(port=0, drain_timeout_s=drain_s)
    code = Server(settings, lambda: model, lambda _, url: print(url, flush=True)).run()
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    print("threads:", *others, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
