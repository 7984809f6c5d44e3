"""Streams out of any table: one row per message, with columns for the stream and the time.

In: a CSV with a header, or lines of JSON, and a map from our names to the file's. Out: records.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from evenflow.bench.records import Message, Records, RequestRecord
from evenflow.errors import ConfigError, RecordError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

NEEDED = ("stream", "time")
OPTIONAL = ("tokens", "send", "prompt_tokens", "class")
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
MAX_BAD_NAMED = 3


def parse_columns(text: str) -> dict[str, str]:
    """From `stream=request_id,time=ts,send=start,prompt_tokens=isl`.

    Raises:
        ConfigError: a name is unknown or one that is needed is missing.
    """
    found: dict[str, str] = {}
    known = (*NEEDED, *OPTIONAL)
    for part in text.split(","):
        name, equals, column = part.strip().partition("=")
        if not equals or not column or name not in known:
            raise ConfigError(
                f"cannot read {part.strip()!r} in --columns",
                hint=f"write OURS=THEIRS with commas between; ours are {', '.join(known)}",
            )
        found[name] = column
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise ConfigError(
            f"--columns does not say which column is {' and '.join(missing)}",
            hint="such as --columns stream=request_id,time=timestamp",
        )
    return found


def read_table(
    path: str | os.PathLike[str], columns: Mapping[str, str], unit: str = "s"
) -> Records:
    """Read a table of messages.

    Args:
        path: a .csv or .tsv, or lines of JSON.
        columns: our names to the table's. `send` is when the stream's request was sent, and
            `prompt_tokens` how long its prompt was; without `send` no prefill can be blamed.
        unit: of the times.

    Raises:
        RecordError: the file cannot be read, lacks a column, or has no row that can be used.
    """
    if unit not in UNITS:
        raise ConfigError(f"there is no unit {unit!r}", hint=f"known: {', '.join(UNITS)}")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror}", hint="give a table's path") from e
    except UnicodeDecodeError as e:
        raise RecordError(
            f"{path} is not UTF-8: byte {e.start:,} is {e.object[e.start]:#04x}",
            hint="convert it, for instance with iconv",
        ) from e
    rows: dict[str, list[dict[str, Any]]] = {}
    bad: list[int] = []
    for number, row in _rows(str(path), text):
        if number == 1 or not rows:
            _check_columns(path, row, columns)
        try:
            values = {ours: row[theirs] for ours, theirs in columns.items() if theirs in row}
            values["time"] = float(values["time"]) / UNITS[unit]
            rows.setdefault(str(values["stream"]), []).append(values)
        except (KeyError, TypeError, ValueError):
            bad.append(number)
    if not rows:
        raise RecordError(f"{path} has no row that can be used", hint="is the column map right?")
    records = Records({"imported_from": "table", "file": str(path), "aligned": True})
    if bad:
        which = ", ".join(f"{n:,}" for n in bad[:MAX_BAD_NAMED])
        records.problems.append(f"{path}: {len(bad):,} rows could not be read (rows {which} ...)")
    if "send" not in columns:
        records.problems.append(
            f"{path} does not say when requests were sent, so no prefill can be blamed"
        )
    origin = min(min(_time(values) for values in group) for group in rows.values())
    for name, group in rows.items():
        records.add(_request(name, sorted(group, key=_time), origin, UNITS[unit]))
    return records


def _time(values: dict[str, Any]) -> float:
    return float(values["time"])


def _request(
    name: str, group: list[dict[str, Any]], origin: float, per_second: float
) -> RequestRecord:
    send = group[0].get("send")
    prompt = group[0].get("prompt_tokens")
    first_s = group[0]["time"] - origin
    send_s = None if send in {None, ""} else float(send) / per_second - origin
    return RequestRecord(
        id=name,
        class_name=str(group[0].get("class") or ""),
        prompt_tokens=None if prompt in {None, ""} else int(float(prompt)),
        output_tokens=sum(_tokens(values) for values in group),
        scheduled_s=first_s if send_s is None else send_s,
        send_s=send_s,
        first_byte_s=first_s,
        end_s=group[-1]["time"] - origin,
        messages=[Message(values["time"] - origin, _tokens(values), 0) for values in group],
        tokens_from="usage" if "tokens" in group[0] else "assumed",
    )


def _tokens(values: dict[str, Any]) -> int:
    tokens = values.get("tokens")
    return 1 if tokens in {None, ""} else int(float(tokens))


def _rows(name: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if name.endswith((".csv", ".tsv")):
        delimiter = "\t" if name.endswith(".tsv") else ","
        yield from enumerate(csv.DictReader(io.StringIO(text), delimiter=delimiter), start=1)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = {}
        yield number, row if isinstance(row, dict) else {}


def _check_columns(path: object, row: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    missing = [theirs for theirs in columns.values() if theirs not in row]
    if missing:
        raise RecordError(
            f"{path} has no column {missing[0]!r}",
            hint=f"it has {', '.join(str(name) for name in row) or 'none'}",
        )
