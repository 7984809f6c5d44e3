"""Workloads out of published traces: Mooncake, Azure, BurstGPT with their time stamps, ShareGPT.

Requests that could not be sent (no output asked, longer than the model takes) are left out and
counted in `notes`. The formats' traps: Mooncake counts in milliseconds, Azure's time stamps have
seven decimals, BurstGPT's failures have no response tokens, ShareGPT has no times at all.
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from evenflow.bench.workload.plan import PlannedRequest, Segment, Workload
from evenflow.errors import RecordError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    import numpy as np

TRACES = ("mooncake", "azure", "burstgpt", "sharegpt")
MOONCAKE_BLOCK = 512
CHARS_PER_TOKEN = 4  # only to drop absurdly long texts; the server's own count is what is reported


class TraceOptions(NamedTuple):
    """What to take of a trace.

    `time_scale` stretches time (2 is half as fast); `length_scale` the lengths, for small models;
    longer than `max_len`, prompt and output together, is left out; `take` is how many at most.
    """

    take: int | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    max_len: int | None = None
    output_tokens: int = 128


class _Row(NamedTuple):
    at_s: float | None
    segments: list[Segment]
    output_tokens: int
    text: str = ""


def read_trace_file(
    path: str | os.PathLike[str], kind: str, options: TraceOptions, rng: np.random.Generator
) -> Workload:
    """Read a trace; "auto" tells its kind by its first line.

    Args:
        path: the file.
        kind: one of `TRACES`, or "auto".
        options: what to take.
        rng: draws the texts, and the times where a trace has none (by the caller, afterwards).

    Raises:
        RecordError: it cannot be read, or nothing in it can be sent.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror}", hint="give a trace file") from e
    except UnicodeDecodeError as e:
        raise RecordError(
            f"{path} is not UTF-8: byte {e.start:,} is {e.object[e.start]:#04x}",
            hint="convert it, for instance with iconv",
        ) from e
    kind = _recognise(text, str(path)) if kind == "auto" else kind
    readers = {
        "mooncake": _mooncake,
        "azure": _azure,
        "burstgpt": _burstgpt,
        "sharegpt": _sharegpt,
    }
    if kind not in readers:
        raise RecordError(f"there is no trace format {kind!r}", hint=f"known: {', '.join(TRACES)}")
    try:
        rows = readers[kind](text, rng, options)
        return _workload(rows, kind, str(path), options)
    except (KeyError, ValueError, TypeError) as e:
        raise RecordError(
            f"{path} does not fit the format {kind}: {type(e).__name__} {e}",
            hint="docs/bench.md shows a line of each format",
        ) from e


def _recognise(text: str, name: str) -> str:
    first = text[:4096].lstrip().split("\n", 1)[0]
    if "ContextTokens" in first:
        return "azure"
    if "Request tokens" in first:
        return "burstgpt"
    if "hash_ids" in first or "input_length" in first:
        return "mooncake"
    if first.startswith("["):
        return "sharegpt"
    raise RecordError(
        f"{name} is in none of the known trace formats",
        hint=f"name its format: {', '.join(TRACES)}",
    )


def _workload(rows: Iterable[_Row], kind: str, name: str, options: TraceOptions) -> Workload:
    """Scale the rows and take those that can be sent."""
    requests: list[PlannedRequest] = []
    empty = long = 0
    origin: float | None = None
    for row in rows:
        if options.take is not None and len(requests) == options.take:
            break
        scale = options.length_scale
        output = max(1, round(row.output_tokens * scale)) if row.output_tokens > 0 else 0
        segments = [Segment(s.seed, max(1, round(s.tokens * scale))) for s in row.segments]
        total = sum(s.tokens for s in segments)
        if not total or not output:
            empty += 1
            continue
        if options.max_len is not None and total + output > options.max_len:
            long += 1
            continue
        at_s = row.at_s
        if at_s is not None:
            origin = at_s if origin is None else origin
            at_s = (at_s - origin) * options.time_scale
        requests.append(
            PlannedRequest(
                id=f"r{len(requests)}",
                class_name=kind,
                at_s=at_s,
                segments=segments,
                output_tokens=output,
                text=row.text,
            )
        )
    if not requests:
        raise RecordError(
            f"{name} holds no request that could be sent ({empty:,} without prompt or output, "
            f"{long:,} longer than {options.max_len} tokens)",
            hint="raise --max-model-len, or shrink the lengths with --length-scale",
        )
    notes = []
    if empty:
        notes.append(f"{name}: {empty:,} requests without prompt or output left out")
    if long:
        notes.append(f"{name}: {long:,} requests of more than {options.max_len} tokens left out")
    header = {"trace": name, "format": kind, **options._asdict()}
    return Workload(requests, header, notes)


def _mooncake(text: str, rng: np.random.Generator, _: TraceOptions) -> Iterator[_Row]:
    """Milliseconds; equal hash ids are equal blocks of 512 tokens."""
    salt = int(rng.integers(0, 2**31))
    for line in text.splitlines():
        if not line.strip():
            continue
        row = orjson.loads(line)
        left = int(row["input_length"])
        segments = []
        for block in row.get("hash_ids") or ():
            if left <= 0:
                break
            size = min(left, MOONCAKE_BLOCK)
            segments.append(Segment(salt + int(block), size))
            left -= size
        if left > 0:
            segments.append(Segment(int(rng.integers(0, 2**31)), left))
        yield _Row(float(row["timestamp"]) / 1e3, segments, int(row["output_length"]))


def _azure(text: str, rng: np.random.Generator, _: TraceOptions) -> Iterator[_Row]:
    origin: datetime | None = None
    for row in csv.DictReader(io.StringIO(text)):
        # Python reads six decimals of a second, the file has seven
        stamp, _dot, decimals = row["TIMESTAMP"].partition(".")
        when = datetime.fromisoformat(stamp)
        origin = origin or when
        at = (when - origin).total_seconds() + float(f"0.{decimals or 0}")
        prompt = Segment(int(rng.integers(0, 2**31)), int(row["ContextTokens"]))
        yield _Row(at, [prompt], int(row["GeneratedTokens"]))


def _burstgpt(text: str, rng: np.random.Generator, _: TraceOptions) -> Iterator[_Row]:
    for row in csv.DictReader(io.StringIO(text)):
        prompt = Segment(int(rng.integers(0, 2**31)), int(float(row["Request tokens"])))
        yield _Row(float(row["Timestamp"]), [prompt], int(float(row["Response tokens"])))


def _sharegpt(text: str, _: np.random.Generator, options: TraceOptions) -> Iterator[_Row]:
    """The first question of each conversation; the answer's length is asked for."""
    for item in orjson.loads(text):
        talk = item.get("conversations") or item.get("conversation") or []
        said = [_said(turn) for turn in talk[:2]]
        if len(said) < 2 or not all(said):
            continue
        sizes = [max(1, len(words) // CHARS_PER_TOKEN) for words in said]
        output = sizes[1] if options.output_tokens < 1 else min(sizes[1], options.output_tokens)
        yield _Row(None, [Segment(0, sizes[0])], output, said[0])


def _said(turn: dict[str, Any]) -> str:
    return str(turn.get("value") or turn.get("content") or "")
