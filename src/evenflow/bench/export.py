"""A run as the JSON that `vllm bench serve` saves, the usual exchange format.

The keys and their definitions are that client's: ITL is every gap, TPOT divides by the tokens after
the first, times of single requests are seconds, everything named `_ms` is milliseconds. What has no
counterpart here is left out rather than filled in. Where a warm-up or a cool-down is marked, what
was sent outside the window between them is no part of the result, as it is of no table.
"""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from evenflow.bench.measure import goodput, ttft_ms, window_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.gaps import Window
    from evenflow.bench.measure import MeasureOptions
    from evenflow.bench.records import Records, RequestRecord

EXPORTER = "evenflow"  # a chat's role-only message is no token in its lists


def to_vllm(records: Records, options: MeasureOptions, *, detailed: bool = False) -> dict[str, Any]:
    """The result object; with `detailed` the lists per request are in it."""
    header = records.header
    window = window_of(records)
    requests = [r for r in records.requests if r.send_s is None or window.holds(r.send_s)]
    done = [r for r in requests if r.ok]
    sends = [r.send_s for r in requests if r.send_s is not None]
    ends = [r.end_s for r in requests if r.end_s is not None]
    start_s = min(sends, default=0.0)
    duration = max(max(ends, default=0.0) - start_s, 1e-9)
    total_input = sum(r.prompt_tokens or 0 for r in done)
    total_output = sum(r.output_tokens for r in done)
    rate = header.get("request_rate")
    result: dict[str, Any] = {
        "date": _date(header),
        "backend": "openai-chat" if "chat" in str(header.get("endpoint", "")) else "openai",
        "endpoint_type": "openai-chat" if "chat" in str(header.get("endpoint", "")) else "openai",
        "label": header.get("label", EXPORTER),
        "model_id": header.get("model"),
        "tokenizer_id": header.get("model"),
        "num_prompts": len(requests),
        "request_rate": "inf" if rate is None or math.isinf(float(rate)) else float(rate),
        "burstiness": header.get("burstiness", 1.0),
        "max_concurrency": header.get("max_concurrency"),
        "duration": duration,
        "completed": len(done),
        "failed": len(requests) - len(done),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(done) / duration,
        "request_goodput": goodput(done, requests, options.goodput, duration).per_s
        if options.goodput
        else None,
        "output_throughput": total_output / duration,
        "total_token_throughput": (total_input + total_output) / duration,
        "max_concurrent_requests": _most_at_once(requests),
    }
    firsts = [t for r in done if (t := ttft_ms(r)) is not None]
    values = {
        "ttft": firsts,
        "tpot": [t for r in done if (t := _tpot_ms(r)) is not None],
        "itl": [gap * 1e3 for r in done for gap in _gaps_s(r, window)],
        "e2el": [t for r in done if (t := _latency_s(r) * 1e3)],
    }
    for name, found in values.items():
        result.update(_summary(name, found, options.percentiles))
    if detailed:
        result.update(_details(requests, start_s))
    return result


def _details(requests: Sequence[RequestRecord], start_s: float) -> dict[str, Any]:
    return {
        "input_lens": [r.prompt_tokens or 0 for r in requests],
        "output_lens": [r.output_tokens if r.ok else 0 for r in requests],
        "ttfts": [(ttft_ms(r) or 0.0) / 1e3 if r.ok else 0.0 for r in requests],
        "itls": [_gaps_s(r) if r.ok else [] for r in requests],
        "latencies": [_latency_s(r) for r in requests],
        "start_times": [r.send_s if r.send_s is not None else start_s for r in requests],
        "queue_times": [(r.send_s or r.scheduled_s) - r.scheduled_s for r in requests],
        "generated_texts": ["" for _ in requests],
        "errors": [r.error for r in requests],
    }


def _date(header: dict[str, Any]) -> str:
    started = header.get("started_unix_s")
    if not isinstance(started, int | float):
        return ""
    return datetime.fromtimestamp(started, UTC).strftime("%Y%m%d-%H%M%S")


def _gaps_s(request: RequestRecord, window: Window | None = None) -> list[float]:
    times = [m.time_s for m in request.messages if window is None or window.holds(m.time_s)]
    return [b - a for a, b in itertools.pairwise(times)]


def _latency_s(request: RequestRecord) -> float:
    if not request.messages or request.send_s is None:
        return 0.0
    return request.messages[-1].time_s - request.send_s


def _tpot_ms(request: RequestRecord) -> float | None:
    """As that client has it: the first message is taken for one token."""
    if request.output_tokens < 2 or len(request.messages) < 2:
        return None
    seconds = request.messages[-1].time_s - request.messages[0].time_s
    return seconds * 1e3 / (request.output_tokens - 1)


def _summary(name: str, values: Sequence[float], percents: Sequence[float]) -> dict[str, float]:
    found = np.array(values or [0.0])
    return {
        f"mean_{name}_ms": float(found.mean()),
        f"median_{name}_ms": float(np.median(found)),
        f"std_{name}_ms": float(found.std()),
        **{f"p{p:g}_{name}_ms": float(np.percentile(found, p)) for p in percents},
    }


def _most_at_once(requests: Sequence[RequestRecord]) -> int:
    changes = [(r.send_s, 1) for r in requests if r.send_s is not None]
    changes += [(r.end_s, -1) for r in requests if r.end_s is not None and r.send_s is not None]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
