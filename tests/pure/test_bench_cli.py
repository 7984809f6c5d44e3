"""The commands as a person types them: what they print, where they write, how they exit."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from evenflow.bench.imports import load_records
from evenflow.cli.main import main
from helpers.synthetic import Plan
from helpers.synthetic_server import Behaviour, serve

FAST = Plan(decode_ms=3, token_ms=0.01)
SMALL = ["--num-prompts", "4", "--max-concurrency", "2", "--mix", "a:9/5@0.5,b:30/5@0.5"]


@pytest.fixture(scope="module")
def server():
    with serve(FAST) as running:
        yield running


def evenflow(capsys, *words):
    code = main([str(w) for w in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_bench_prints_tables_and_writes_records_workload_and_result(server, tmp_path, capsys):
    code, out, err = evenflow(
        capsys, "bench", "--base-url", server.url, *SMALL, "--result-dir", tmp_path,
        "--save-detailed", "--result-filename", "v.json", "--metadata", "who=me", "--no-live",
        "--goodput", "ttft:5000", "tpot:5000",
    )  # fmt: skip
    assert code == 0, err
    for word in ("TTFT", "ITL per token", "TPOT", "goodput", "100.0 % of all", "by class", "4 com"):
        assert word in out
    assert "VALID" in out
    (records,) = [p for p in tmp_path.glob("bench-*.jsonl") if "workload" not in p.name]
    assert f"records: {records}" in err
    assert load_records(records).header["metadata"] == {"who": "me"}
    assert records.with_suffix(".workload.jsonl").exists()
    result = orjson.loads((tmp_path / "v.json").read_bytes())
    assert len(result["itls"]) == 4
    assert result["model_id"] == "synthetic"
    assert load_records(tmp_path / "v.json").requests[0].messages


def test_json_is_one_document_on_stdout(server, tmp_path, capsys):
    code, out, _ = evenflow(
        capsys, "bench", "--base-url", server.url, *SMALL, "--result-dir", tmp_path, "--json",
        "--metric-percentiles", "25,75",
    )  # fmt: skip
    value = orjson.loads(out)
    assert code == 0
    assert value["counts"]["completed"] == 4
    assert {"p25", "p50", "p75", "p95", "p99"} <= set(value["itl_ms"])
    assert set(value["classes"]) == {"a", "b"}
    assert isinstance(value["valid"], bool)


def test_an_invalid_run_exits_with_3_when_strict(tmp_path, capsys):
    with serve(FAST, Behaviour(cut_every=2)) as broken:
        words = ["bench", "--base-url", broken.url, *SMALL, "--result-dir", tmp_path]
        assert evenflow(capsys, *words)[0] == 0
        code, out, err = evenflow(capsys, *words, "--strict")
    assert code == 3
    assert "INVALID" in out
    assert "error: the run is INVALID" in err
    assert "failed" in err


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--goodput", "speed:3"], "cannot read 'speed:3'"),
        (["--metric-percentiles", "101"], "--metric-percentiles is '101'"),
        (["--metadata", "x"], "--metadata is 'x'"),
        (["--extra-body", "[1]"], "--extra-body is '[1]'"),
        (["--count-tokens", "maybe"], "--count-tokens is 'maybe'"),
        (["--duration", "0"], "--duration is 0"),
        (["--max-num-batched-tokens", "64"], "--max-num-batched-tokens has no effect here"),
        (["ttft:5"], "unexpected argument 'ttft:5'"),
        (["--mix", "a"], "cannot read 'a' in the mixture"),
        (["--endpoint", "v1/completions"], "--endpoint is 'v1/completions'"),
        (["--turns", "0"], "--turns is 0"),
        (["--prefix-len", "9", "--num-prefixes", "0"], "--num-prefixes is 0"),
        (["--warmup", "-1"], "--warmup is -1"),
        (["--duration", "inf", "--request-rate", "2"], "--duration is inf"),
        (["--stall-factor", "nan"], "--stall-factor is nan"),
        (["--duration", "3", "--warmup", "2", "--cooldown", "1"], "take 3 s of the 3 s"),
        (["--think-time", "1"], "--think-time has no effect here"),
        (["--burstiness", "2"], "--burstiness has no effect here"),
        (["--time-scale", "2"], "--time-scale has no effect here"),
        (["--streams", "4", "--max-concurrency", "2"], "no effect beside --streams"),
        (["--workload", "w", "--request-rate", "2"], "no effect beside --workload"),
        (["--dataset-path", "d", "--turns", "2"], "no effect beside --dataset-path"),
    ],
)
def test_a_value_that_cannot_be_is_refused_before_anything_runs(words, fact, tmp_path, capsys):
    code, _, err = evenflow(
        capsys, "bench", "--base-url", "http://127.0.0.1:9", "--result-dir", tmp_path, *words
    )
    assert code == 2
    assert fact in err
    assert "hint:" in err


def test_a_flag_for_servers_has_no_effect_on_a_model_here(capsys):
    code, _, err = evenflow(capsys, "bench", "--endpoint", "/v1/chat/completions")
    assert code == 2
    assert "--endpoint has no effect here" in err


def test_a_server_that_is_down_exits_with_1_and_one_hint(tmp_path, capsys):
    code, out, err = evenflow(
        capsys, "bench", "--base-url", "http://127.0.0.1:9", "--result-dir", tmp_path
    )
    assert (code, out) == (1, "")
    assert err.count("error:") == err.count("hint:") == 1


def test_a_workload_is_replayed_from_its_file(server, tmp_path, capsys):
    words = ["bench", "--base-url", server.url, "--result-dir", tmp_path, "--no-live"]
    evenflow(capsys, *words, *SMALL, "--records", tmp_path / "a.jsonl")
    workload = tmp_path / "a.workload.jsonl"
    code, _, err = evenflow(
        capsys, *words, "--workload", workload, "--max-concurrency", 2, "--records",
        tmp_path / "b.jsonl",
    )  # fmt: skip
    assert code == 0, err

    def sent(name):
        return sorted((r.id, r.prompt_tokens) for r in load_records(tmp_path / name).requests)

    assert sent("a.jsonl") == sent("b.jsonl")


SERVE = Path(__file__).parents[1] / "helpers" / "serve_on_port.py"


def test_a_sweep_prints_the_table_and_its_sweet_spot(tmp_path, capsys):
    import sys

    code, out, err = evenflow(
        capsys, "sweep", "--experiment", "budget", "--server", "custom", "--serve-cmd",
        f"{sys.executable} {SERVE} {tmp_path / 'pids'} {{port}} {{budget}}",
        "--knob-off", "9", "--ready-path", "/health", "--budgets", "8,64", "--repeats", "1", *SMALL,
        "--result-dir", tmp_path / "sweep",
    )  # fmt: skip
    assert code == 0, err
    assert "p99 ITL" in out
    assert "<- sweet spot" in out
    assert "ceiling: decodes alone reach" in out
    assert "[3/3] budget 64, repeat 1: running" in err


def test_an_unknown_experiment_and_budget_are_refused(capsys):
    assert "there is no experiment" in evenflow(capsys, "sweep", "--experiment", "x")[2]
    code, _, err = evenflow(capsys, "sweep", "--budgets", "off,many")
    assert (code, "--budgets holds 'many'" in err) == (2, True)
    assert "has no effect here" in evenflow(capsys, "sweep", "--serve-cmd", "x")[2]


def test_compare_runs_both_in_turns_and_compares_recordings(server, tmp_path, capsys):
    with serve(Plan(decode_ms=12)) as slow:
        code, out, err = evenflow(
            capsys, "compare", slow.url, server.url, *SMALL, "--pairs", 3, "--noise-pairs", 1,
            "--result-dir", tmp_path, "--json",
        )  # fmt: skip
    assert code == 0, err
    value = orjson.loads(out)
    assert (value["pairs"], value["noise_pairs"]) == (3, 1)
    assert value["figures"]["p50 ITL"]["ratio"] < 0.7
    files = [tmp_path / f"pair-0-{who}.jsonl" for who in "ab"]
    code, out, err = evenflow(capsys, "compare", *files)
    assert code == 0, err
    assert "machine's mood" in out


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nowhere", "http://127.0.0.1:9"], "cannot tell what 'nowhere' is"),
        (["http://127.0.0.1:9", "http://127.0.0.1:9", "--pairs", "0"], "--pairs is 0"),
        (["local:x", "local"], "cannot read 'x' in local:"),
    ],
)
def test_what_cannot_be_compared_is_refused(words, fact, tmp_path, capsys):
    code, _, err = evenflow(capsys, "compare", *words, "--result-dir", tmp_path)
    assert code == 2
    assert fact in err


def test_a_sweep_that_cannot_show_anything_is_refused(tmp_path, capsys):
    for words, fact in (
        (["--repeats", "0"], "--repeats is 0"),
        (["--experiment", "equality", "--budgets", "64"], "nothing to compare one setting with"),
    ):
        code, _, err = evenflow(capsys, "sweep", *words, "--result-dir", tmp_path / "s")
        assert code == 2
        assert fact in err


@pytest.mark.parametrize("experiment", ["equality", "graphs"])
def test_every_experiment_prints_json(experiment, tmp_path, capsys):
    import sys

    code, out, err = evenflow(
        capsys, "sweep", "--experiment", experiment, "--server", "custom", "--serve-cmd",
        f"{sys.executable} {SERVE} {tmp_path / 'pids'} {{port}} {{budget}}",
        "--knob-off", "9", "--ready-path", "/health", "--budgets", "8,64", "--repeats", "1",
        "--num-prompts", "2", "--max-concurrency", "1", "--input-len", "9", "--output-len", "2",
        "--result-dir", tmp_path / "sweep", "--json",
    )  # fmt: skip
    assert code == 0, err
    found = orjson.loads(out)
    assert found["experiment"] == experiment
    assert [row["setting"] for row in found["rows"]] == ["budget 8", "budget 64"]


def test_graphs_of_a_run_that_was_done_before_are_read_from_its_steps(tmp_path, capsys):
    import sys

    from evenflow.trace import TraceWriter
    from helpers.blamed import attack, traced
    from helpers.synthetic import Plan, simulate, streams

    words = [
        "sweep", "--experiment", "graphs", "--server", "custom", "--serve-cmd",
        f"{sys.executable} {SERVE} {tmp_path / 'pids'} {{port}} {{budget}}",
        "--ready-path", "/health", "--budgets", "8", "--num-prompts", "2", "--max-concurrency", "1",
        "--input-len", "9", "--output-len", "2", "--result-dir", tmp_path / "sweep",
    ]  # fmt: skip
    code, out, err = evenflow(capsys, *words)
    assert code == 0, err
    assert "the log says nothing of graphs" in out
    trace = traced(simulate(streams(2, 9) + attack(1), Plan()), 0.0)
    with TraceWriter(tmp_path / "sweep" / "8" / "8-0.steps.jsonl") as writer:
        for step in trace.steps:
            writer.step(step)
    assert "the log says nothing" not in evenflow(capsys, *words)[1]
