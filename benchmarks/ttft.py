"""What clients add to TTFT: a server that stamps its own times, and what each client says of the same.

A client's TTFT is the server's own wait, plus the way in (from the client's zero to the whole request
at the server) and the way out (from the server's write to the client's stamp). Both differ between clients:
by what they do after their zero, and by how soon they look at what came.

    python benchmarks/ttft.py serve --port 8077 --log server.jsonl --wait-ms 200 --gap-ms 20 &
    evenflow bench --base-url http://127.0.0.1:8077 --num-prompts 80 --max-concurrency 4 --records ours.jsonl
    guidellm run --backend kind=openai_http,target=http://127.0.0.1:8077 --profile kind=concurrent,streams=4 ...
        --constraint kind=max_requests,count=80 --output kind=json,path=theirs.json
    python benchmarks/ttft.py report server.jsonl --evenflow ours.jsonl --guidellm theirs.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable


class Times(NamedTuple):
    """Unix seconds: when a request began, its first token and its last were there; and the tokens."""

    begun: float
    first: float
    last: float
    tokens: int


class Pace(NamedTuple):
    """Seconds from a request to its first token, and between tokens."""

    wait_s: float
    gap_s: float


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: Path, pace: Pace
) -> None:
    """Streams at the given pace."""
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
            await asyncio.sleep(pace.wait_s)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            first = last = time.time()
            for number in range(1, count + 1):
                if number > 1:
                    await asyncio.sleep(pace.gap_s)
                    last = time.time()
                writer.write(_event(number, last=number == count, chat=b"/chat/" in head))
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(Times(begun, first, last, count)) + "\n")
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


async def serve(port: int, log: Path, pace: Pace) -> None:
    server = await asyncio.start_server(lambda r, w: answer(r, w, log, pace), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def of_server(path: Path) -> list[Times]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [Times(*row) for row in rows]


def of_evenflow(path: Path) -> list[Times]:
    records = read_records(path)
    zero = float(records.header["started_unix_s"])
    return [
        Times(
            zero + r.send_s,
            zero + r.first_token_s,
            zero + r.messages[-1].time_s,
            r.output_tokens or 0,
        )
        for r in records.requests
        if r.ok and r.send_s is not None and r.first_token_s is not None
    ]


def of_guidellm(path: Path) -> list[Times]:
    found = []
    for benchmark in json.loads(path.read_text("utf-8"))["benchmarks"]:
        for request in benchmark["requests"]["successful"]:
            times = request["info"]["timings"]
            last, tokens = times["last_token_iteration"], request["output_tokens"]
            found.append(
                Times(times["request_start"], times["first_token_iteration"], last, tokens)
            )
    return found


def report(name: str, client: list[Times], server: list[Times]) -> dict[str, float]:
    """Means, in ms; requests are laid beside each other in their order, which means do not depend on."""
    low, high = min(t.begun for t in client) - 0.05, max(t.first for t in client) + 0.05
    inside = [t for t in server if low <= t.begun and t.first <= high][-len(client) :]
    if len(inside) != len(client):
        raise SystemExit(f"{name}: {len(client)} requests, but the server has {len(inside)}")

    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values) * 1e3

    def itl(times: list[Times]) -> float:
        return mean((t.last - t.first) / (t.tokens - 1) for t in times if t.tokens > 1)

    ways = {}
    for way, field, sign in (("way_in_ms", "begun", 1), ("way_out_ms", "first", -1)):
        theirs, ours = (sorted(getattr(t, field) for t in side) for side in (client, inside))
        ways[way] = sign * mean(o - t for t, o in zip(theirs, ours, strict=True))
    found = {
        "requests": float(len(client)),
        "ttft_ms": mean(t.first - t.begun for t in client),
        "server_ms": mean(t.first - t.begun for t in inside),
        **ways,
        "itl_ms": itl(client),
        "server_itl_ms": itl(inside),
    }
    print(
        f"{name:9} {len(client):4} requests: TTFT {found['ttft_ms']:.2f} ms = server "
        f"{found['server_ms']:.2f} + way in {found['way_in_ms']:.2f} + way out {found['way_out_ms']:.2f}; "
        f"ITL {found['itl_ms']:.3f} ms (server {found['server_itl_ms']:.3f})"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("serve")
    one.add_argument("--port", type=int, required=True)
    one.add_argument("--log", type=Path, required=True)
    one.add_argument("--wait-ms", type=float, default=30.0)
    one.add_argument("--gap-ms", type=float, default=10.0)
    two = commands.add_parser("report")
    two.add_argument("log", type=Path)
    two.add_argument("--evenflow", type=Path)
    two.add_argument("--guidellm", type=Path)
    options = parser.parse_args()
    if options.command == "serve":
        pace = Pace(options.wait_ms / 1e3, options.gap_ms / 1e3)
        asyncio.run(serve(options.port, options.log, pace))
        return
    server = of_server(options.log)
    found = {}
    for name, read in (("evenflow", of_evenflow), ("guidellm", of_guidellm)):
        if path := getattr(options, name):
            found[name] = report(name, read(path), server)
    if len(found) == 2:
        ours, theirs = found["evenflow"], found["guidellm"]
        for key in ("ttft_ms", "itl_ms"):
            print(f"{key}: guidellm's is {theirs[key] / ours[key] - 1:+.2%} of evenflow's")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
