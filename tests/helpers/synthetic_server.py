"""The made-up engine behind an OpenAI-compatible address, in a process of its own.

    with serve(Plan(budget=512)) as server:
        ... server.url ... server.planted()

A prompt's tokens are its words. What was planted is stamped with `time.perf_counter`, which is one
clock for all processes of a machine, so it can be laid over a client's records. `/truth` gives it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.synthetic import Arrival, Event, Plan, Planted, SyntheticEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "synthetic"
WORDS = ("so ", "the ", "sea ", "is ", "wide ")


@dataclass(frozen=True)
class Behaviour:
    """What the server does besides computing.

    `cut_every` ends every so-many-th stream after a few tokens without a word; `garbage_every`
    puts bytes into it that are no UTF-8; both 0 is never.
    """

    api_key: str = ""
    status: int = 200
    counts_each: bool = True  # obeys stream_options.continuous_usage_stats
    usage: bool = True
    cut_every: int = 0
    garbage_every: int = 0
    metrics: bool = True


@dataclass
class _Stream:
    queue: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)


class Server:
    """Requests in, tokens out, in real time."""

    def __init__(self, plan: Plan, behaviour: Behaviour) -> None:
        self.plan = plan
        self.behaviour = behaviour
        self.engine = SyntheticEngine(plan)
        self.started = time.perf_counter()
        self.streams: dict[str, _Stream] = {}
        self.wake = asyncio.Event()
        self.count = 0
        self.rng = random.Random(plan.seed)

    def now(self) -> float:
        return time.perf_counter() - self.started

    async def loop(self) -> None:
        """Step after step; each takes exactly as long as the engine says, as far as sleep allows."""
        while True:
            if not self.engine.busy:
                self.wake.clear()
                await self.wake.wait()
            began = self.now()
            seconds, tokens = self.engine.step(began)
            await asyncio.sleep(max(0.0, began + seconds - self.now()))
            late = self.now() - began - seconds
            if self.engine.planted and self.engine.planted[-1].start_s == began:
                last = self.engine.planted[-1]
                self.engine.planted[-1] = last._replace(end_s=last.end_s + late)
            for token in tokens:
                if (stream := self.streams.get(token.id)) is not None:
                    stream.queue.put_nowait(token.last)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which may carry several requests."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                line, *rest = head.split("\r\n")
                headers = dict(h.lower().split(": ", 1) for h in rest if ": " in h)
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = line.split(" ", 2)
                await self._answer(method, path, headers, body, writer)
        with suppress(ConnectionError):
            writer.close()

    async def _answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        key = self.behaviour.api_key
        if key and headers.get("authorization") != f"bearer {key}".lower():
            await _plain(writer, 401, json.dumps({"error": {"message": "no valid key"}}))
        elif path == "/truth":
            shifted = [
                p._replace(start_s=p.start_s + self.started, end_s=p.end_s + self.started)
                for p in self.engine.planted
            ]
            await _plain(writer, 200, json.dumps(shifted))
        elif path in {"/health", "/v1/models"}:
            await _plain(writer, 200, json.dumps({"object": "list", "data": [{"id": MODEL}]}))
        elif path == "/metrics" and self.behaviour.metrics:
            await _plain(writer, 200, self._metrics(), "text/plain")
        elif method == "POST" and path in {"/v1/completions", "/v1/chat/completions"}:
            await self._generate(json.loads(body), writer, chat="chat" in path)
        else:
            await _plain(writer, 404, json.dumps({"error": {"message": f"no {path}"}}))

    def _metrics(self) -> str:
        kinds = [p.cause for p in self.engine.planted]
        label = f'{{model_name="{MODEL}"}}'
        return (
            "# TYPE vllm:num_preemptions_total counter\n"
            f"vllm:num_preemptions_total{label} {kinds.count('preemption')}.0\n"
            f"vllm:num_requests_running{label} {len(self.engine.running)}.0\n"
            f"vllm:num_requests_waiting{label} {len(self.engine.waiting)}.0\n"
        )

    async def _generate(
        self, asked: dict[str, Any], writer: asyncio.StreamWriter, *, chat: bool
    ) -> None:
        if self.behaviour.status != 200:
            message = {"error": {"message": "the server is set to refuse"}}
            await _plain(writer, self.behaviour.status, json.dumps(message))
            return
        if asked.get("model") != MODEL:
            message = {"error": {"message": f"the model {asked.get('model')!r} does not exist"}}
            await _plain(writer, 404, json.dumps(message))
            return
        text = " ".join(m["content"] for m in asked["messages"]) if chat else asked["prompt"]
        self.count += 1
        name = f"req-{self.count}"
        prompt_tokens = max(1, len(text.split()))
        wanted = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        stream = self.streams[name] = _Stream()
        self.engine.submit(Arrival(self.now(), name, prompt_tokens, wanted))
        self.wake.set()
        try:
            if asked.get("stream"):
                await self._stream(name, stream, asked, prompt_tokens, writer, chat=chat)
            else:
                for _ in range(wanted):
                    await stream.queue.get()
                usage = {"prompt_tokens": prompt_tokens, "completion_tokens": wanted}
                answer = {"choices": [{"text": "so " * wanted, "finish_reason": "length"}]}
                await _plain(writer, 200, json.dumps({**answer, "usage": usage}))
        finally:
            self.engine.cancel(name)
            del self.streams[name]

    async def _stream(
        self,
        name: str,
        stream: _Stream,
        asked: dict[str, Any],
        prompt_tokens: int,
        writer: asyncio.StreamWriter,
        *,
        chat: bool,
    ) -> None:
        options = asked.get("stream_options") or {}
        each = self.behaviour.counts_each and options.get("continuous_usage_stats", False)
        number = self.count
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 0}
        if chat:
            delta = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
            await _event(writer, {**delta, **({"usage": usage} if each else {})})
        sent = held = 0
        last = False
        while not last:
            last = await stream.queue.get()
            sent, held = sent + 1, held + 1
            if self._holds(name) and not last:
                continue
            if sent > 1 and held < self.plan.tokens_per_message and not last:
                continue
            if self.plan.jitter_ms:
                await asyncio.sleep(self.rng.uniform(0, self.plan.jitter_ms / 1e3))
            text = "".join(WORDS[(sent + i) % len(WORDS)] for i in range(held))
            held = 0
            usage["completion_tokens"] = sent
            piece = {"delta": {"content": text}} if chat else {"text": text}
            choice = {"index": 0, **piece, "finish_reason": "length" if last else None}
            await _event(writer, {"choices": [choice], **({"usage": usage} if each else {})})
            if sent >= 3 and _every(number, self.behaviour.garbage_every):
                await _chunk(writer, b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n')
            if sent >= 3 and _every(number, self.behaviour.cut_every):
                writer.transport.abort()
                raise ConnectionError
        if self.behaviour.usage and options.get("include_usage"):
            await _event(writer, {"choices": [], "usage": usage})
        await _chunk(writer, b"data: [DONE]\n\n")
        await _chunk(writer, b"")

    def _holds(self, name: str) -> bool:
        now = self.now()
        return any(
            b.stream in {"", name} and b.at_s <= now < b.at_s + b.seconds for b in self.plan.buffers
        )


def _every(number: int, period: int) -> bool:
    return period > 0 and number % period == 0


async def _event(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
    await _chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


async def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def _plain(
    writer: asyncio.StreamWriter, status: int, text: str, kind: str = "application/json"
) -> None:
    body = text.encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


class Running:
    """A server that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def planted(self) -> list[Planted]:
        """What happened so far, in seconds of `time.perf_counter`."""
        with urllib.request.urlopen(f"{self.url}/truth", timeout=10) as answer:
            return [Planted(*p) for p in json.load(answer)]


@contextmanager
def serve(plan: Plan | None = None, behaviour: Behaviour | None = None) -> Iterator[Running]:
    """A server on a free port of the loopback; events of the plan count from its start."""
    given = {"plan": asdict(plan or Plan()), "behaviour": asdict(behaviour or Behaviour())}
    tests = Path(__file__).parents[1]
    path = os.pathsep.join(str(p) for p in (tests, tests.parent / "src"))
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers.synthetic_server", json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line, "the synthetic server did not start"
        yield Running(line)
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


def _plan(value: dict[str, Any]) -> Plan:
    for name in ("pauses", "preemptions", "buffers", "client_stops"):
        value[name] = tuple(Event(*e) for e in value[name])
    return Plan(**value)


async def _main(given: dict[str, Any]) -> None:
    server = Server(_plan(given["plan"]), Behaviour(**given["behaviour"]))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**24)
    print(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", flush=True)
    await server.loop()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(json.loads(sys.argv[1])))
