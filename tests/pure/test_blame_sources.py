"""What blame reads, and the command."""

from __future__ import annotations

import itertools
import json

import orjson
import pytest

from evenflow.bench.blame.columns import parse_columns, read_table
from evenflow.bench.records import RecordWriter
from evenflow.cli.main import main
from evenflow.errors import ConfigError, RecordError
from evenflow.trace import TraceWriter
from helpers.blamed import attack, traced, vllm_log
from helpers.recorded import make_record, make_records, steady
from helpers.synthetic import Event, Plan, simulate, streams
from helpers.synthetic_server import Behaviour, serve


@pytest.fixture
def run():
    return simulate(streams(10, 600) + attack(2, every_s=2), Plan())


def _records(path, run):
    with RecordWriter(path, run.records.header) as writer:
        for item in [*run.records.requests, *run.records.probes]:
            writer.add(item)
    return str(path)


def _blame(capsys, *arguments):
    assert main(["blame", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_has_what_is_promised(run, tmp_path, capsys):
    found = _blame(capsys, _records(tmp_path / "r.jsonl", run))
    assert found["verdict"] == "chunked_prefill_off"
    assert {o["request"] for o in found["offenders"]} == {"attack-0", "attack-1"}
    assert found["explained_share"] > 0.99
    assert found["p_value"] <= 0.01
    assert len(found["stalls"]) == 20
    assert found["stalls"][0]["culprits"][0]["request"] == "attack-0"


def test_the_tables_name_the_offender(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["blame", _records(tmp_path / "r.jsonl", run), "--server", "vllm"]) == 0
    out = capsys.readouterr().out
    assert "attack-0" in out
    assert "24,000" in out
    assert "--enable-chunked-prefill" in out
    assert "a budget of" in out


def _vllm_result(run):
    requests = run.records.requests
    return {
        "backend": "openai",
        "endpoint_type": "openai",
        "model_id": "m",
        "input_lens": [r.prompt_tokens for r in requests],
        "output_lens": [r.output_tokens for r in requests],
        "ttfts": [r.messages[0].time_s - r.send_s for r in requests],
        "itls": [
            [b.time_s - a.time_s for a, b in itertools.pairwise(r.messages)] for r in requests
        ],
        "start_times": [r.send_s + 1e6 for r in requests],
        "errors": ["" for _ in requests],
    }


def test_vllm_files_that_people_already_have(run, tmp_path, capsys):
    result = _vllm_result(run)
    path = tmp_path / "vllm.json"
    path.write_bytes(orjson.dumps(result))
    found = _blame(capsys, str(path))
    assert found["verdict"] == "chunked_prefill_off"
    assert [o["prompt_tokens"] for o in found["offenders"]] == [24_000, 22_000]
    del result["start_times"]
    path.write_bytes(orjson.dumps(result))
    found = _blame(capsys, str(path))
    assert found["offenders"] == []
    assert any("side by side" in p for p in found["problems"])


def test_a_role_only_message_that_vllm_booked_as_a_token(run, tmp_path, capsys):
    """It comes before the prompt is computed; the prefill then hides in the first gap."""
    result = _vllm_result(run)
    result["endpoint_type"] = "openai-chat"
    result["itls"] = [
        [ttft - 0.002, *gaps] for ttft, gaps in zip(result["ttfts"], result["itls"], strict=True)
    ]
    result["ttfts"] = [0.002 for _ in result["ttfts"]]
    path = tmp_path / "vllm.json"
    path.write_bytes(orjson.dumps(result))
    found = _blame(capsys, str(path))
    assert found["verdict"] == "chunked_prefill_off"
    assert [o["prompt_tokens"] for o in found["offenders"]] == [24_000, 22_000]
    assert len(found["stalls"]) == 20
    assert any("role-only" in p for p in found["problems"])


def test_a_trace_of_ours(run, tmp_path, capsys):
    trace = traced(run, 100.0)
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        for step in trace.steps:
            writer.step(step)
        for request in trace.requests:
            writer.request(request)
    assert _blame(capsys, str(path))["depth"] == "steps"
    records = _records(tmp_path / "r.jsonl", run)
    found = _blame(capsys, records, "--steps", str(path))
    assert (found["depth"], found["verdict"]) == ("steps", "chunked_prefill_off")
    assert main(["blame", str(path), "--steps", str(path)]) == 2


def test_a_log_of_vllm(run, tmp_path, capsys):
    log = tmp_path / "server.log"
    log.write_text(vllm_log(run))
    found = _blame(capsys, _records(tmp_path / "r.jsonl", run), "--log", str(log))
    assert found["depth"] == "log"
    assert found["budget"]["largest_chunk_tokens"] == 24_000


def _rows(run):
    return [
        {"rid": r.id, "t": m.time_s * 1e3, "sent": r.send_s * 1e3, "isl": r.prompt_tokens}
        for r in run.records.requests
        for m in r.messages
    ]


COLUMNS = "stream=rid,time=t,send=sent,prompt_tokens=isl"


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_any_table_with_a_column_map(run, tmp_path, capsys, kind):
    path = tmp_path / f"rows.{kind}"
    rows = _rows(run)
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        between = "," if kind == "csv" else "\t"
        path.write_text("\n".join(between.join(str(x) for x in line) for line in lines))
    found = _blame(capsys, str(path), "--columns", COLUMNS, "--time-unit", "ms")
    assert found["verdict"] == "chunked_prefill_off"
    assert {o["request"] for o in found["offenders"]} == {"attack-0", "attack-1"}


def test_a_table_without_sends_blames_nobody_and_says_why(run, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in _rows(run)))
    records = read_table(path, parse_columns("stream=rid,time=t"), "ms")
    assert any("when requests were sent" in p for p in records.problems)
    assert all(r.send_s is None for r in records.requests)


def test_rows_that_cannot_be_read_are_counted(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,t\na,1\na,nonsense\na,2\nb\n")
    records = read_table(path, parse_columns("stream=id,time=t"))
    assert any("2 rows could not be read (rows 2, 4" in p for p in records.problems)
    assert [len(r.messages) for r in records.requests] == [2]


@pytest.mark.parametrize(
    ("text", "word"),
    [("stream=a", "time"), ("stream=a,when=b", "when"), ("stream=a,time", "time"), ("", "stream")],
)
def test_a_column_map_that_cannot_be_read(text, word):
    with pytest.raises(ConfigError) as caught:
        parse_columns(text)
    assert word in caught.value.message + caught.value.hint


def test_tables_that_cannot_be_read(tmp_path):
    columns = parse_columns("stream=id,time=t")
    path = tmp_path / "rows.csv"
    path.write_text("id,when\na,1\n")
    with pytest.raises(RecordError, match="no column 't'"):
        read_table(path, columns)
    path.write_bytes(b"id,t\n\xff,1\n")
    with pytest.raises(RecordError, match="not UTF-8"):
        read_table(path, columns)
    path.write_text("id,t\n")
    with pytest.raises(RecordError, match="no row"):
        read_table(path, columns)
    with pytest.raises(RecordError, match="cannot read"):
        read_table(tmp_path / "none.csv", columns)


@pytest.mark.parametrize(
    "arguments",
    [
        ["FILE", "--streams", "4"],
        ["FILE", "--time-unit", "ms"],
        ["FILE", "--stall-factor", "0"],
        ["FILE", "--server", "mine"],
        ["FILE", "--steps", "a", "--log", "b"],
        ["http://127.0.0.1:1", "--columns", "stream=a,time=b"],
        ["nowhere.jsonl"],
    ],
)
def test_arguments_that_make_no_sense(arguments, run, tmp_path, capsys):
    file = _records(tmp_path / "r.jsonl", run)
    code = main(["blame", *(file if a == "FILE" else a for a in arguments)])
    assert code == 2
    assert "hint:" in capsys.readouterr().err


def test_a_file_that_was_cut_in_half(run, tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    _records(path, run)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * 0.97)])
    found = _blame(capsys, str(path))
    assert any("cut off" in p for p in found["problems"])


def test_failed_requests_are_left_out_and_said(tmp_path, capsys):
    lost = make_records(make_record(steady(90), error="the stream ended early"))
    with RecordWriter(tmp_path / "r.jsonl", {}) as writer:
        writer.add(lost.requests[0])
    found = _blame(capsys, str(tmp_path / "r.jsonl"))
    assert found["verdict"] == "inconclusive"
    assert found["problems"] == ["1 of 1 requests failed and are left out: the stream ended early"]


def test_offenders_are_told_apart_on_a_narrow_terminal(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["blame", _records(tmp_path / "r.jsonl", run)]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert "attack-0" in out
    assert "attack-1" in out


def test_each_measurement_has_words_of_its_own(tmp_path, capsys):
    with serve(Plan(decode_ms=8), Behaviour()) as server:
        sent = []
        for number in (1, 2):
            path = tmp_path / f"{number}.jsonl"
            words = ("--streams", "1", "--output-len", "9", "--inject", "60/2@0.1s")
            _blame(capsys, server.url, *words, "--records", str(path))
            sent.append(orjson.loads(path.read_bytes().split(b"\n")[0])["workload"]["words"])
    assert sent[0] != sent[1]


def test_a_server_is_measured_and_the_truth_found(tmp_path, capsys):
    plan = Plan(decode_ms=8, token_ms=0.06, pauses=(Event(1e6, 1.0),))
    records = tmp_path / "r.jsonl"
    with serve(plan, Behaviour()) as server:
        found = _blame(
            capsys,
            server.url,
            *("--streams", "6", "--output-len", "150", "--records", str(records)),
            *("--inject", "4000/4@0.6s", "--inject", "3000/4@1.6s"),
        )
        planted = [p for p in server.planted() if sum(p.tokens.values()) > 2000]
    assert found["verdict"] == "chunked_prefill_off"
    offenders = {o["request"]: o for o in found["offenders"] if o["prompt_tokens"] > 2000}
    assert len(offenders) == len(planted) == 2
    worst = sorted(o["worst_ms"] for o in offenders.values())
    truth = sorted((p.end_s - p.start_s) * 1e3 for p in planted)
    # the streams see the step and what the loopback and two event loops add
    assert worst == pytest.approx(truth, rel=0.2)
    assert records.exists()
