"""What a client saw of a server, as lines of JSON: the only thing that metrics and blame read.

A file is a header line, then one line per record in the order in which things ended. Every line is
written in one piece and flushed, so an interrupted run keeps what it had. Time stamps are stored
and TTFT, gaps and rates derived from them elsewhere; this module computes nothing and reads no
clock. The fields are described in docs/bench.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Self, TypeVar

import orjson

from evenflow.errors import RecordError
from evenflow.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RECORDS_VERSION = 1
INTERRUPTED = "interrupted"  # the error of a request that Ctrl-C cut off
CUT = "cut"  # finish_reason of a steady stream that the client ended, which is no failure
CUT_OFF = "the run was cut off before the request ended"

# how the tokens of a message are known: counted by the server message by message; one per message,
# which the server's total confirms; one per message, which nothing confirms; the server's total
# spread over the messages by their characters
TokensFrom = Literal["usage", "message", "assumed", "spread"]
R = TypeVar("R", bound="RequestRecord | Probe | Scrape | Mark")


class Message(NamedTuple):
    """One message of a stream that carried output; role-only and empty ones are not among them."""

    time_s: float
    tokens: int
    chars: int


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, from its place in the schedule to its end.

    All times are seconds of the run's clock, whose zero is the start of the run.

    Attributes:
        id: unique in the run.
        class_name: the class of the mixture it belongs to, such as "short" or "attacker".
        prompt_tokens: as the server counted them, else as planned; None when nobody knows.
        asked_tokens: the output tokens asked for (max_tokens).
        output_tokens: the output tokens that came, as the server counted them where it did.
        scheduled_s: when it should have been sent.
        send_s: when its first byte was handed to the network; None when it never was.
        first_byte_s: when the first byte of the answer's body came, whatever it held.
        end_s: when the answer was complete, or the request failed.
        messages: every message that carried output.
        tokens_from: how the tokens of a message are known.
        empty_messages: messages without output, such as the role-only one of a chat.
        usage: the server's own count, as sent; None when it sent none.
        status: the HTTP status; 0 where there is none.
        error: what went wrong, in one line; "" for a request that succeeded.
        finish_reason: as sent.
        session: the conversation it belongs to, "" for none; `turn` counts from 0.
        metrics: what the server said of this request's own times, as sent.
    """

    id: str
    class_name: str = ""
    prompt_tokens: int | None = None
    asked_tokens: int | None = None
    output_tokens: int = 0
    scheduled_s: float = 0.0
    send_s: float | None = None
    first_byte_s: float | None = None
    end_s: float | None = None
    messages: list[Message] = field(default_factory=list)
    tokens_from: TokensFrom = "assumed"
    empty_messages: int = 0
    usage: dict[str, Any] | None = None
    status: int = 0
    error: str = ""
    finish_reason: str = ""
    session: str = ""
    turn: int = 0
    metrics: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether it ended well; only such requests enter latency figures."""
        return not self.error

    @property
    def first_token_s(self) -> float | None:
        """When the first output came; None when none did."""
        return self.messages[0].time_s if self.messages else None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens that the server had in its cache; None where it does not say."""
        details = (self.usage or {}).get("prompt_tokens_details")
        found = details.get("cached_tokens") if isinstance(details, dict) else None
        return found if isinstance(found, int) else None


@dataclass(slots=True)
class Probe:
    """A measurement of the client itself.

    `kind` is "loop_lag" (how late the event loop woke a sleeper), "echo" (a message's way from a
    server in the client's own process, through the same code as the real streams) or "client_cpu"
    (processor time used by the client's process so far).
    """

    time_s: float
    kind: str
    value_s: float


@dataclass(slots=True)
class Scrape:
    """The server's `/metrics` at one moment: sample name with its labels, as printed -> value."""

    time_s: float
    values: dict[str, float]


@dataclass(slots=True)
class Mark:
    """Something that happened at a moment: "warmup_end", "cooldown_start", "inject", "end", ...

    `note` says more, such as the id of the request that was injected.
    """

    time_s: float
    kind: str
    note: str = ""


@dataclass(slots=True)
class Records:
    """What a file holds; `problems` says what could not be read, one line each."""

    header: dict[str, Any] = field(default_factory=dict)
    requests: list[RequestRecord] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    scrapes: list[Scrape] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, record: RequestRecord | Probe | Scrape | Mark) -> None:
        """Keep a record; makes a `Records` a sink, like a `RecordWriter`."""
        match record:
            case RequestRecord():
                self.requests.append(record)
            case Probe():
                self.probes.append(record)
            case Scrape():
                self.scrapes.append(record)
            case Mark():
                self.marks.append(record)

    def mark(self, kind: str) -> Mark | None:
        """The first mark of a kind."""
        return next((mark for mark in self.marks if mark.kind == kind), None)


_KINDS: dict[str, type[Any]] = {
    "request": RequestRecord,
    "probe": Probe,
    "scrape": Scrape,
    "mark": Mark,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class RecordWriter:
    """Writes records as they come.

    Args:
        target: a path, which is overwritten, or a binary file, which is left open by `close`.
        header: the facts of the run. By convention `started_unix_s` and `started_monotonic_s` are
            the wall clock and the monotonic clock at the run's zero, so that a server's own log
            can be laid beside the records.

    Raises:
        RecordError: the file cannot be opened or written.
    """

    def __init__(
        self, target: str | os.PathLike[str] | BinaryIO, header: Mapping[str, object] | None = None
    ) -> None:
        self._owned = isinstance(target, str | os.PathLike)
        self._name = str(target) if self._owned else "the records"
        try:
            self._file = (
                Path(target).open("wb")  # noqa: SIM115 - `close` closes it
                if isinstance(target, str | os.PathLike)
                else target
            )
        except OSError as e:
            raise _write_error(self._name, e) from e
        self._write({"evenflow_bench": RECORDS_VERSION, "evenflow": __version__, **(header or {})})

    def add(self, record: RequestRecord | Probe | Scrape | Mark) -> None:
        """Write one record."""
        self._write({_NAMES[type(record)]: record})

    def add_open(self, requests: Sequence[RequestRecord]) -> None:
        """Write what came since the last time for requests that still run.

        `messages` holds the new ones only. The reader uses this when the request's own line never
        comes, which is so when the client was killed.
        """
        self._write({"open": list(requests)})

    def close(self) -> None:
        """Close the file, if it was opened here; twice does no harm."""
        if self._owned:
            self._file.close()

    def _write(self, value: object) -> None:
        try:
            self._file.write(orjson.dumps(value, tuple, orjson.OPT_APPEND_NEWLINE))
            self._file.flush()
        except OSError as e:
            raise _write_error(self._name, e) from e

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_records(first_line: bytes) -> bool:
    """Whether a file that starts with this line is one of ours."""
    try:
        header = orjson.loads(first_line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(header, dict) and "evenflow_bench" in header


def read_records(path: str | os.PathLike[str]) -> Records:
    """Read a file of records.

    A last line that was cut off is skipped and named in `problems`; a request whose line never came
    is put together from what was written while it ran, with an error that says so. Fields that this
    version does not know are ignored.

    Raises:
        RecordError: no such file, no records, another version, or a broken line before the last.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as e:
        raise RecordError(
            f"cannot read {path}: {e.strerror}", hint="give the path of a file of records"
        ) from e
    lines = raw.splitlines()
    records = Records(_header(path, lines))
    running: dict[str, RequestRecord] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as e:
            if number == len(lines) and not raw.endswith(b"\n"):
                records.problems.append(f"{path}, line {number:,}: cut off, skipped")
                continue
            raise _line_error(path, number, "is not JSON") from e
        try:
            _take(records, running, entry)
        except (TypeError, ValueError, AttributeError) as e:
            raise _line_error(path, number, f"holds no record that fits ({e})") from e
    done = {request.id for request in records.requests}
    lost = [request for name, request in running.items() if name not in done]
    if lost:
        records.problems.append(
            f"{path}: {len(lost):,} requests were still running when the file ends"
        )
    records.requests += lost
    return records


def _take(records: Records, running: dict[str, RequestRecord], entry: Any) -> None:
    """File one line's record."""
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("one name and one record are expected")
    ((name, value),) = entry.items()
    if name == "open":
        for part in value:
            request = _record(RequestRecord, part)
            before = running.get(request.id)
            request.messages = [*(before.messages if before else ()), *request.messages]
            request.error = request.error or CUT_OFF
            running[request.id] = request
    elif name in _KINDS:
        records.add(_record(_KINDS[name], value))
    else:
        raise ValueError(f"{name!r} is unknown")


def _record(cls: type[R], value: dict[str, Any]) -> R:
    known = {f.name for f in fields(cls)}
    record = cls(**{name: item for name, item in value.items() if name in known})
    if isinstance(record, RequestRecord):
        record.messages = [Message(*message) for message in record.messages]
    return record


def _header(path: object, lines: list[bytes]) -> dict[str, Any]:
    if not lines or not is_records(lines[0]):
        raise RecordError(
            f"{path} is not a file of records: its first line is no header",
            hint="record one with `evenflow bench`; files of other tools go in by --format",
        )
    header: dict[str, Any] = orjson.loads(lines[0])
    version = header["evenflow_bench"]
    if version != RECORDS_VERSION:
        raise RecordError(
            f"{path} has records of version {version}, but this evenflow reads version "
            f"{RECORDS_VERSION}",
            hint=f"read it with the evenflow that wrote it ({header.get('evenflow', 'unknown')})",
        )
    return header


def _line_error(path: object, number: int, fact: str) -> RecordError:
    return RecordError(
        f"{path}, line {number:,} {fact}", hint="the file was changed after it was written"
    )


def _write_error(name: str, error: OSError) -> RecordError:
    return RecordError(
        f"cannot write {name}: {error.strerror}",
        hint="choose a file in a folder that you may write",
    )
