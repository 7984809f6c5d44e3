"""What HTTP costs: streams through the server against the same streams inside the process.

Runs, in turn and in processes of their own, the engine alone and the server with a raw-socket
client; prints tokens per second, gaps and CPU per token of each, then one line of JSON.

    python benchmarks/server_cost.py                      steps of 10 ms in which nothing is computed
    python benchmarks/server_cost.py --model smollm2      a real model, --runner as in `evenflow serve`
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from evenflow import StreamEvent
    from evenflow.server.run import LoadedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PROMPT_TOKENS = 32
SKIPPED_TOKENS = 8  # of each stream, while the streams join one after the other


def make_model(options: argparse.Namespace) -> LoadedModel:
    """The model of a role."""
    if options.model == "fake":
        from helpers.servers import LetterModel, PacedRunner  # noqa: PLC0415 - only this role

        return LetterModel(PacedRunner(options.step_ms / 1000))
    from evenflow import LLM  # noqa: PLC0415 - only this role

    return LLM(options.model, runner=options.runner, progress=False)


def prompt_of(index: int) -> list[int]:
    """Token ids that no other stream has."""
    return [5 + (index * 37 + i * 11) % 400 for i in range(PROMPT_TOKENS)]


def summary(times_s: list[list[float]], cpu_s: float, num_tokens: int) -> dict[str, float]:
    """Rates and gaps over the middle, where every stream runs."""
    start = max(times[SKIPPED_TOKENS] for times in times_s)
    end = min(times[-1] for times in times_s)
    inside = [[t for t in times if start <= t <= end] for times in times_s]
    gaps = sorted(b - a for times in inside for a, b in itertools.pairwise(times))
    return {
        "tokens_per_s": sum(len(times) - 1 for times in inside) / (end - start),
        "itl_p50_ms": 1000 * gaps[len(gaps) // 2],
        "itl_p99_ms": 1000 * gaps[int(len(gaps) * 0.99)],
        "itl_max_ms": 1000 * gaps[-1],
        "cpu_us_per_token": 1e6 * cpu_s / num_tokens,
    }


def run_engine(options: argparse.Namespace) -> None:
    """The engine alone: its sink notes the times."""
    from evenflow import SamplingParams  # noqa: PLC0415 - only this role

    model = make_model(options)
    times_s: dict[str, list[float]] = {}
    left = threading.Semaphore(0)

    def sink(events: list[StreamEvent]) -> None:
        now = time.perf_counter()
        for event in events:
            times_s[event.request_id].append(now)
            if event.finish_reason:
                left.release()

    cpu_s = time.process_time()
    params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=0)
    for i in range(options.streams):
        times_s[str(i)] = []
        model.engine.submit(prompt_of(i), params, sink, request_id=str(i))
    for _ in range(options.streams):
        left.acquire()
    cpu_s = time.process_time() - cpu_s
    model.close()
    print(json.dumps(summary(list(times_s.values()), cpu_s, options.streams * options.tokens)))


def run_server(options: argparse.Namespace) -> None:
    """The server, until its standard input closes."""
    from evenflow.server.run import Server  # noqa: PLC0415 - only this role
    from evenflow.server.settings import Settings  # noqa: PLC0415 - as above

    settings = Settings(port=0, drain_timeout_s=0)
    Server(settings, lambda: make_model(options), lambda _, url: print(url, flush=True)).run()


def run_client(options: argparse.Namespace) -> None:
    """Raw sockets: a read per wake-up, a count of what it holds, and the time."""
    selector = selectors.DefaultSelector()
    times_s: list[list[float]] = []
    for i in range(options.streams):
        body = json.dumps(
            {
                "prompt": prompt_of(i),
                "max_tokens": options.tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()
        connection = socket.create_connection(("127.0.0.1", options.port))
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        times_s.append([])
        selector.register(connection, selectors.EVENT_READ, times_s[-1])
    cpu_s = time.process_time()
    num_open = options.streams
    while num_open:
        for key, _ in selector.select():
            data = key.fileobj.recv(65_536)
            now = time.perf_counter()
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                num_open -= 1
                continue
            key.data.extend([now] * data.count(b'"text":'))
    cpu_s = time.process_time() - cpu_s
    assert all(len(times) == options.tokens for times in times_s), list(map(len, times_s))
    print(json.dumps(summary(times_s, cpu_s, options.streams * options.tokens)))


def role(name: str, options: argparse.Namespace, **more: object) -> list[str]:
    """The command that plays a role."""
    values = {k: v for k, v in vars(options).items() if k not in {"role", "repeats"}} | more
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in values.items()]
    return [sys.executable, __file__, f"--role={name}", *flags]


def through_http(options: argparse.Namespace) -> dict[str, float]:
    """One run of the server and its client."""
    server = subprocess.Popen(role("server", options), stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r":(\d+)$", server.stdout.readline()).group(1)
        process = psutil.Process(server.pid)
        before = sum(process.cpu_times()[:2])
        out = subprocess.check_output(role("client", options, port=port), text=True)
        cpu_s = sum(process.cpu_times()[:2]) - before
    finally:
        server.terminate()
        server.wait()
    result = json.loads(out)
    result["client_cpu_us_per_token"] = result["cpu_us_per_token"]
    result["cpu_us_per_token"] = 1e6 * cpu_s / (options.streams * options.tokens)
    return result


def compare(options: argparse.Namespace) -> None:
    """Both, in turn; medians."""
    engine, http = [], []
    for _ in range(options.repeats):
        engine.append(json.loads(subprocess.check_output(role("engine", options), text=True)))
        http.append(through_http(options))

    def median(runs: list[dict[str, float]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    names = ("tokens_per_s", "itl_p50_ms", "itl_p99_ms", "itl_max_ms", "cpu_us_per_token")
    print(
        f"{options.model}, {options.streams} streams of {options.tokens} tokens, median of {options.repeats}"
    )
    print(f"{'':18}{'engine':>12}{'http':>12}")
    for name in names:
        print(f"{name:18}{median(engine, name):12.2f}{median(http, name):12.2f}")
    if options.model == "fake":
        ceiling = 1000 * options.streams / options.step_ms
        print(
            f"the ceiling is {ceiling:,.0f} tokens/s; http reached {median(http, 'tokens_per_s') / ceiling:.1%}"
        )
    result = {
        "model": options.model,
        "streams": options.streams,
        "rate_ratio": median(http, "tokens_per_s") / median(engine, "tokens_per_s"),
        "added_p99_ms": median(http, "itl_p99_ms") - median(engine, "itl_p99_ms"),
        "added_cpu_us_per_token": median(http, "cpu_us_per_token")
        - median(engine, "cpu_us_per_token"),
        "client_cpu_us_per_token": median(http, "client_cpu_us_per_token"),
    }
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}))


def main() -> None:
    """Play a role, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--role", choices=["compare", "engine", "server", "client"], default="compare"
    )
    parser.add_argument("--model", default="fake")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    {
        "compare": compare,
        "engine": run_engine,
        "server": run_server,
        "client": run_client,
    }[options.role](options)


if __name__ == "__main__":
    main()
