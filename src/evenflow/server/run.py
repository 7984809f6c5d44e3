"""Runs the server until it is told to stop: load, serve, drain, stop.

In: settings and a way to load the model. Out: an exit code. The port answers while the model is
being loaded (/health says 503), so that whoever waits for it sees the difference between slow and
dead. SIGTERM and the first SIGINT drain; a second signal stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import uvicorn

from evenflow.errors import ConfigError, ModelError
from evenflow.server.app import make_api
from evenflow.server.bridge import Bridge
from evenflow.server.door import door_class
from evenflow.server.exposition import Exposition
from evenflow.server.gate import Gate
from evenflow.server.metrics import Metrics
from evenflow.server.prompts import PromptReader
from evenflow.server.slices import LONG_S, SOON_S, USUAL_S, ask_for
from evenflow.server.state import Model, ServerState
from evenflow.server.steps import StepFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from evenflow.server.settings import Settings

T = TypeVar("T")
log = logging.getLogger("evenflow.server")
LAST_WORDS_S = 2  # for answers that are already written to leave
KEEP_ALIVE_S = 75
BACKLOG = 2048


class LoadedModel(Model, Protocol):
    """A model that can be given back; `LLM` is one."""

    def close(self) -> None:
        """Cancel what runs and give everything back."""
        ...


class _Uvicorn(uvicorn.Server):
    """uvicorn, with its signals handed to us: it would close the door before the drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """One server process.

    Args:
        settings: what it was told.
        load: makes the model; runs on another thread, takes as long as it takes.
        announce: called on the loop when requests are served, with the model and the base URL.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], LoadedModel],
        announce: Callable[[LoadedModel, str], None],
    ) -> None:
        self._settings = settings
        self._load = load
        self._announce = announce
        self._metrics = Metrics(time.perf_counter)
        self.state = ServerState(
            settings,
            self._metrics,
            StepFeed(self._metrics),
            wall_clock=time.time,
            new_id=lambda: uuid.uuid4().hex,
        )
        self._reader = PromptReader()
        self._scrape = Exposition(self._metrics, settings.metrics_prefix)
        self._api = make_api(self.state, self._reader, self._scrape)
        self._model: LoadedModel | None = None
        self._num_signals = 0
        self._drainer: asyncio.Task[None] | None = None
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                Gate(self._api, settings, self.state.new_id),
                loop="uvloop",
                http=door_class(settings),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )

    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return self._api.openapi()

    def run(self) -> int:
        """Serve until stopped; 0 when that went well.

        Raises:
            ConfigError: the address cannot be listened on.
            EvenflowError: the model could not be loaded.
        """
        listener = listen(self._settings.host, self._settings.port)
        with asyncio.Runner(loop_factory=self._uvicorn.config.get_loop_factory()) as runner:
            runner.run(self.serve(listener, signals=(signal.SIGINT, signal.SIGTERM)))
        return 0

    async def serve(
        self, listener: socket.socket, *, signals: Sequence[signal.Signals] = ()
    ) -> None:
        """Serve on a bound socket until `stop`; gives the model back at the end.

        Args:
            listener: from `listen`.
            signals: those that call `stop`; only the main thread can take any.
        """
        loop = asyncio.get_running_loop()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        try:
            await self._serve(listener)
        finally:
            self._reader.close()
            if self._model is not None:
                await asyncio.to_thread(self._model.close)

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ask_for(SOON_S)
        serving: asyncio.Future[None] = asyncio.ensure_future(
            self._uvicorn.serve(sockets=[listener])
        )
        loading = _on_daemon_thread(lambda: _prepared(self._load()))
        try:
            either: list[asyncio.Future[Any]] = [serving, loading]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():  # told to stop before it had begun
                return
            self._model = loading.result()
            self._metrics.stats = self._model.engine.stats
            self.state.attach(self._model, Bridge(self._model.engine, loop, self._metrics))
            self._scrape.name_model(self.state.served_names[0])
            if not self.state.is_draining:
                self._announce(self._model, _url(listener))
        except BaseException:
            self._uvicorn.should_exit = True
            raise
        finally:
            await serving
            ask_for(USUAL_S)

    def stop(self) -> None:
        """Take a signal: drain at the first, stop at once at the second."""
        self._num_signals += 1
        self.state.is_draining = True
        if self._num_signals == 1:
            self._drainer = asyncio.get_running_loop().create_task(self._drain())
            return
        log.warning("stopping at once; %d requests are cut off", self.state.num_open)
        self._end()

    async def _drain(self) -> None:
        """Let running requests finish, within the drain timeout."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.drain_timeout_s
        if self.state.num_open:
            log.warning(
                "draining: %d requests may finish within %g s; a second signal stops at once",
                self.state.num_open,
                self._settings.drain_timeout_s,
            )
        while self.state.num_open and loop.time() < end_s and not self._uvicorn.should_exit:  # noqa: ASYNC110 - a few looks in the last seconds of a process
            await asyncio.sleep(0.02)
        if self.state.num_open:
            log.warning("%d requests are cut off by the drain timeout", self.state.num_open)
        self._end()

    def _end(self) -> None:
        self.state.end()
        self._uvicorn.should_exit = True


def _prepared(model: LoadedModel) -> LoadedModel:
    """A model whose first structured output will not hold up the streams beside it."""
    with contextlib.suppress(ModelError):  # one without an end of sequence; the request is told
        model.tokenizer.prepare_grammars()
    return model


def _on_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Its result, later; the end of the process does not wait for it, as a pool would.

    The engine's and the compute threads are children of this one and as patient.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_it(value)

    def main() -> None:
        outcome: tuple[Callable[[Any], None], object]
        ask_for(LONG_S)
        try:
            outcome = (future.set_result, work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            outcome = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=main, name="evenflow-load", daemon=True).start()
    return future


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on, before anything slow happens.

    Raises:
        ConfigError: the address is not ours, or taken.
    """
    listener = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="choose another --port, or stop what listens there",
        ) from error
    return listener


def _url(listener: socket.socket) -> str:
    address: Any = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"
