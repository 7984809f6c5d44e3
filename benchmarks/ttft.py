"""What clients add to TTFT: a server that stamps its own times, and what each client says of the same.

A client's TTFT is the server's own wait, plus the way in (from the client's zero to the whole request
at the server) and the way out (from the server's write to the client's stamp). Both differ between clients:
by what they do after their zero, and by how soon they look at what came.

    python benchmarks/ttft.py serve --port 8077 --log server.jsonl &
    evenflow bench --base-url http://127.0.0.1:8077 --num-prompts 80 --max-concurrency 4 --records ours.jsonl
    guidellm run --backend kind=openai_http,target=http://127.0.0.1:8077 ... --output kind=json,path=theirs.json
    python benchmarks/ttft.py report server.jsonl --evenflow ours.jsonl --guidellm theirs.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from evenflow.bench.records import read_records

WAIT_S, GAP_S = 0.03, 0.01


class Times(NamedTuple):
    """Unix seconds: when a request began and when its first token was there."""

    begun: float
    first: float


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path) -> None:
    """Streams; the first token comes 30 ms after the request, the others 10 ms apart."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = await reader.readexactly(length)
            begun = time.time()
            if not head.startswith(b"POST"):
                listed = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
                kind = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                writer.write(kind + b"Content-Length: %d\r\n\r\n" % len(listed) + listed)
                continue
            asked = json.loads(body)
            count = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
            await asyncio.sleep(WAIT_S)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            first = time.time()
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps([begun, first, "chat" if b"/chat/" in head else ""]) + "\n")
            for number in range(1, count + 1):
                writer.write(_event(number, last=number == count, chat=b"/chat/" in head))
                await asyncio.sleep(GAP_S)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _event(number: int, *, last: bool, chat: bool) -> bytes:
    text = {"delta": {"content": " tok"}} if chat else {"text": " tok"}
    choice = {"index": 0, **text, "finish_reason": "length" if last else None}
    usage = {"prompt_tokens": 9, "completion_tokens": number, "total_tokens": 9 + number}
    kind = "chat.completion.chunk" if chat else "text_completion"
    body = {"id": "x", "object": kind, "created": 0, "model": "m", "choices": [choice]}
    event = b"data: " + json.dumps({**body, "usage": usage}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


async def serve(port: int, log: Path) -> None:
    server = await asyncio.start_server(lambda r, w: answer(r, w, log), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def of_server(path: Path) -> list[Times]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [Times(row[0], row[1]) for row in rows]


def of_evenflow(path: Path) -> list[Times]:
    records = read_records(path)
    zero = float(records.header["started_unix_s"])
    return [
        Times(zero + r.send_s, zero + r.first_token_s)
        for r in records.requests
        if r.ok and r.send_s is not None and r.first_token_s is not None
    ]


def of_guidellm(path: Path) -> list[Times]:
    found = []
    for benchmark in json.loads(path.read_text("utf-8"))["benchmarks"]:
        for request in benchmark["requests"]["successful"]:
            times = request["info"]["timings"]
            found.append(Times(times["request_start"], times["first_token_iteration"]))
    return found


def report(name: str, client: list[Times], server: list[Times]) -> dict[str, float]:
    """Means, in ms; requests are laid beside each other in their order, which means do not depend on."""
    low, high = min(t.begun for t in client) - 0.05, max(t.first for t in client) + 0.05
    inside = [t for t in server if low <= t.begun and t.first <= high][-len(client) :]
    if len(inside) != len(client):
        raise SystemExit(f"{name}: {len(client)} requests, but the server has {len(inside)}")

    def mean(values: list[float]) -> float:
        return statistics.fmean(values) * 1e3

    client_begun, server_begun = ([t.begun for t in side] for side in (client, inside))
    client_first, server_first = ([t.first for t in side] for side in (client, inside))
    found = {
        "requests": float(len(client)),
        "ttft_ms": mean([t.first - t.begun for t in client]),
        "server_ms": mean([t.first - t.begun for t in inside]),
        "way_in_ms": mean([s - c for c, s in zip(sorted(client_begun), sorted(server_begun), strict=True)]),
        "way_out_ms": mean([c - s for c, s in zip(sorted(client_first), sorted(server_first), strict=True)]),
    }  # fmt: skip
    print(
        f"{name:9} {len(client):4} requests: TTFT {found['ttft_ms']:.2f} ms = server "
        f"{found['server_ms']:.2f} + way in {found['way_in_ms']:.2f} + way out {found['way_out_ms']:.2f}"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("serve")
    one.add_argument("--port", type=int, required=True)
    one.add_argument("--log", type=Path, required=True)
    two = commands.add_parser("report")
    two.add_argument("log", type=Path)
    two.add_argument("--evenflow", type=Path)
    two.add_argument("--guidellm", type=Path)
    options = parser.parse_args()
    if options.command == "serve":
        asyncio.run(serve(options.port, options.log))
        return
    server = of_server(options.log)
    found = {}
    for name, read in (("evenflow", of_evenflow), ("guidellm", of_guidellm)):
        if path := getattr(options, name):
            found[name] = report(name, read(path), server)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
