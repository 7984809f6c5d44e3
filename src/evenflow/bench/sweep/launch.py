"""Starts a target for a setting and ends it again.

A target is a server in a process group of its own, or a model in this process. A server is ended by
the id of the group that was started here, never by a name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow.bench.drivers.http import HttpDriver, HttpOptions
from evenflow.bench.session import Session, local_session, server_session
from evenflow.bench.sweep.recipes import Recipe, Setting, command_for
from evenflow.errors import TargetError
from evenflow.trace import TraceWriter

if TYPE_CHECKING:
    from evenflow.llm import LLM

READY_EVERY_S = 0.25
TERM_WAIT_S = 20.0
LOG_LINES = 6

# given a setting and the path of a log, a session with a target that has the setting
Launcher = Callable[[Setting, Path], AbstractAsyncContextManager[Session]]


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How servers are started; an instance is a `Launcher`."""

    recipe: Recipe
    model: str
    served_name: str | None
    http: HttpOptions
    more: str = ""
    ready_timeout_s: float = 600.0

    @asynccontextmanager
    async def __call__(self, setting: Setting, log: Path) -> AsyncIterator[Session]:
        """Start, wait until it serves, hand over, end it.

        Raises:
            TargetError: it does not start, or not in time.
        """
        port = free_port()
        words = command_for(self.recipe, setting, model=self.model, port=port, more=self.more)
        with log.open("wb") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdout=out,
                    stderr=asyncio.subprocess.STDOUT,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as e:
                raise TargetError(
                    f"cannot start {words[0]}: {e.strerror}",
                    hint="is it installed, and on the PATH?",
                ) from e
        try:
            url = f"http://127.0.0.1:{port}"
            await self._ready(url, process, log)
            async with server_session(url, self.served_name, self.http, count_each=None) as session:
                session.facts.update(setting=setting.slug, engine=self.recipe.name, command=words)
                yield session
        finally:
            await end_group(process)

    async def _ready(self, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
        driver = HttpDriver(url, self.http)
        until_s = time.monotonic() + self.ready_timeout_s
        try:
            while True:
                if process.returncode is not None:
                    raise TargetError(
                        f"the server ended with status {process.returncode} before it was ready: "
                        f"{last_lines(log)}",
                        hint=f"all it said is in {log}",
                    )
                try:
                    if (await driver.get(self.recipe.ready_path, timeout_s=5.0)).status == 200:
                        return
                except TargetError:
                    pass
                if time.monotonic() > until_s:
                    raise TargetError(
                        f"the server was not ready within {self.ready_timeout_s:g} s: "
                        f"{last_lines(log)}",
                        hint="raise --ready-timeout, or look at its log: " + str(log),
                    )
                await asyncio.sleep(READY_EVERY_S)
        finally:
            await driver.close()


@dataclass(frozen=True, slots=True)
class LocalLaunch:
    """How models are loaded in this process; an instance is a `Launcher`.

    `load` makes an `LLM` with the given engine options.
    """

    load: Callable[[dict[str, Any]], LLM]
    model: str
    engine: dict[str, Any]
    ignore_eos: bool = True

    @asynccontextmanager
    async def __call__(self, setting: Setting, log: Path) -> AsyncIterator[Session]:
        """Load, hand over, close; the records of the engine's steps go beside the log."""
        llm = self.load({**self.engine, **engine_options(setting)})
        with TraceWriter(log.with_suffix(".steps.jsonl")) as writer:
            llm.trace(writer)
            try:
                session = local_session(llm, self.model, ignore_eos=self.ignore_eos)
                session.facts.update(setting=setting.slug, engine="evenflow")
                yield session
            finally:
                llm.close()


def engine_options(setting: Setting) -> dict[str, Any]:
    """A setting in the words of our own engine."""
    if setting.budget is None:
        return {"enable_chunked_prefill": False}
    return {"enable_chunked_prefill": True, "max_num_batched_tokens": setting.budget}


def with_full_output(options: HttpOptions) -> HttpOptions:
    """The same, asking for every output token, so that all settings do the same work."""
    return replace(options, ignore_eos=True)


async def end_group(process: asyncio.subprocess.Process) -> None:
    """End a server and what it started: politely, and after a while not."""
    for sign, wait_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, TERM_WAIT_S)):
        try:
            os.killpg(process.pid, sign)  # its group has its id: it leads the session
        except ProcessLookupError:
            break
        try:
            async with asyncio.timeout(wait_s):
                await process.wait()
        except TimeoutError:
            continue
        # its children may outlive it; the next round ends them for good
    await process.wait()


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_lines(log: Path) -> str:
    """The end of a log, in one line; of a Python traceback only what it ends with."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        lines = [line for line in lines if line[:1].strip() and not line.startswith("Traceback (")]
    return (
        " | ".join(line.strip() for line in lines[-LOG_LINES:] if line.strip())
        or "(it said nothing)"
    )
