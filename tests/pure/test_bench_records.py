"""What a client saw must survive being written, cut off and read by another version."""

from __future__ import annotations

import orjson
import pytest

from evenflow.bench.records import (
    CUT_OFF,
    Mark,
    Message,
    Probe,
    RecordWriter,
    Scrape,
    read_records,
)
from evenflow.errors import RecordError
from helpers.recorded import make_record


def write(path, *records, header=None):
    with RecordWriter(path, header or {"model": "m"}) as writer:
        for record in records:
            writer.add(record)
    return path


def test_everything_comes_back(tmp_path):
    request = make_record([0.1, 0.2], usage={"completion_tokens": 2}, metrics={"queue_time_ms": 3})
    given = [request, Probe(0.3, "echo", 0.001), Scrape(0.4, {"a": 1.5}), Mark(0.5, "end", "x")]
    records = read_records(write(tmp_path / "r.jsonl", *given))
    read = [*records.requests, *records.probes, *records.scrapes, *records.marks]
    assert read == given
    assert records.header["model"] == "m"
    assert isinstance(records.requests[0].messages[0], Message)
    assert not records.problems


def test_a_file_cut_in_half_keeps_all_whole_lines(tmp_path):
    path = write(tmp_path / "r.jsonl", *(make_record([0.1], id=f"r{i}") for i in range(10)))
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    records = read_records(path)
    assert 3 <= len(records.requests) < 10
    assert len(records.problems) == 1
    assert "cut off" in records.problems[0]


def test_a_request_that_was_running_when_the_client_was_killed_is_put_together(tmp_path):
    path = tmp_path / "r.jsonl"
    with RecordWriter(path) as writer:
        writer.add_open([make_record([0.1, 0.2], id="a"), make_record([0.1], id="b")])
        writer.add_open([make_record([0.3], id="a")])
        writer.add(make_record([0.1, 0.2], id="b"))
    records = read_records(path)
    lost = next(r for r in records.requests if r.id == "a")
    assert [m.time_s for m in lost.messages] == [0.1, 0.2, 0.3]
    assert lost.error == CUT_OFF
    assert not lost.ok
    assert next(r for r in records.requests if r.id == "b").ok
    assert "1 requests were still running" in records.problems[0]


def test_unknown_fields_of_a_later_minor_version_are_ignored(tmp_path):
    path = write(tmp_path / "r.jsonl", make_record([0.1]))
    lines = path.read_bytes().splitlines()
    entry = orjson.loads(lines[1])
    entry["request"]["colour"] = "blue"
    path.write_bytes(lines[0] + b"\n" + orjson.dumps(entry) + b"\n")
    assert read_records(path).requests[0].id == "r0"


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "no header"),
        (b"{}\n", "no header"),
        (b'{"evenflow_bench":2}\n', "version 2"),
        (b'{"evenflow_bench":1}\nnot json\n{"mark":{"time_s":1,"kind":"end"}}\n', "line 2"),
        (b'{"evenflow_bench":1}\n{"surprise":{}}\n', "'surprise' is unknown"),
        (b'{"evenflow_bench":1}\n{"request":{"colour":1}}\n', "no record that fits"),
    ],
)
def test_what_is_not_ours_is_refused_with_the_place(tmp_path, content, fact):
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=fact):
        read_records(path)


def test_a_missing_file_and_an_unwritable_folder_are_said(tmp_path):
    with pytest.raises(RecordError, match="No such file"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="cannot write"):
        RecordWriter(tmp_path / "none" / "r.jsonl")
