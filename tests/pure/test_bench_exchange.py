"""Files of other clients in, vLLM's JSON out: the same streams on both sides."""

from __future__ import annotations

import orjson
import pytest

from evenflow.bench.export import to_vllm
from evenflow.bench.imports import load_records
from evenflow.bench.measure import MeasureOptions, measure
from evenflow.bench.records import Mark
from evenflow.errors import RecordError
from helpers.recorded import make_record, make_records, steady
from helpers.synthetic import Arrival, Plan, simulate, streams

# the keys of `vllm bench serve --save-result`, as its users' scripts know them
KEYS = """date backend endpoint_type label model_id tokenizer_id num_prompts request_rate burstiness
max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput
request_goodput output_throughput total_token_throughput max_concurrent_requests""".split()  # noqa: SIM905
LISTS = """input_lens output_lens ttfts itls latencies start_times queue_times generated_texts
errors""".split()  # noqa: SIM905


def a_run():
    long = Arrival(0.4, "long", 2000, 4, "long")
    return simulate([*streams(4, 60), long], Plan(decode_ms=10, token_ms=0.1)).records


def save(tmp_path, value, name="result.json"):
    path = tmp_path / name
    path.write_bytes(value if isinstance(value, bytes) else orjson.dumps(value))
    return path


def test_the_export_has_vllms_keys_and_no_others_of_its_own_making():
    result = to_vllm(a_run(), MeasureOptions(percentiles=(50.0, 99.0)), detailed=True)
    summary = [
        f"{kind}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el")
        for kind in ("mean", "median", "std", "p50", "p99")
    ]
    assert set(result) == {*KEYS, *LISTS, *summary}
    assert orjson.loads(orjson.dumps(result)) == result


def test_the_exported_figures_are_ours():
    records = a_run()
    result = to_vllm(records, MeasureOptions())
    metrics = measure(records)
    assert result["p99_itl_ms"] == pytest.approx(metrics.latency("itl_ms", 99.0))
    assert result["p95_ttft_ms"] == pytest.approx(metrics.latency("ttft_ms", 95.0))
    assert result["p50_tpot_ms"] == pytest.approx(metrics.latency("tpot_ms", 50.0))
    assert result["output_throughput"] == pytest.approx(metrics.output_throughput, rel=1e-6)
    assert result["max_concurrent_requests"] == 5


def test_what_was_exported_comes_back_as_it_was(tmp_path):
    records = a_run()
    path = save(tmp_path, to_vllm(records, MeasureOptions(), detailed=True))
    again = load_records(path)
    assert again.header["aligned"]
    for before, after in zip(records.requests, again.requests, strict=True):
        assert [m.time_s for m in after.messages] == pytest.approx(
            [m.time_s for m in before.messages]
        )
        assert after.prompt_tokens == before.prompt_tokens


def test_failed_requests_keep_their_error_and_have_no_output(tmp_path):
    records = make_records(make_record(steady(5)), make_record([], id="b", error="HTTP 500: x"))
    result = to_vllm(records, MeasureOptions(), detailed=True)
    assert (result["completed"], result["failed"]) == (1, 1)
    again = load_records(save(tmp_path, result))
    assert again.requests[1].error == "HTTP 500: x"
    assert not again.requests[1].messages


def test_fewer_messages_than_tokens_are_several_tokens_a_message(tmp_path):
    result = {
        "model_id": "m",
        "input_lens": [10],
        "output_lens": [30],
        "ttfts": [0.5],
        "itls": [[0.1, 0.1]],
        "start_times": [100.0],
        "errors": [""],
    }
    (record,) = load_records(save(tmp_path, result)).requests
    assert [m.tokens for m in record.messages] == [10, 10, 10]
    assert [m.time_s for m in record.messages] == pytest.approx([0.5, 0.6, 0.7])


def test_a_file_without_start_times_says_that_streams_cannot_be_aligned(tmp_path):
    line = {"input_lens": [10, 9], "output_lens": [3, 2], "ttfts": [0.5, 0.25]}
    line |= {"itls": [[0.1, 0.1], [0.3]], "backend": "sglang", "errors": ["", ""]}
    data = orjson.dumps({"backend": "sglang"} | line) + b"\n" + orjson.dumps(line) + b"\n"
    records = load_records(save(tmp_path, data, "bench.jsonl"))
    assert records.header["imported_from"] == "sglang bench_serving"
    assert records.header["aligned"] is False
    assert "no start times" in records.problems[0]
    assert measure(records).latencies["itl_ms"].count == 3


def test_a_result_without_details_says_how_to_get_them(tmp_path):
    with pytest.raises(RecordError) as caught:
        load_records(save(tmp_path, {"model_id": "m", "mean_ttft_ms": 3.0}))
    assert "--save-detailed" in caught.value.hint


def aiperf(number, *, phase="profiling", gaps=(5.0, 25.0), error=None):
    metrics = {
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "inter_chunk_latency": {"value": list(gaps), "unit": "ms"},
        "output_sequence_length": {"value": 1 + len(gaps), "unit": "tokens"},
        "input_sequence_length": {"value": 550, "unit": "tokens"},
    }
    if error:
        metrics = {"error_isl": {"value": 550, "unit": "tokens"}}
    about = {
        "session_num": number,
        "x_request_id": f"id-{number}",
        "request_start_ns": 1_759_813_207_532_900_363 + number * 10**9,
        "request_end_ns": 1_759_813_207_838_764_604 + number * 10**9,
        "benchmark_phase": phase,
    }
    return orjson.dumps({"metadata": about, "metrics": metrics, "error": error}) + b"\n"


def test_aiperfs_records(tmp_path):
    error = {"code": 499, "type": "Cancelled", "message": "after 0 s"}
    data = aiperf(0, phase="warmup") + aiperf(1) + aiperf(2, error=error) + b'{"metadata": {'
    records = load_records(save(tmp_path, data, "profile_export.jsonl"))
    good, bad = records.requests
    assert [m.time_s for m in good.messages] == pytest.approx([0.05, 0.055, 0.08])
    assert (good.prompt_tokens, good.tokens_from) == (550, "message")
    assert (bad.error, bad.status, bad.prompt_tokens) == ("Cancelled: after 0 s", 499, 550)
    assert bad.send_s == 1.0
    assert "1 warm-up requests left out" in records.problems[0]
    assert "cut off" in records.problems[1]


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"", "is empty"),
        (b'{"a": 1}', "none of the known formats"),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b"hello\n", "line 1 is not JSON"),
    ],
)
def test_what_is_no_records_is_refused(tmp_path, data, fact):
    with pytest.raises(RecordError, match=fact):
        load_records(save(tmp_path, data))


def test_our_own_records_are_recognised(tmp_path):
    save(tmp_path, b'{"evenflow_bench":1}\n', "own.jsonl")
    assert load_records(tmp_path / "own.jsonl").header["evenflow_bench"] == 1


def test_a_chat_of_ours_comes_back_with_its_first_token(tmp_path):
    records = a_run()
    records.header["endpoint"] = "/v1/chat/completions"
    value = to_vllm(records, MeasureOptions(), detailed=True)
    assert load_records(save(tmp_path, value)).problems == []
    assert len(load_records(save(tmp_path, {**value, "label": None})).problems) == 1


def test_warm_up_and_cool_down_are_left_out_of_the_export_too():
    late = make_record(steady(9, first_s=2.1), id="late", send_s=2.0)
    records = make_records(make_record(steady(9, 0.5)), late)
    records.marks = [Mark(1.0, "warmup_end")]
    result = to_vllm(records, MeasureOptions(), detailed=True)
    assert (result["completed"], len(result["itls"])) == (1, 1)
    assert result["p99_itl_ms"] == pytest.approx(10)
