"""The counts: true to the chunk, fine enough for a target, and named as people expect."""

from __future__ import annotations

import json
import re
import socket
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from evenflow.server.histogram import GAP_BOUNDS_S, Histogram
from evenflow.server.metrics import Metrics
from evenflow.trace import StepRecord
from evenflow.types import StreamEvent
from helpers.engines import SpellingRunner
from helpers.servers import LetterModel, get, post, read_all, read_until, serving, until

CLOSE = {"connection": "close"}


def scrape(port: int) -> dict[str, float]:
    """Every sample by its name and its own labels."""
    text = get(port, "/metrics").partition(b"\r\n\r\n")[2].decode()
    if text.startswith(("1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f")):
        text = re.sub(r"(?m)^[0-9a-f]+\r\n", "", text)
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in {"engine", "model_name"}}
            found[sample.name + "".join(f"{{{k}={v}}}" for k, v in own.items())] = sample.value
    return found


def test_a_prompt_in_four_chunks_shows_four_increments():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    model = LetterModel(runner, max_num_batched_tokens=8, min_prefill_tokens=2)
    with serving(model) as served:
        connection = post(
            served.port, "/v1/completions", {"prompt": [7] * 29, "max_tokens": 3}, headers=CLOSE
        )
        seen = []
        for step in range(1, 5):
            runner.gate.release(1)
            until(lambda step=step: served.server.state.feed.num_seen == step)
            seen.append(scrape(served.port)["evenflow:prompt_tokens_total"])
        runner.gate.release(100)
        read_all(connection)
        until(lambda: model.engine.stats().kv.held == 0)
        counts = scrape(served.port)
    assert seen == [8, 16, 24, 29]
    assert counts["evenflow:prefill_chunk_tokens_count"] == 4
    assert counts["evenflow:steps_total{kind=prefill}"] == 4
    assert counts["evenflow:steps_total{kind=decode}"] == 2
    assert counts["evenflow:generation_tokens_total"] == 3
    assert counts["evenflow:step_tokens_total{kind=decode}"] == 2
    assert counts["evenflow:inter_token_latency_seconds_count"] == 2
    assert counts["evenflow:time_to_first_token_seconds_count"] == 1
    assert counts["evenflow:request_success_total{finished_reason=length}"] == 1
    assert counts["evenflow:step_budget_tokens"] == 8
    assert counts["evenflow:iteration_tokens_total_sum"] == 29 + 2


def test_the_prefix_cache_is_counted_when_a_prompt_is_admitted():
    """Not at its end: a long answer would hide for minutes what the cache does."""
    runner = SpellingRunner()
    model = LetterModel(runner)
    prompt = [7] * 30
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens_cached")

    def counts() -> list[float]:
        found = scrape(served.port)
        return [found[f"evenflow:{name}_total"] for name in names]

    with serving(model) as served:
        seen = []
        for max_tokens in (1, 50):
            runner.gate = threading.Semaphore(0)
            body = {"prompt": prompt, "max_tokens": max_tokens}
            start = served.server.state.feed.num_seen
            connection = post(served.port, "/v1/completions", body, headers=CLOSE)
            runner.gate.release(1)
            until(lambda start=start: served.server.state.feed.num_seen == start + 1)
            seen.append(counts())
            runner.gate.release(100)
            read_all(connection)
            model.wait_idle()
            seen.append(counts())
        assert served.server.state.metrics._not_admitted == {}
    assert seen == [[30, 0, 0], [30, 0, 0], [60, 30, 30], [60, 30, 30]]


def test_gauges_are_of_this_moment():
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    model = LetterModel(runner, max_num_seqs=2)
    with serving(model) as served:
        body = {"prompt": "abcdefg", "max_tokens": 30}
        held = [post(served.port, "/v1/completions", body, headers=CLOSE) for _ in range(5)]
        until(lambda: served.on_loop(lambda: served.bridge.num_open) == 5)
        runner.gate.release(4)
        until(lambda: len(runner.plans) == 4 and model.engine.stats().num_waiting == 3)
        counts = scrape(served.port)
        runner.gate.release(10_000)
        for connection in held:
            read_all(connection)
        model.wait_idle()
        after = scrape(served.port)
    assert counts["evenflow:num_requests_running"] == 2
    assert counts["evenflow:num_requests_waiting"] == 3
    assert counts["evenflow:num_requests_waiting_by_reason{reason=seqs}"] == 3
    assert counts["evenflow:kv_cache_usage_perc"] == pytest.approx(
        counts["evenflow:kv_blocks{state=used}"] / 4096
    )
    assert after["evenflow:num_requests_running"] == after["evenflow:num_requests_waiting"] == 0
    assert after["evenflow:kv_cache_usage_perc"] == 0


def test_drafts_are_counted_under_vllms_names():
    def loop(request, position):
        return 1 + position % 3

    class Rows(SpellingRunner):
        def submit(self, plan):
            handle = super().submit(plan)
            tokens = [
                tuple(
                    loop(s.request, end)
                    for end in range(s.start + s.length - s.num_logits + 1, s.start + s.length + 1)
                )
                for s in plan.spans
            ]
            handle.outcome = handle.outcome._replace(tokens=tokens)
            return handle

    model = LetterModel(Rows(), speculative="ngram", num_speculative_tokens=2, prompt_lookup_min=1)
    body = {"prompt": [1, 2, 3, 1], "max_tokens": 20}
    with serving(model, metrics_prefix="vllm") as served:
        read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        model.wait_idle()
        counts = scrape(served.port)
    drafted = counts["vllm:spec_decode_num_draft_tokens_total"]
    accepted = counts["vllm:spec_decode_num_accepted_tokens_total"]
    assert counts["vllm:spec_decode_num_drafts_total"] * 2 >= drafted >= accepted > 5
    each = [
        counts[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{position={i}}}"]
        for i in range(2)
    ]
    assert sum(each) == accepted
    assert counts["vllm:generation_tokens_total"] == 20
    with serving(metrics_prefix="vllm") as served:
        assert not any("spec_decode" in name for name in scrape(served.port))


def test_a_request_that_gave_way_is_counted_once_and_what_it_computed_again_is_told():
    """Two that fit alone but not together: the tax on whoever gives way is a figure."""
    options = {"num_kv_blocks": 12, "max_model_len": 40, "enable_prefix_caching": False}
    model = LetterModel(**options)
    with serving(model) as served:
        body = {"prompt": [[1] * 8, [2] * 8], "max_tokens": 28, "ignore_eos": True}
        read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        model.wait_idle()
        counts = scrape(served.port)
    assert counts["evenflow:num_preemptions_total"] >= 1
    again = counts["evenflow:recomputed_tokens_total"]
    assert again >= 8
    assert counts["evenflow:generation_tokens_total"] == 2 * 28
    # what was drawn before is prompt the second time: nothing else is computed twice
    chunks = counts["evenflow:prompt_tokens_total"]
    decodes = counts["evenflow:step_tokens_total{kind=decode}"]
    assert chunks + decodes == 2 * (8 + 28 - 1) + again
    for name in (
        "time_to_first_token_seconds",
        "request_queue_time_seconds",
        "request_prompt_tokens",
    ):
        assert counts[f"evenflow:{name}_count"] == 2
    assert counts["evenflow:inter_token_latency_seconds_count"] == 2 * 27


def test_tokens_of_one_step_have_no_gap_between_them():
    """Zeros in the histogram would make a p50 of 0 where drafts are taken."""
    now = [0.0]
    metrics = Metrics(lambda: now[0])
    for serial in range(3):
        now[0] += 0.05
        events = [StreamEvent(name, 1, "x", None, None) for name in "aabaa"]
        metrics.measure(events)
        metrics.step(record(serial, 0.05, 2, []))
    assert metrics.num_output_tokens == 15
    assert sum(metrics.itl.counts) == 2 * 2  # two streams, two gaps each
    assert metrics.itl.total == pytest.approx(4 * 0.05)
    assert list(metrics.last_gaps) == [pytest.approx(0.05)]


def test_another_prefix_keeps_dashboards_working():
    names = (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:iteration_tokens_total_count",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
    )
    with serving(metrics_prefix="vllm") as served:
        text = get(served.port, "/metrics").decode()
        counts = scrape(served.port)
    assert set(names) <= counts.keys()
    assert "evenflow:" not in text
    assert 'model_name="letters"' in text


@pytest.mark.parametrize("target_s", [0.020, 0.040])
def test_buckets_are_fine_enough_to_check_a_target(target_s):
    below = max(b for b in GAP_BOUNDS_S if b < target_s)
    above = min(b for b in GAP_BOUNDS_S if b > target_s)
    assert target_s in GAP_BOUNDS_S
    assert above - below <= 0.1 * target_s * 2


def test_a_weight_counts_like_that_many_values():
    one, many = Histogram("x", "", GAP_BOUNDS_S), Histogram("x", "", GAP_BOUNDS_S)
    one.observe(0.0123, 3)
    for _ in range(3):
        many.observe(0.0123)
    assert one.counts == many.counts
    assert sum(one.counts) == 3
    assert one.total == pytest.approx(many.total)


def record(serial, seconds, num_decodes, chunks) -> StepRecord:
    return StepRecord(
        serial=serial,
        start_s=0,
        seconds=seconds,
        predicted_s=None,
        num_decodes=num_decodes,
        chunks=chunks,
        num_tokens=num_decodes + len(chunks),
        budget=8,
        budget_reason="fixed",
        blocked="",
        kv_blocks_used=0,
        kv_blocks_cached=0,
        kv_blocks_free=1,
        num_running=1,
        num_waiting=0,
        preempted=[],
        recomputed_tokens=0,
        graph="",
    )


def test_a_stall_is_what_prompts_add_to_the_gaps_of_streams():
    """Two streams, 10 ms a step; a step with a prompt takes 50 ms, one without a decode 100 ms."""
    from evenflow.trace import ChunkRecord

    now = [0.0]
    metrics = Metrics(lambda: now[0])
    chunk = [ChunkRecord("c", 0, 1, 0)]

    def step(serial, seconds, num_decodes, chunks) -> None:
        now[0] += seconds
        if num_decodes:
            metrics.measure([StreamEvent(i, 1, "x", None, None) for i in "ab"])
        metrics.step(record(serial, seconds, num_decodes, chunks))

    step(0, 0.01, 2, [])
    step(1, 0.01, 2, [])
    assert metrics.stall_s == 0
    step(2, 0.05, 2, chunk)
    assert metrics.stall_s == pytest.approx(2 * 0.04)
    step(3, 0.10, 0, chunk)
    assert metrics.stall_s == pytest.approx(2 * 0.04)
    step(4, 0.01, 2, [])
    assert metrics.stall_s == pytest.approx(2 * 0.04 + 2 * 0.10)
    assert list(metrics.last_gaps) == [pytest.approx(0.11)]


def test_steps_are_sent_as_they_are_committed(served):
    connection = post(
        served.port, "/v1/completions", {"prompt": "abc", "max_tokens": 5}, headers=CLOSE
    )
    read_all(connection)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as watcher:
        watcher.sendall(b"GET /v1/steps?history=5 HTTP/1.1\r\nhost: x\r\n\r\n")
        data = b""
        while data.count(b"data: ") < 5:
            data += watcher.recv(65_536)
        body = {"prompt": "zzz", "max_tokens": 4}
        read_all(post(served.port, "/v1/completions", body, headers=CLOSE))
        while data.count(b"data: ") < 6:
            data += watcher.recv(65_536)
    steps = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]
    serials = [s["serial"] for s in steps]
    assert serials == list(range(serials[0], serials[0] + len(serials)))
    assert steps[0]["chunks"][0]["length"] == 4
    assert steps[0]["worst_gap_s"] is None
    assert [s["num_gaps"] for s in steps[1:5]] == [1] * 4
    assert all(s["worst_gap_s"] > 0 for s in steps[1:5])
    assert [s["num_output_tokens"] for s in steps[:5]] == [1] * 5


def test_a_watcher_learns_what_a_cancellation_freed():
    """No step follows it, so no record tells: the request waits for a step that does not come."""
    runner = SpellingRunner()
    runner.gate = threading.Semaphore(0)
    model = LetterModel(runner)
    with (
        serving(model) as served,
        socket.create_connection(("127.0.0.1", served.port), timeout=60) as watcher,
    ):
        watcher.sendall(b"GET /v1/steps HTTP/1.1\r\nhost: x\r\n\r\n")
        connection = post(served.port, "/v1/completions", {"prompt": "abc", "max_tokens": 90})
        until(lambda: served.on_loop(lambda: served.bridge.num_open) == 1)
        runner.gate.release(3)
        read_until(watcher, b'"num_running":1')
        connection.close()
        until(lambda: not model.engine._inbox.empty())  # the cancellation
        runner.gate.release(10_000)
        data = b""
        while not standings(data) or standings(data)[-1]["num_running"]:
            data += watcher.recv(65_536)
    last = standings(data)[-1]
    assert last["num_waiting"] == last["kv_blocks_used"] == 0


def standings(data: bytes) -> list[dict]:
    """The complete events of that kind."""
    found = re.findall(rb"event: standing\ndata: (.*)\n\n", data)
    return [json.loads(one) for one in found]


def test_a_slow_watcher_is_told_what_it_lost():
    from evenflow.server import steps as module

    feed = module.StepFeed(Metrics(lambda: 0.0))
    for i in range(module.NUM_KEPT + 10):
        feed.step(record(i, 0.01, 1, []))
    stream = module.StepStream(feed, 0)
    text = stream._collect()
    assert text.startswith(b": 10 steps were lost\n\n")
    assert text.count(b"data: ") == module.NUM_KEPT
    assert stream._collect() == b""
