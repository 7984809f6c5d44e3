"""Trace files: what is written is read back, and what is broken is named."""

from __future__ import annotations

import io
import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.errors import TraceError
from evenflow.trace import (
    ChunkRecord,
    RequestRecord,
    StepRecord,
    TraceWriter,
    read_trace,
)

STRATEGIES = {
    int: st.integers(-(2**31), 2**53),
    str: st.text(max_size=8),
    float: st.floats(0, 1e9),
    float | None: st.none() | st.floats(0, 1e9),
    list[str]: st.lists(st.text(max_size=4), max_size=2),
    list[float]: st.lists(st.floats(0, 1e9), max_size=3),
}


def records_of(cls):
    return st.builds(cls, **{name: STRATEGIES[hint] for name, hint in get_type_hints(cls).items()})


STRATEGIES[list[ChunkRecord]] = st.lists(records_of(ChunkRecord), max_size=2)
RECORDS = st.lists(records_of(StepRecord) | records_of(RequestRecord), max_size=4)


def make_step(**changes: object) -> StepRecord:
    values: dict[str, object] = {
        "serial": 0,
        "start_s": 0.5,
        "seconds": 0.02,
        "predicted_s": None,
        "num_decodes": 2,
        "chunks": [ChunkRecord("a", 16, 3, 16)],
        "num_tokens": 5,
        "budget": 128,
        "budget_reason": "fixed",
        "blocked": "",
        "kv_blocks_used": 3,
        "kv_blocks_cached": 1,
        "kv_blocks_free": 5,
        "num_running": 3,
        "num_waiting": 0,
        "preempted": ["b"],
        "recomputed_tokens": 0,
        "graph": "none: cpu",
    }
    return StepRecord(**{**values, **changes})


def write_lines(path: Path, *lines: object) -> Path:
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


HEADER = {"evenflow_trace": 1, "evenflow": "0.1.0"}


@given(records=RECORDS)
def test_what_is_written_is_read_back(tmp_path_factory, records):
    path = tmp_path_factory.getbasetemp() / "round.jsonl"
    with TraceWriter(path, header={"model": "tiny"}) as writer:
        for record in records:
            (writer.step if isinstance(record, StepRecord) else writer.request)(record)
    trace = read_trace(path)
    assert trace.steps == [r for r in records if isinstance(r, StepRecord)]
    assert trace.requests == [r for r in records if isinstance(r, RequestRecord)]
    assert trace.header["model"] == "tiny"
    assert trace.problems == []


def test_records_are_on_disk_before_the_writer_is_closed(tmp_path):
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.step(make_step())
    assert read_trace(tmp_path / "t.jsonl").steps == [make_step()]
    writer.close()
    writer.close()


def test_a_given_file_is_left_open():
    file = io.BytesIO()
    with TraceWriter(file) as writer:
        writer.step(make_step())
    assert not file.closed
    header, step = map(orjson.loads, file.getvalue().splitlines())
    assert header["evenflow_trace"] == 1
    assert step["step"]["chunks"] == [{"request_id": "a", "start": 16, "length": 3, "cached": 16}]


@pytest.mark.parametrize("kept", [1, 20, 300])
def test_a_torn_last_line_is_named_and_skipped(tmp_path, kept):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.step(make_step())
        size = path.stat().st_size
        writer.step(make_step(serial=1))
    path.write_bytes(path.read_bytes()[: size + kept])
    trace = read_trace(path)
    assert trace.steps == [make_step()]
    assert trace.problems == [f"{path}, line 3: cut off, skipped"]


def test_a_broken_line_before_the_last_is_an_error(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", HEADER)
    path.write_bytes(path.read_bytes() + b'{"step"\n{}\n')
    with pytest.raises(TraceError, match="line 2 is not JSON"):
        read_trace(path)


def test_another_version_is_refused_with_the_program_that_reads_it(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", {"evenflow_trace": 2, "evenflow": "9.1.0"})
    with pytest.raises(TraceError, match=r"has trace version 2, .* reads version 1") as caught:
        read_trace(path)
    assert "9.1.0" in caught.value.hint


@pytest.mark.parametrize("first", [[], [{}], ["x"], [[1]]])
def test_a_file_without_a_header_is_no_trace(tmp_path, first):
    path = write_lines(tmp_path / "t.jsonl", *first)
    with pytest.raises(TraceError, match="is not an evenflow trace") as caught:
        read_trace(path)
    assert caught.value.hint


def test_a_text_file_is_no_trace(tmp_path):
    (tmp_path / "t.txt").write_text("hello\nthere\n")
    with pytest.raises(TraceError, match="is not an evenflow trace"):
        read_trace(tmp_path / "t.txt")


def broken(**changes: object) -> dict[str, object]:
    step = orjson.loads(orjson.dumps(make_step()))
    step.update(changes)
    return {"step": {k: v for k, v in step.items() if v != "DROP"}}


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (broken(budget="DROP"), "line 2 lacks the field 'budget'"),
        (broken(budget="many"), "line 2 has 'many' as 'budget'"),
        (broken(budget=True), "line 2 has True as 'budget'"),
        (broken(seconds=None), "line 2 has None as 'seconds'"),
        (broken(chunks=[1]), "line 2 has a chunk that is not an object"),
        (broken(chunks=[{}]), "line 2 lacks the field 'request_id'"),
        ({"stop": {}}, "line 2 is neither a step nor a request"),
        ([1], "line 2 is neither a step nor a request"),
    ],
)
def test_a_line_that_was_changed_is_named(tmp_path, line, fact):
    path = write_lines(tmp_path / "t.jsonl", HEADER, line)
    with pytest.raises(TraceError, match=re.escape(fact)):
        read_trace(path)


def test_fields_of_a_later_minor_change_are_ignored(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", HEADER, broken(later=[1, 2]))
    assert read_trace(path).steps == [make_step()]


def test_files_that_cannot_be_opened_are_errors_with_a_hint(tmp_path):
    with pytest.raises(TraceError, match="No such file") as caught:
        read_trace(tmp_path / "none.jsonl")
    assert caught.value.hint
    with pytest.raises(TraceError, match=r"cannot write .*No such file") as caught:
        TraceWriter(tmp_path / "none" / "t.jsonl")
    assert caught.value.hint


def test_a_full_disk_is_an_error_of_ours():
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(TraceError, match="No space"),
    ):
        TraceWriter(full)


@pytest.mark.parametrize("record", [ChunkRecord, StepRecord, RequestRecord])
def test_every_field_is_documented(record):
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE))
    assert {f.name for f in fields(record)} <= documented
