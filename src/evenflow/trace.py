"""Records of steps and requests, as lines of JSON: what the engine did, for people and programs.

A trace is a header line with the format's version, then one line per record in the order in which
things happened. The engine hands in records; `read_trace` gives them back. Time stamps are stored
and everything else is derived from them, so this module computes no statistics and reads no clock.
The fields, with their units, are described in docs/trace.md.
"""

from __future__ import annotations

import os
import types
import typing
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

import orjson

from evenflow.errors import TraceError
from evenflow.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACE_VERSION = 1
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A piece of a prompt that a step computed: `length` positions from `start`.

    `cached` positions at the front of the request came from the prefix cache.
    """

    request_id: str
    start: int
    length: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One forward pass; see docs/trace.md."""

    serial: int
    start_s: float
    seconds: float
    predicted_s: float | None
    num_decodes: int
    chunks: list[ChunkRecord]
    num_tokens: int
    budget: int
    budget_reason: str
    blocked: str
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int
    num_running: int
    num_waiting: int
    preempted: list[str]
    recomputed_tokens: int
    graph: str
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request from arrival to end; see docs/trace.md."""

    id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    token_times_s: list[float]
    finish_s: float
    finish_reason: str
    num_preemptions: int
    priority: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace file holds; `problems` says what could not be read, one line each."""

    header: dict[str, Any]
    steps: list[StepRecord]
    requests: list[RequestRecord]
    problems: list[str]


class TraceWriter:
    """Writes records as they come, each in one piece, so an interrupted run loses at most a line.

    Args:
        target: a path, which is overwritten, or a binary file, which is left open by `close`.
        header: what else the first line should say, such as the model and the effective options.

    Raises:
        TraceError: the file cannot be opened or written.

    Not for several threads at once: the engine's loop is its only writer.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        header: Mapping[str, object] | None = None,
    ) -> None:
        self._owned = isinstance(target, str | os.PathLike)
        self._name = str(target) if self._owned else "the trace"
        try:
            self._file = (
                Path(target).open("wb")  # noqa: SIM115 - `close` closes it
                if isinstance(target, str | os.PathLike)
                else target
            )
        except OSError as e:
            raise _write_error(self._name, e) from e
        self._write({"evenflow_trace": TRACE_VERSION, "evenflow": __version__, **(header or {})})

    def step(self, record: StepRecord) -> None:
        """Write one step."""
        self._write({"step": record})

    def request(self, record: RequestRecord) -> None:
        """Write one request, once it has ended."""
        self._write({"request": record})

    def _write(self, line: dict[str, object]) -> None:
        try:
            self._file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
        except OSError as e:
            raise _write_error(self._name, e) from e

    def close(self) -> None:
        """Close the file, if it was opened here; once is enough, twice does no harm."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace file.

    A last line that was cut off (the run was killed) is skipped and named in `problems`; fields
    that this version does not know are ignored, since a version may gain fields.

    Raises:
        TraceError: no such file, no trace, another version, or a broken line before the last.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as e:
        raise TraceError(
            f"cannot read {path}: {e.strerror}", hint="give the path of a trace file"
        ) from e
    lines = raw.splitlines()
    trace = Trace(_header(path, lines), [], [], [])
    for number, line in enumerate(lines[1:], start=2):
        torn = number == len(lines) and not raw.endswith(b"\n")
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as e:
            if torn:
                trace.problems.append(f"{path}, line {number}: cut off, skipped")
                continue
            raise _line_error(path, number, "is not JSON") from e
        match entry:
            case {"step": dict(value)}:
                trace.steps.append(_record(StepRecord, value, path, number))
            case {"request": dict(value)}:
                trace.requests.append(_record(RequestRecord, value, path, number))
            case _:
                raise _line_error(path, number, "is neither a step nor a request")
    return trace


def _header(path: object, lines: list[bytes]) -> dict[str, Any]:
    try:
        header = orjson.loads(lines[0]) if lines else None
    except orjson.JSONDecodeError:
        header = None
    if not isinstance(header, dict) or "evenflow_trace" not in header:
        raise TraceError(
            f"{path} is not an evenflow trace: its first line is no header",
            hint="record one with `evenflow generate --trace FILE`",
        )
    version = header["evenflow_trace"]
    if version != TRACE_VERSION:
        raise TraceError(
            f"{path} has trace version {version}, but this evenflow reads version {TRACE_VERSION}",
            hint=f"read it with the evenflow that wrote it ({header.get('evenflow', 'unknown')})",
        )
    return header


def _record(cls: type[R], value: dict[str, Any], path: object, number: int) -> R:
    out: dict[str, Any] = {}
    for name, allowed in _SHAPES[cls].items():
        if name not in value and name in _OPTIONAL[cls]:
            continue  # written before the field was added
        if name not in value:
            raise _line_error(path, number, f"lacks the field {name!r}")
        item = value[name]
        if isinstance(item, bool) or not isinstance(item, allowed):
            raise _line_error(path, number, f"has {item!r} as {name!r}")
        out[name] = item
    if cls is StepRecord:
        if not all(isinstance(chunk, dict) for chunk in out["chunks"]):
            raise _line_error(path, number, "has a chunk that is not an object")
        out["chunks"] = [_record(ChunkRecord, chunk, path, number) for chunk in out["chunks"]]
    return cls(**out)


def _shapes(cls: type[Any]) -> dict[str, tuple[type, ...]]:
    """For each field of a record the types that its JSON may have."""
    hints = typing.get_type_hints(cls)
    shapes = {}
    for field in fields(cls):
        hint = hints[field.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = {typing.get_origin(option) or option for option in options}
        shapes[field.name] = tuple(kinds | ({int} if float in kinds else set()))
    return shapes


_SHAPES: dict[type[Any], dict[str, tuple[type, ...]]] = {
    cls: _shapes(cls) for cls in (ChunkRecord, StepRecord, RequestRecord)
}

_OPTIONAL: dict[type[Any], frozenset[str]] = {
    cls: frozenset(f.name for f in fields(cls) if f.default is not MISSING) for cls in _SHAPES
}


def _line_error(path: object, number: int, fact: str) -> TraceError:
    return TraceError(
        f"{path}, line {number} {fact}", hint="the file was changed after it was written"
    )


def _write_error(name: str, error: OSError) -> TraceError:
    return TraceError(
        f"cannot write {name}: {error.strerror}",
        hint="choose a file in a folder that you may write",
    )
