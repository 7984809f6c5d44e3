"""Records made by hand, with times that are easy to reason about."""

from __future__ import annotations

from evenflow.bench.records import Message, Records, RequestRecord


def make_record(
    times_s: list[float], *, send_s: float = 0.0, tokens: int = 1, **fields
) -> RequestRecord:
    """A request that was sent at `send_s` and whose messages came at `times_s`."""
    messages = [Message(t, tokens, 4 * tokens) for t in times_s]
    values = {
        "id": "r0",
        "prompt_tokens": 10,
        "output_tokens": tokens * len(times_s),
        "scheduled_s": send_s,
        "first_byte_s": times_s[0] if times_s else None,
        "end_s": times_s[-1] if times_s else send_s,
        "tokens_from": "usage",
        "status": 200,
        "finish_reason": "length",
    }
    return RequestRecord(send_s=send_s, messages=messages, **(values | fields))


def steady(
    count: int, gap_s: float = 0.01, *, first_s: float = 0.1, stalls: dict[int, float] | None = None
) -> list[float]:
    """Times of `count` tokens; `stalls` maps the index of a token to what it comes late by."""
    times = [first_s]
    for index in range(1, count):
        times.append(times[-1] + gap_s + (stalls or {}).get(index, 0.0))
    return times


def make_records(*requests: RequestRecord, **header) -> Records:
    records = Records(header)
    for request in requests:
        records.add(request)
    return records
