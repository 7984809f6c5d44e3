"""What the benchmark's own client costs: processor time per message, and how much it adds to a gap.

A server in a process of its own sends each of `--streams` a message every 10 ms, as cheaply as it can.
The client measures it as `evenflow bench` would. Prints words, then one line of JSON.

    python benchmarks/client.py --streams 32 --messages 400
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson

from evenflow.bench.conduct import ConductOptions
from evenflow.bench.drivers.http import HttpOptions
from evenflow.bench.probes import CPU, ECHO
from evenflow.bench.run import RunOptions
from evenflow.bench.session import server_session
from evenflow.bench.workload.build import WorkloadOptions, make_workload

LIMIT_US = 100.0
EVENT = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1764500000,"model":"m","choices":'
    b'[{"index":0,"text":" tok","logprobs":null,"finish_reason":%s}],"usage":{"prompt_tokens":9,'
    b'"total_tokens":%d,"completion_tokens":%d}}\n\n'
)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: whatever is asked, so many messages, 10 ms apart."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = await reader.readexactly(length)
            if head.startswith(b"GET"):
                listed = b'{"data":[{"id":"m"}]}'
                start = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
                writer.write(start % len(listed) + listed)
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            count = orjson.loads(body)["max_tokens"]
            for number in range(1, count + 1):
                await asyncio.sleep(0.01)
                event = EVENT % (b'"length"' if number == count else b"null", number + 9, number)
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve() -> None:
    """Serve until killed; says where on standard output."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure(port: int, streams: int, messages: int, folder: Path) -> dict[str, float]:
    """Run all streams at once and say what the client needed."""
    workload = make_workload(
        WorkloadOptions(
            num_prompts=streams,
            max_concurrency=streams,
            input_len="9",
            output_len=str(messages),
        )
    )
    options = RunOptions(conduct=ConductOptions(max_concurrency=streams))
    url = f"http://127.0.0.1:{port}"
    async with server_session(url, "m", HttpOptions("m"), count_each=True) as session:
        outcome = await session.run(workload, folder / "client.jsonl", options)
    records = outcome.records
    used = [p for p in records.probes if p.kind == CPU]
    echoes = sorted(p.value_s for p in records.probes if p.kind == ECHO)
    received = sum(
        used[0].time_s <= m.time_s <= used[-1].time_s for r in records.requests for m in r.messages
    )
    return {
        "streams": streams,
        "messages": received,
        "cpu_us_per_message": (used[-1].value_s - used[0].value_s) / max(1, received) * 1e6,
        "limit_us": LIMIT_US,
        "echo_p50_us": echoes[len(echoes) // 2] * 1e6,
        "echo_p99_us": echoes[int(len(echoes) * 0.99)] * 1e6,
    }


def main() -> None:
    """Start the server, measure, end the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve())
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE)
    try:
        port = int(server.stdout.readline()) if server.stdout else 0
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measure(port, given.streams, given.messages, Path(folder)))
    finally:
        server.terminate()
        server.wait()
    print(
        f"{found['cpu_us_per_message']:.0f} microseconds of processor time per message "
        f"(limit {LIMIT_US:g}), probes and all; an echo takes {found['echo_p50_us']:.0f} "
        f"microseconds (p99 {found['echo_p99_us']:.0f})"
    )
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main()
