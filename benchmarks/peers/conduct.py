"""Takes turns: every job in every repeat by every peer, one at a time, the others stopped meanwhile.

A worker that is not being measured is stopped by a signal, so that threads of its own that spin or
wake cost the measured one nothing. In: peers that are ready. Out: one `Measured` per job and turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peers.figures import outlasted
from peers.install import environment
from peers.plan import LEAD_TOKENS, Measured, prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from peers.install import Ready
    from peers.plan import Job, Peer


@dataclass
class Run:
    """All that was measured; `problems` by peer, `versions` by peer."""

    measured: list[Measured] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    repeats: int = 0


class Worker:
    """A peer's process, in a group of its own."""

    def __init__(self, peer: Peer, ready: Ready, models: Path, log: Path) -> None:
        command = [str(ready.python), "-m", "peers.worker", peer.engine, peer.weights, str(models)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment(),
                start_new_session=True,
            )
        self._log = log

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Let it go on for one command.

        Raises:
            RuntimeError: it failed; says why.
        """
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise RuntimeError(self._last_words())
        self._signal(signal.SIGSTOP)
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def end(self) -> None:
        """End it and what it started, by the id of its group."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _last_words(self) -> str:
        lines = [s for s in self._log.read_text("utf-8", "replace").splitlines() if s.strip()]
        return lines[-1].strip() if lines else "it ended without a word"


def conduct(
    peers: Sequence[Peer],
    ready: dict[str, Ready],
    todo: Sequence[Job],
    cache: Path,
    *,
    repeats: int,
    minutes: float,
    say: Callable[[str], None],
) -> Run:
    """Run everything; no repeat is begun that would not be over in time.

    A peer that fails is left out from then on, and its last words are kept.
    """
    run = Run()
    workers: dict[str, Worker] = {}
    for peer in peers:
        if ready[peer.engine].problem:
            run.problems[peer.name] = f"not installed: {ready[peer.engine].problem}"
            continue
        log = cache / "logs" / f"worker-{peer.name}.log"
        workers[peer.name] = Worker(peer, ready[peer.engine], cache / "models", log)
    try:
        for name in list(workers):  # first starts compile and convert: they count in no repeat
            say(f"starting {name}")
            answer = _ask(run, workers, name, {"do": "open", "budget": todo[0].budget})
            if answer:
                run.versions[name] = answer["version"]
        began, longest = time.monotonic(), 0.0
        for repeat in range(repeats):
            started = time.monotonic()
            if repeat and started - began + longest > minutes * 60:
                say(f"{repeat} of {repeats} repeats: no time for another")
                break
            names = list(workers)
            turn = repeat % max(1, len(names))
            for budget in dict.fromkeys(job.budget for job in todo):
                mine = [job for job in todo if job.budget == budget]
                order = names[turn:] + names[:turn]
                _one_budget(run, workers, order, mine, repeat=repeat, say=say)
            run.repeats = repeat + 1
            longest = max(longest, time.monotonic() - started)
    finally:
        for worker in workers.values():
            worker.end()
    return run


def _one_budget(
    run: Run,
    workers: dict[str, Worker],
    order: Sequence[str],
    todo: Sequence[Job],
    *,
    repeat: int,
    say: Callable[[str], None],
) -> None:
    """Open every peer at this budget, then let them take turns job by job."""
    for name in order:
        if name in workers:
            _ask(run, workers, name, {"do": "open", "budget": todo[0].budget})
    for job in todo:
        streams, long = prompts(job, repeat)
        command = {
            "do": "run",
            "streams": streams,
            "long": long,
            "output_tokens": job.output_tokens,
            "lead": LEAD_TOKENS,
        }
        say(f"repeat {repeat + 1}: {job.name}")
        for name in order:
            if name not in workers or not (answer := _ask(run, workers, name, command)):
                continue
            one = Measured(name, repeat, job, answer)
            if outlasted(one):
                run.measured.append(one)
            else:
                run.problems[f"{name}, {job.name}"] = (
                    "a stream ended before the long prompt's prefill"
                )


def _ask(
    run: Run, workers: dict[str, Worker], name: str, command: dict[str, Any]
) -> dict[str, Any]:
    try:
        return workers[name].ask(command)
    except RuntimeError as e:
        run.problems[name] = f"failed: {str(e).strip().splitlines()[0]}"
        workers.pop(name).end()
        return {}
