"""What goes wrong: a server that is down, refuses or breaks off; a client that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from evenflow.bench.conduct import ConductOptions
from evenflow.bench.drivers.http import HttpOptions
from evenflow.bench.records import read_records
from evenflow.bench.session import server_session
from evenflow.errors import TargetError
from helpers.bench import FAST, closed, run
from helpers.synthetic_server import Behaviour, serve


def test_broken_streams_are_counted_and_the_run_goes_on(tmp_path):
    workload, conduct = closed(12)
    with serve(FAST, Behaviour(cut_every=4, garbage_every=7)) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload, conduct=conduct)
    errors = outcome.metrics.counts.errors
    assert any(text.startswith("the stream ended early, after") for text in errors)
    assert any("not UTF-8" in text for text in errors)
    assert outcome.metrics.counts.completed + outcome.metrics.counts.failed == 12
    assert outcome.metrics.counts.completed >= 6
    assert "requests" in {f.name for f in outcome.findings if not f.ok}


def test_what_is_cut_off_after_a_limited_duration_says_why(tmp_path):
    workload, _ = closed(2, mix="long:20/4000@1")
    conduct = ConductOptions(max_concurrency=2, duration_s=0.1, drain_s=0.2)
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload, conduct=conduct)
    assert outcome.metrics.counts.errors == {"cut off: it still ran 0.2 s after the duration": 2}


def refused(url, tmp_path, **options):
    workload, conduct = closed(2)
    with pytest.raises(TargetError) as caught:
        run(url, tmp_path / "r.jsonl", workload, conduct=conduct, **options)
    return caught.value


def test_a_server_that_is_down_is_said_once(tmp_path):
    error = refused("http://127.0.0.1:9", tmp_path)
    assert "cannot connect to http://127.0.0.1:9" in error.message
    assert "running" in error.hint


def test_a_missing_key_a_wrong_model_and_a_wrong_path_have_their_hints(tmp_path):
    with serve(FAST, Behaviour(api_key="k")) as server:
        error = refused(server.url, tmp_path)
        assert "no valid key" in error.message
        assert "OPENAI_API_KEY" in error.hint
    with serve(FAST) as server:
        error = refused(server.url, tmp_path, model="gpt-17")
        assert "does not serve 'gpt-17'" in error.message
        assert "synthetic" in error.hint
        for path in ("/v1/nothing/completions", "/v1/nothing"):
            error = refused(server.url, tmp_path, http=HttpOptions("", endpoint=path))
            assert "404" in error.message
        assert "another --endpoint" in error.hint


def test_the_right_key_is_let_in(tmp_path):
    workload, conduct = closed(2)
    with serve(FAST, Behaviour(api_key="k")) as server:
        http = HttpOptions("", headers={"Authorization": "Bearer k"})
        outcome = run(server.url, tmp_path / "r.jsonl", workload, http=http, conduct=conduct)
    assert outcome.metrics.counts.failed == 0


def start_client(url, folder):
    words = [sys.executable, "-m", "evenflow", "bench", "--base-url", url, "--streams", "3"]
    words += ["--input-len", "10", "--output-len", "5000", "--duration", "60", "--no-live"]
    words += ["--records", str(folder / "r.jsonl"), "--result-dir", str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_open_lines(path):
    for _ in range(600):
        if path.exists() and path.read_bytes().count(b'"open"') >= 1:
            return
        time.sleep(0.05)
    raise AssertionError("the client wrote nothing")


def test_a_client_that_is_killed_loses_next_to_nothing(tmp_path):
    with serve(FAST) as server:
        client = start_client(server.url, tmp_path)
        wait_for_open_lines(tmp_path / "r.jsonl")
        os.kill(client.pid, signal.SIGKILL)
        client.communicate()
    records = read_records(tmp_path / "r.jsonl")
    assert len(records.requests) == 3
    assert all(len(r.messages) > 20 for r in records.requests)
    assert "still running when the file ends" in records.problems[-1]


def test_an_interrupted_client_says_what_it_has_and_exits_with_130(tmp_path):
    with serve(FAST) as server:
        client = start_client(server.url, tmp_path)
        wait_for_open_lines(tmp_path / "r.jsonl")
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=60)
    assert client.returncode == 130, err
    assert "ITL" in out
    records = read_records(tmp_path / "r.jsonl")
    assert records.mark("interrupted")
    assert all(r.ok and len(r.messages) > 20 for r in records.requests)


def test_a_comparison_that_is_interrupted_says_what_it_has(tmp_path):
    words = [sys.executable, "-m", "evenflow", "compare"]
    load = ["--num-prompts", "6", "--max-concurrency", "2", "--mix", "a:9/40@1", "--pairs", "50"]
    with serve(FAST) as server:
        more = [server.url, server.url, *load, "--result-dir", str(tmp_path), "--no-live"]
        client = subprocess.Popen(
            [*words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(600):
            if (tmp_path / "pair-2-a.jsonl").exists():
                break
            time.sleep(0.05)
        client.send_signal(signal.SIGINT)
        out, err = client.communicate(timeout=60)
    assert client.returncode == 130, err
    assert "p50 ITL" in out


def test_a_server_that_is_still_loading_is_told_from_one_without_models(tmp_path):
    async def loading(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error":{"message":"loading"}}'
        writer.write(b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def go():
        server = await asyncio.start_server(loading, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, server_session(url, None, HttpOptions(""), count_each=None):
            raise AssertionError("it is not ready")

    with pytest.raises(TargetError, match="is not ready: HTTP 503: loading"):
        asyncio.run(go())
