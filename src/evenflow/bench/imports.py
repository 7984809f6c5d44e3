"""Records out of the files that other benchmark clients leave behind.

Reads the JSON of `vllm bench serve --save-detailed`, AIPerf's `profile_export.jsonl` and the JSONL
of SGLang's `bench_serving --output-details`. What a file does not hold stays unknown, and
`problems` says so; nothing is made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from evenflow.bench.counting import settle_tokens
from evenflow.bench.export import EXPORTER
from evenflow.bench.records import Message, Records, RequestRecord, is_records, read_records
from evenflow.errors import RecordError

if TYPE_CHECKING:
    import os

FORMATS = ("auto", "evenflow", "vllm", "aiperf", "sglang")
NO_STARTS = (
    "holds no start times: each stream is right in itself, but they cannot be laid side by side"
)
CHAT_NOTE = (
    "may book a chat's role-only message as the first token (vLLM's client does): then TTFT is too "
    "short, and the first gap holds the rest of the prefill"
)
# aggregates of a run that are worth keeping beside its records
FACTS = ("backend", "model_id", "request_rate", "max_concurrency", "burstiness", "date", "duration")


def load_records(path: str | os.PathLike[str], file_format: str = "auto") -> Records:
    """Read the records in a file of ours or of another client.

    Raises:
        RecordError: it cannot be read, is none of the known formats, or lacks what is needed.
    """
    raw = _read(path)
    kind = _recognise(path, raw) if file_format == "auto" else file_format
    if kind == "evenflow":
        return read_records(path)
    objects, problems = _objects(path, raw)
    match kind:
        case "vllm":
            records = from_vllm(objects[0], str(path))
        case "sglang":
            records = from_vllm(objects[-1], str(path), tool="sglang bench_serving")
        case "aiperf":
            records = from_aiperf(objects, str(path))
        case _:
            raise RecordError(
                f"there is no format {file_format!r}", hint=f"known: {', '.join(FORMATS)}"
            )
    records.problems += problems
    return records


def from_vllm(result: dict[str, Any], name: str, tool: str = "vllm bench serve") -> Records:
    """The records of one detailed result of vLLM's client, or of SGLang's, which is like it.

    Raises:
        RecordError: it was saved without its details.
    """
    lists = {key: result.get(key) for key in ("ttfts", "itls", "input_lens", "output_lens")}
    missing = [key for key, value in lists.items() if not isinstance(value, list)]
    if missing:
        raise RecordError(
            f"{name} has no {', '.join(missing)}",
            hint="save it with --save-detailed (vLLM) or --output-details (SGLang)",
        )
    count = len(lists["ttfts"] or [])
    facts = {key: result[key] for key in FACTS if key in result}
    records = Records({"imported_from": tool, "file": name, **facts})
    starts = result.get("start_times")
    if not isinstance(starts, list) or len(starts) != count:
        records.problems.append(f"{name} {NO_STARTS}")
        starts = None
    records.header["aligned"] = starts is not None
    origin = min(starts) if starts else 0.0
    errors = result.get("errors") or [""] * count
    queues = result.get("queue_times") or [0.0] * count
    for i in range(count):
        start = (starts[i] - origin) if starts else 0.0
        one = {key: (value or [])[i] for key, value in lists.items()}
        records.requests.append(_from_vllm_lists(i, one, start, str(errors[i] or ""), queues[i]))
    kind = str(result.get("endpoint_type", result.get("backend", "")))
    if "chat" in kind and result.get("label") != EXPORTER:
        records.problems.append(f"{name} {CHAT_NOTE}")
    return records


def _from_vllm_lists(
    index: int, one: dict[str, Any], start_s: float, error: str, queue_s: float
) -> RequestRecord:
    """One request from its time to first token and its gaps, all in seconds."""
    times: list[float] = []
    if one["ttfts"] and not error:
        times.append(start_s + one["ttfts"])
        for gap in one["itls"]:
            times.append(times[-1] + gap)
    elif not error:
        error = "no output"
    counted = settle_tokens(
        [Message(t, 1, 0) for t in times], one["output_lens"] or None, each_known=False
    )
    return RequestRecord(
        id=str(index),
        prompt_tokens=one["input_lens"],
        output_tokens=counted.output_tokens,
        scheduled_s=start_s - (queue_s or 0.0),
        send_s=start_s,
        first_byte_s=times[0] if times else None,
        end_s=times[-1] if times else None,
        messages=counted.messages,
        tokens_from=counted.tokens_from,
        error=error,
    )


def from_aiperf(lines: list[dict[str, Any]], name: str) -> Records:
    """The records of AIPerf's per-request export; its warm-up requests are left out."""
    records = Records({"imported_from": "aiperf", "file": name, "aligned": True})
    phases = [line for line in lines if line["metadata"].get("benchmark_phase") != "warmup"]
    origin = min((line["metadata"]["request_start_ns"] for line in phases), default=0)
    records.header["started_unix_s"] = origin / 1e9
    without = 0
    for line in phases:
        metrics = line.get("metrics") or {}
        record = _from_aiperf_line(line["metadata"], metrics, line.get("error"), origin)
        without += record.ok and "inter_chunk_latency" not in metrics
        records.requests.append(record)
    if len(phases) < len(lines):
        records.problems.append(f"{name}: {len(lines) - len(phases):,} warm-up requests left out")
    if without:
        records.problems.append(
            f"{name}: {without:,} requests have no inter_chunk_latency, so none of their gaps"
        )
    return records


def _from_aiperf_line(
    about: dict[str, Any], metrics: dict[str, Any], error: dict[str, Any] | None, origin_ns: int
) -> RequestRecord:
    def value(key: str) -> Any:
        return (metrics.get(key) or {}).get("value")

    def seconds(key: str) -> Any:
        scale = {"ns": 1e9, "us": 1e6, "ms": 1e3, "sec": 1.0, "s": 1.0}
        found = value(key)
        unit = scale[(metrics.get(key) or {}).get("unit", "ms")]
        if isinstance(found, list):
            return [x / unit for x in found]
        return None if found is None else found / unit

    start_s = (about["request_start_ns"] - origin_ns) / 1e9
    end_ns = about.get("request_end_ns")
    first = seconds("time_to_first_token")
    times = [] if first is None else [start_s + first]
    for gap in (seconds("inter_chunk_latency") or ()) if times else ():
        times.append(times[-1] + gap)
    counted = settle_tokens(
        [Message(t, 1, 0) for t in times], value("output_sequence_length"), each_known=False
    )
    text = f"{error.get('type', 'error')}: {error.get('message', '')}" if error else ""
    prompt = value("input_sequence_length")
    issued_ns = about.get("credit_issued_ns")
    return RequestRecord(
        id=str(about.get("x_request_id") or about.get("session_num")),
        prompt_tokens=prompt if prompt is not None else value("error_isl"),
        output_tokens=counted.output_tokens,
        scheduled_s=start_s if issued_ns is None else (issued_ns - origin_ns) / 1e9,
        send_s=start_s,
        first_byte_s=times[0] if times else None,
        end_s=None if end_ns is None else (end_ns - origin_ns) / 1e9,
        messages=counted.messages,
        tokens_from=counted.tokens_from,
        status=int((error or {}).get("code") or 0),
        error=text or ("" if times else "no output"),
        session=str(about.get("x_correlation_id") or ""),
        turn=int(about.get("turn_index") or 0),
    )


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise RecordError(
            f"cannot read {path}: {e.strerror}", hint="give the path of a file of records"
        ) from e


def _recognise(path: object, raw: bytes) -> str:
    """The format of a file, by what is in it."""
    if is_records(raw.split(b"\n", 1)[0]):
        return "evenflow"
    first = _objects(path, raw)[0][0]
    if "metadata" in first and "metrics" in first:
        return "aiperf"
    if "itls" in first or "ttfts" in first or "mean_ttft_ms" in first:
        return "vllm" if "model_id" in first or "endpoint_type" in first else "sglang"
    raise RecordError(
        f"{path} is in none of the known formats",
        hint="evenflow's records, vLLM's --save-detailed JSON, AIPerf's profile_export.jsonl, "
        "SGLang's JSONL with --output-details",
    )


def _objects(path: object, raw: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The JSON objects in a file, one that fills it or one per line; and a word on a torn last."""
    try:
        whole = orjson.loads(raw)
        if isinstance(whole, dict):
            return [whole], []
    except orjson.JSONDecodeError:
        pass
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    lines = raw.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as e:
            if number == len(lines) and found and not raw.endswith(b"\n"):
                problems.append(f"{path}, line {number:,}: cut off, skipped")
                break
            raise RecordError(
                f"{path}, line {number:,} is not JSON",
                hint="is the file complete, and is it one of the known formats?",
            ) from e
        if not isinstance(value, dict):
            raise RecordError(
                f"{path}, line {number:,} is not a JSON object",
                hint="give a file of records of one of the known formats",
            )
        found.append(value)
    if not found:
        raise RecordError(f"{path} is empty", hint="give a file of records")
    return found, problems
