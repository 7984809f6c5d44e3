"""llama.cpp's server, over HTTP on the loopback: it has no other front door that batches streams.

Runs in this project's environment, with the client of `evenflow bench`, which needs some 20
microseconds a message.
"""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from evenflow.bench.drivers.connection import Address, Pool, render_request

CONTEXT = 32_768  # of all slots together; every slot may use all of it
SLOTS = 33
READY_S = 60
LARGEST = 8192


class Llama:
    """See `worker.PeerEngine`.

    Keys and values are of its own default type, f16: with bf16 ones a prompt of 1,000 tokens takes
    2.2 times as long on the CPU.
    """

    version = "?"

    def __init__(self, server: Path, model: Path) -> None:
        self._server, self._model = server, model
        self._process: subprocess.Popen[bytes] | None = None
        self._events: queue.SimpleQueue[tuple[str, list[int]] | Exception] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._pool: Pool | None = None
        self._address: Address | None = None
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
        self.version = next(
            (w for w in (said.stderr + said.stdout).splitlines() if "version" in w), "?"
        )

    def open(self, budget: int) -> None:
        self.close()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        batch = ["-b", str(budget or LARGEST), "-ub", str(budget or 512)]
        command = [
            str(self._server), "-m", str(self._model), "--host", "127.0.0.1", "--port", str(port),
            "-t", "2", "-tb", "2", "-np", str(SLOTS), "-c", str(CONTEXT), "--kv-unified",
            "--no-warmup", *batch,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
        self._address = Address.parse(f"http://127.0.0.1:{port}")
        self._pool = Pool(self._address)
        self._wait(f"http://127.0.0.1:{port}/health")

    def _wait(self, url: str) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self._process.returncode}")
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"llama-server was not ready within {READY_S} s")

    def submit(self, name: str, ids: list[int], max_tokens: int) -> None:
        body = {
            "prompt": ids, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        asyncio.run_coroutine_threadsafe(self._follow(name, body), self._loop)

    async def _follow(self, name: str, body: dict[str, object]) -> None:
        buffer = bytearray()

        def on_body(data: bytes) -> None:
            buffer.extend(data)
            while (end := buffer.find(b"\n\n")) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 2]
                if line.startswith(b"data: {"):
                    ids = json.loads(line[6:]).get("tokens") or []
                    if ids:
                        self._events.put((name, ids))

        try:
            # a new one each time: while another peer is measured this process is stopped, and the server
            # ends connections that are idle for long
            connection = await self._pool.take(fresh=True)
            data = json.dumps(body).encode()
            request = render_request(self._address, "POST", "/completion", {}, data)
            status = await connection.exchange(request, on_body)
            connection.close()
            if status != 200:
                self._events.put(
                    RuntimeError(f"llama-server answered {status}: {bytes(buffer[:200])!r}")
                )
        except Exception as e:  # noqa: BLE001 - goes to whoever waits for tokens
            self._events.put(e)

    def step(self) -> list[tuple[str, list[int]]]:
        event = self._events.get()
        if isinstance(event, Exception):
            raise event
        return [event]

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
        self._process = None


def make(weights: str, models: str) -> Llama:
    folder = Path(models)
    servers = sorted((folder.parent / "llama.cpp").rglob("llama-server"))
    if not servers:
        raise RuntimeError("the package holds no llama-server")
    return Llama(servers[-1], folder / f"smollm2-{weights}.gguf")
