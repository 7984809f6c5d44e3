"""The HTTP driver and the conductor against a server whose faults are planted."""

from __future__ import annotations

import pytest

from evenflow.bench.conduct import ConductOptions
from evenflow.bench.drivers.connection import Address
from evenflow.bench.drivers.http import HttpOptions, parse_headers
from evenflow.bench.records import CUT, read_records
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.plan import load_workload
from evenflow.errors import ConfigError
from helpers.bench import FAST, closed, run
from helpers.synthetic import Plan
from helpers.synthetic_server import Behaviour, serve


@pytest.mark.parametrize("chat", [False, True])
def test_requests_arrive_whole_and_their_tokens_are_counted(tmp_path, chat):
    workload, conduct = closed()
    endpoint = "/v1/chat/completions" if chat else "/v1/completions"
    with serve(FAST) as server:
        outcome = run(
            server.url,
            tmp_path / "r.jsonl",
            workload,
            http=HttpOptions("", endpoint=endpoint),
            conduct=conduct,
        )
    assert outcome.metrics.counts.completed == 12
    assert outcome.metrics.counts.output_tokens == 9 * 10 + 3 * 5
    assert {r.tokens_from for r in outcome.records.requests} == {"usage"}
    assert {r.prompt_tokens for r in outcome.records.requests} == {20, 200}
    assert all(r.empty_messages == chat for r in outcome.records.requests)
    assert all(len(r.messages) == r.output_tokens for r in outcome.records.requests)
    again = read_records(tmp_path / "r.jsonl")
    assert again.requests == outcome.records.requests


def test_several_tokens_a_message_without_a_count_of_each_are_spread(tmp_path):
    workload, conduct = closed(4)
    behaviour = Behaviour(counts_each=False)
    with serve(Plan(decode_ms=2, tokens_per_message=5), behaviour) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload, conduct=conduct)
    assert outcome.metrics.messages.multi_token > 0
    assert outcome.metrics.counts.output_tokens == 3 * 10 + 5
    assert {r.tokens_from for r in outcome.records.requests} == {"spread"}


def test_a_server_that_counts_nothing_is_taken_at_one_per_message(tmp_path):
    workload, conduct = closed(4)
    with serve(FAST, Behaviour(counts_each=False, usage=False)) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload, conduct=conduct)
    assert {r.tokens_from for r in outcome.records.requests} == {"assumed"}
    assert any("does not count tokens" in p for p in outcome.records.problems)


def test_gaps_and_stalls_are_those_the_server_planted(tmp_path):
    workload = make_workload(
        WorkloadOptions(streams=4, input_len="20", output_len="2000", inject=["3000/3@0.3s"])
    )
    with serve(Plan(decode_ms=10, token_ms=0.1, budget=None)) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload)
        planted = server.planted()
    zero = outcome.records.header["started_monotonic_s"]
    long = next(p for p in planted if max(p.tokens.values(), default=0) == 3000)
    attack = outcome.metrics.attack
    assert attack is not None
    assert attack.during is not None
    worst = attack.during.maximum
    # a step cannot be shorter than it is, and the gap lies around it
    assert (long.end_s - long.start_s) * 1e3 - 2 <= worst
    gaps = [
        (a.time_s, b.time_s)
        for r in outcome.records.requests
        if r.class_name == "victim"
        for a, b in zip(r.messages, r.messages[1:], strict=False)
        if b.time_s - a.time_s > 0.25
    ]
    assert len(gaps) == 4
    assert all(a <= long.end_s - zero <= b + 0.02 for a, b in gaps)


def test_steady_streams_are_cut_when_the_long_prompts_are_through(tmp_path):
    workload = make_workload(
        WorkloadOptions(streams=3, input_len="20", output_len="30", inject=["50/2@0.2s"])
    )
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload)
    ends = {r.finish_reason for r in outcome.records.requests}
    assert ends == {CUT, "length"}
    assert outcome.metrics.counts.failed == 0
    assert [m.kind for m in outcome.records.marks] == ["streams_ready", "inject", "end"]
    assert any("~" in r.id for r in outcome.records.requests)  # begun anew after 30 tokens


def test_a_stream_begun_anew_and_cut_before_its_first_token_is_no_failure(tmp_path):
    """With two tokens each, streams spend most of the run before their first."""
    options = WorkloadOptions(streams=8, input_len="20", output_len="2", inject=["50/2@0.2s"])
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", make_workload(options))
    assert outcome.metrics.counts.failed == 0


def test_an_open_loop_keeps_its_schedule_and_a_cap_shows_as_waiting(tmp_path):
    options = WorkloadOptions(num_prompts=10, request_rate=100.0, input_len="9", output_len="9")
    workload = make_workload(options)
    with serve(FAST) as server:
        free = run(server.url, tmp_path / "a.jsonl", workload)
        capped = run(
            server.url, tmp_path / "b.jsonl", workload, conduct=ConductOptions(max_concurrency=1)
        )
    planned = {r.id: r.at_s for r in workload.requests}
    assert all(r.scheduled_s == planned[r.id] for r in free.records.requests)
    assert all(r.send_s >= r.scheduled_s for r in free.records.requests)
    waits = [r.send_s - r.scheduled_s for r in capped.records.requests]
    assert max(waits) > 0.1
    assert "rate" in {f.name for f in capped.findings if not f.ok}


def test_a_closed_loop_goes_on_for_its_duration_and_marks_its_edges(tmp_path):
    workload, _ = closed(2, 2)
    limited = ConductOptions(max_concurrency=2, duration_s=0.8, warmup_s=0.2, cooldown_s=0.2)
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload, conduct=limited)
    assert outcome.metrics.window.seconds == pytest.approx(0.4, abs=0.15)
    assert len(outcome.records.requests) > 4
    assert len({r.id for r in outcome.records.requests}) == len(outcome.records.requests)
    assert max(r.send_s for r in outcome.records.requests) <= 0.8


def test_a_conversation_carries_its_history(tmp_path):
    workload = make_workload(
        WorkloadOptions(num_prompts=2, turns=3, turn_len=10, input_len="10", output_len="4")
    )
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "r.jsonl", workload)
    talk = sorted((r for r in outcome.records.requests if r.session == "s0"), key=lambda r: r.turn)
    assert [r.turn for r in talk] == [0, 1, 2]
    sizes = [r.prompt_tokens for r in talk]
    assert sizes[0] < sizes[1] < sizes[2]
    assert talk[0].end_s <= talk[1].send_s


def test_the_saved_workload_is_replayed_exactly(tmp_path):
    workload, conduct = closed()
    with serve(FAST) as server:
        first = run(server.url, tmp_path / "a.jsonl", workload, conduct=conduct)
        workload.save(tmp_path / "w.jsonl")
        saved = load_workload(tmp_path / "w.jsonl")
        second = run(server.url, tmp_path / "b.jsonl", saved, conduct=conduct)

    def sent(outcome):
        return sorted((r.id, r.prompt_tokens, r.asked_tokens) for r in outcome.records.requests)

    assert sent(first) == sent(second)
    assert saved.header["calibration"]["measured"]


def test_metrics_of_the_server_are_scraped_and_a_lack_of_them_is_no_fault(tmp_path):
    workload, conduct = closed(4)
    with serve(FAST) as server:
        outcome = run(server.url, tmp_path / "a.jsonl", workload, conduct=conduct)
    names = outcome.records.scrapes[0].values
    assert 'vllm:num_requests_running{model_name="synthetic"}' in names
    with serve(FAST, Behaviour(metrics=False)) as server:
        outcome = run(server.url, tmp_path / "b.jsonl", workload, conduct=conduct)
    assert not outcome.records.scrapes
    assert outcome.metrics.counts.failed == 0


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://a:80/", ("http", "a", 80, "")),
        ("https://a.b/v1/", ("https", "a.b", 443, "")),
        ("a:8000/api/v1", ("http", "a", 8000, "/api")),
        ("http://[::1]:9", ("http", "::1", 9, "")),
    ],
)
def test_addresses(url, parts):
    assert Address.parse(url) == Address(*parts)


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:port"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError, match="no URL"):
        Address.parse(url)


def test_headers_are_read_in_both_spellings():
    assert parse_headers(["A: b=c", "D=e"]) == {"A": "b=c", "D": "e"}
    with pytest.raises(ConfigError):
        parse_headers(["nothing"])
