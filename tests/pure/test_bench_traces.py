"""Published traces, each with its trap."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.traces import TraceOptions, read_trace_file
from evenflow.errors import RecordError


def rng():
    return np.random.default_rng(3)


MOONCAKE = b"""{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
{"timestamp": 1500, "input_length": 700, "output_length": 0, "hash_ids": [7, 3]}
{"timestamp": 2500, "input_length": 700, "output_length": 9, "hash_ids": [7, 4]}
"""
AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319601,3180,8
2023-11-16 18:17:09.9799600,90000,8
"""
BURSTGPT = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
SHAREGPT = orjson.dumps(
    [
        {"id": "1", "conversations": [
            {"from": "human", "value": "What is the sea? " * 4},
            {"from": "gpt", "value": "Water. " * 30},
        ]},
        {"id": "2", "conversations": [{"from": "human", "value": "alone"}]},
    ]
)  # fmt: skip


def trace(tmp_path, data, **options):
    path = tmp_path / "trace"
    path.write_bytes(data)
    return read_trace_file(path, "auto", TraceOptions(**options), rng())


def test_mooncake_is_in_milliseconds_and_its_hash_ids_are_shared_blocks(tmp_path):
    made = trace(tmp_path, MOONCAKE)
    first, last = made.requests
    assert (first.at_s, last.at_s) == (0.0, 1.5)
    assert [s.tokens for s in first.segments] == [512, 512, 76]
    assert first.segments[0] == last.segments[0]
    assert first.segments[1].seed != last.segments[1].seed
    assert made.notes == [f"{tmp_path / 'trace'}: 1 requests without prompt or output left out"]


def test_azure_has_seven_decimals_and_too_long_ones_are_left_out(tmp_path):
    made = trace(tmp_path, AZURE, max_len=10_000, time_scale=2.0)
    assert [r.prompt_tokens for r in made.requests] == [4808, 3180]
    assert made.requests[1].at_s == pytest.approx(2 * 0.0520001, abs=1e-9)
    assert "more than 10000 tokens" in made.notes[0]


def test_burstgpt_failures_have_no_response(tmp_path):
    made = trace(tmp_path, BURSTGPT, length_scale=0.5)
    assert [(r.at_s, r.prompt_tokens, r.output_tokens) for r in made.requests] == [
        (0.0, 236, 9),
        (113.0, 208, 138),
    ]


def test_sharegpt_has_text_and_no_times(tmp_path):
    made = trace(tmp_path, SHAREGPT, output_tokens=20)
    (only,) = made.requests
    assert only.text == "What is the sea? " * 4
    assert (only.at_s, only.output_tokens) == (None, 20)
    path = tmp_path / "trace"
    timed = make_workload(WorkloadOptions(dataset_path=path, request_rate=5.0))
    assert timed.requests[0].at_s == 0.0


def test_what_no_trace_is_is_refused(tmp_path):
    with pytest.raises(RecordError, match="none of the known trace formats"):
        trace(tmp_path, b"hello\n")
    with pytest.raises(RecordError, match="not UTF-8"):
        trace(tmp_path, b"\xff\xfe")
    with pytest.raises(RecordError, match="does not fit the format mooncake"):
        trace(tmp_path, b'{"input_length": 5}\n')
    with pytest.raises(RecordError, match="no request that could be sent"):
        trace(tmp_path, AZURE, max_len=5)
