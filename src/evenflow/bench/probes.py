"""The client watches itself while it watches a server: loop lag, an echo, the server's metrics.

Each probe is a coroutine that runs until it is cancelled and hands its records to a sink.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from evenflow.bench.drivers.connection import Address, ConnectionLostError, Pool, render_request
from evenflow.bench.records import Probe, Scrape
from evenflow.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.bench.drivers.http import HttpDriver

LAG_EVERY_S = 0.02
TIMER_GRAIN_S = 0.001  # a selector counts whole milliseconds, so a sleeper may wake so much later
ECHO_EVERY_S = 0.05
SCRAPE_EVERY_S = 0.5
CPU_EVERY_S = 0.5
LAG, ECHO, CPU = "loop_lag", "echo", "client_cpu"
# of a page of metrics: too many, or not about serving
DROPPED = ("_bucket", "_created")
DROPPED_NAMES = ("python_", "process_")


async def watch_loop(clock: Callable[[], float], add: Callable[[Probe], None]) -> None:
    """How late the event loop wakes a sleeper: what every time stamp here may be late by.

    The timer's own grain is taken off: bytes that arrive wake the loop without it.
    """
    while True:
        due_s = clock() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        now_s = clock()
        add(Probe(now_s, LAG, max(0.0, now_s - due_s - TIMER_GRAIN_S)))


async def watch_cpu(clock: Callable[[], float], add: Callable[[Probe], None]) -> None:
    """The processor time that this process has used so far, all its threads together."""
    while True:
        add(Probe(clock(), CPU, time.process_time()))
        await asyncio.sleep(CPU_EVERY_S)


class _EchoServer(asyncio.Protocol):
    """Answers any request with an endless stream, an event every `ECHO_EVERY_S`."""

    def __init__(self, clock: Callable[[], float], sent: list[float]) -> None:
        self._clock = clock
        self._sent = sent
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport
            transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self._next()

    def connection_lost(self, _exc: Exception | None) -> None:
        """Called by asyncio."""
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(ECHO_EVERY_S, self._tick)

    def _tick(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            event = b'data: {"choices":[{"text":"x"}]}\n\n'
            self._sent.append(self._clock())
            self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            self._next()


async def watch_echo(clock: Callable[[], float], add: Callable[[Probe], None]) -> None:
    """A message's way from a server in this process through the client's own reading code.

    The server sends on a fixed schedule, so that the delay also tells what the loop's other work
    costs each message.
    """
    sent: list[float] = []

    def on_body(_data: bytes) -> None:
        now_s = clock()
        add(Probe(now_s, ECHO, now_s - sent[-1]))

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _EchoServer(clock, sent), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = Address("http", "127.0.0.1", port, "")
    pool = Pool(address)
    try:
        connection = await pool.take()
        await connection.exchange(render_request(address, "GET", "/", {}), on_body)
    finally:
        await pool.close()
        server.close()


async def watch_metrics(
    driver: HttpDriver,
    clock: Callable[[], float],
    add: Callable[[Scrape], None],
    path: str = "/metrics",
    every_s: float = SCRAPE_EVERY_S,
) -> str:
    """Read the server's metrics now and then; gives up where there are none, and says why."""
    while True:
        try:
            answer = await driver.get(path, timeout_s=5.0)
        except (TargetError, ConnectionLostError) as e:
            return f"no metrics: {e}"
        if answer.status != 200:
            return f"no metrics: {path} answers HTTP {answer.status}"
        values = parse_metrics(answer.body.decode(errors="replace"))
        if not values:
            return f"no metrics: {path} holds none"
        add(Scrape(clock(), values))
        await asyncio.sleep(every_s)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of a page in Prometheus' text format, without histogram buckets."""
    values = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.rpartition("} ") if "} " in line else line.partition(" ")
        bare = name.partition("{")[0]
        if bare.endswith(DROPPED) or bare.startswith(DROPPED_NAMES):
            continue
        try:
            value = float(rest.split()[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            values[name + ("}" if "{" in name else "")] = value
    return values
