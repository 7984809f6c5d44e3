"""A thousand requests, most of them rude: afterwards everything is as it was before."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import threading

import psutil

from helpers.servers import LetterModel, PacedRunner, get, post, read_all, serving, until

NUM_REQUESTS = 1000
NUM_AT_ONCE = 20
BODIES = [b"", b"{", b"[]", b'{"prompt": 1}', b'{"prompt": "a", "n": 9}', b"\xff" * 50]


def rude(port: int, rng: random.Random) -> str:
    """One request, ended in one of the ways in which clients end them."""
    way = rng.choice(["read", "leave", "half", "reset", "timeout", "malformed", "cut body", "late"])
    streaming = rng.random() < 0.5
    body = {
        "prompt": [rng.randrange(1, 900) for _ in range(rng.randrange(1, 200))],
        "max_tokens": rng.randrange(1, 40),
        "stream": streaming,
    }
    path = "/v1/completions"
    headers = {"connection": "close"}
    if way == "malformed":
        read_all(post(port, path, rng.choice(BODIES), headers=headers))
    elif way == "cut body":
        data = json.dumps(body).encode()
        headers["content-length"] = str(len(data) + 100)
        post(port, path, data, headers=headers).close()
    elif way == "timeout":
        headers["x-request-timeout"] = "0.02"
        read_all(post(port, path, body, headers=headers))
    else:
        connection = post(port, path, body, headers=headers)
        if way == "read":
            assert b'"finish_reason":"length"' in read_all(connection)
            return way
        if way == "late":
            connection.recv(100)
        if way == "half":
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)
        elif way == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()
    return way


def crowd(port: int, count: int, seed: int) -> set[str]:
    """Many clients at once; what they did."""
    ways: set[str] = set()
    faults: list[BaseException] = []

    def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        try:
            for _ in range(count // NUM_AT_ONCE):
                ways.add(rude(port, rng))
        except BaseException as fault:  # noqa: BLE001 - raised again on the test's thread
            faults.append(fault)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(NUM_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return ways


def test_a_thousand_rude_requests_leave_nothing_behind():
    model = LetterModel(PacedRunner(0.001), max_num_seqs=8)
    process = psutil.Process()
    with serving(model) as served:

        def at_rest() -> tuple[int, int, int]:
            until(lambda: served.on_loop(lambda: served.bridge.num_open) == 0)
            until(lambda: not served.server._uvicorn.server_state.connections)
            until(lambda: served.on_loop(num_tasks) == 2)  # uvicorn's, and the server's
            gc.collect()
            return process.num_fds(), threading.active_count(), process.memory_info().rss

        def num_tasks() -> int:
            return len(asyncio.all_tasks(served.loop)) - 1  # without this one

        crowd(served.port, 200, seed=1)  # pools and caches fill
        num_fds, num_threads, rss = at_rest()
        ways = crowd(served.port, NUM_REQUESTS, seed=2)
        assert len(ways) == 8
        fds_after, threads_after, rss_after = at_rest()
        stats = model.engine.stats()
        metrics = served.server._metrics
        assert (stats.kv.held, stats.num_running, stats.num_waiting) == (0, 0, 0)
        assert stats.kv.cached + stats.kv.free == model.config.num_kv_blocks
        assert (metrics._arrived_s, metrics._last_token_s) == ({}, {})
        assert model.engine._live == {}
        assert model.engine._journal._times == {}
        assert fds_after <= num_fds
        assert threads_after == num_threads
        # the kept step records grow until there are 4,096 of them; nothing else may
        assert rss_after - rss < 16 * 2**20
        model.scheduler.check()
        assert get(served.port, "/health").startswith(b"HTTP/1.1 200 ")
        body = {"prompt": "a", "max_tokens": 3}
        answer = read_all(
            post(served.port, "/v1/completions", body, headers={"connection": "close"})
        )
        assert b'"completion_tokens":3' in answer
