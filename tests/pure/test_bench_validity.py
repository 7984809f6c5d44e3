"""A run that must not be believed says so, with the figure."""

from __future__ import annotations

import pytest

from evenflow.bench.records import Mark, Probe, Scrape
from evenflow.bench.validity import cached_prompts, is_valid, judge
from helpers.recorded import make_record, make_records, steady


def good_run(*extra):
    records = make_records(*(make_record(steady(50), id=f"r{i}") for i in range(5)), *extra)
    records.probes = [Probe(i / 50, "loop_lag", 0.0002) for i in range(100)]
    records.probes += [Probe(i / 20, "echo", 0.0003) for i in range(100)]
    records.probes += [Probe(0.0, "client_cpu", 1.0), Probe(2.0, "client_cpu", 1.2)]
    records.marks = [Mark(2.0, "end")]
    return records


def failed(findings):
    return {f.name for f in findings if not f.ok}


def test_a_good_run_is_valid():
    findings = judge(good_run())
    assert is_valid(findings)
    assert {f.name for f in findings} >= {"client loop lag", "client echo delay", "client cpu"}


@pytest.mark.parametrize("kind", ["loop_lag", "echo"])
def test_a_client_that_lags_behind_what_it_measures_convicts_itself(kind):
    records = good_run()
    records.probes += [Probe(i / 50, kind, 0.02) for i in range(10)]
    (bad,) = [f for f in judge(records) if not f.ok]
    assert "p99" in bad.fact
    assert "20.00 ms against a p99 ITL of 10.0 ms" in bad.fact


def test_the_same_lag_is_no_matter_where_gaps_are_a_hundred_times_as_long():
    records = make_records(make_record(steady(50, 1.0)))
    records.probes = [Probe(i / 50, "loop_lag", 0.02) for i in range(100)]
    assert is_valid(judge(records))


def test_a_client_that_takes_a_whole_core_is_the_bottleneck():
    records = good_run()
    records.probes[-1] = Probe(2.0, "client_cpu", 2.9)
    assert failed(judge(records)) == {"client cpu"}


def test_a_rate_that_was_not_reached():
    def sent(*, every_s):
        return make_records(
            *(
                make_record([i + 0.1], id=f"r{i}", send_s=i, scheduled_s=i * every_s)
                for i in range(11)
            )
        )

    assert is_valid(judge(sent(every_s=1.0), asked_rate=1.0))
    # the schedule's moments are random, and a duration cut it short: the client kept to it
    assert is_valid(judge(sent(every_s=1.0), asked_rate=1.2))
    records = sent(every_s=0.5)
    (bad,) = [f for f in judge(records, asked_rate=2.0) if not f.ok]
    assert bad.fact == "1.00 requests/s sent, 2.00 asked for"


def victims(lengths):
    return [
        make_record(steady(n), id=f"victim-{i}", class_name="victim") for i, n in enumerate(lengths)
    ]


def attacker(first_s):
    return make_record([first_s], id="attacker-0", class_name="attacker", send_s=0.3)


def test_streams_must_be_decoding_all_through_the_prefill():
    assert is_valid(judge(make_records(*victims([100, 100]), attacker(0.8))))
    (bad,) = [f for f in judge(make_records(*victims([100, 30]), attacker(0.8))) if not f.ok]
    assert bad.name == "victims"
    assert bad.fact.startswith("1 of 2 streams were decoding all through the prefill")


def test_a_stream_begun_anew_in_the_prefill_does_not_count():
    again = make_record(steady(60, first_s=0.5), id="victim-0~1", class_name="victim", send_s=0.45)
    records = make_records(*victims([30]), again, attacker(0.8))
    assert failed(judge(records)) == {"victims"}


def test_an_attack_without_a_first_token_shows_nothing():
    lost = make_record([], id="attacker-0", class_name="attacker", error="HTTP 400")
    assert "victims" in failed(judge(make_records(*victims([100]), lost)))


def test_failures_and_an_empty_run():
    some = make_records(make_record(steady(50)), make_record([], id="b", error="HTTP 500"))
    assert failed(judge(some)) == {"requests"}
    assert failed(judge(make_records())) == {"requests"}


def test_streams_that_wait_for_a_place_are_told_from_streams_that_ended():
    waiting = make_record(steady(60, first_s=1.0), id="victim-9", class_name="victim")
    (bad,) = [f for f in judge(make_records(*victims([100]), waiting, attacker(0.8))) if not f.ok]
    assert "the server runs fewer requests at once" in bad.fact
    (bad,) = [f for f in judge(make_records(*victims([100, 30]), attacker(0.8))) if not f.ok]
    assert "raise --output-len" in bad.fact


def test_who_stops_a_run_knows_that_its_last_requests_failed():
    cut = [make_record([], id=f"c{i}", error="interrupted") for i in range(4)]
    records = good_run(*cut)
    assert failed(judge(records)) == {"requests"}
    records.marks.append(Mark(2.0, "interrupted"))
    assert is_valid(judge(records))
    (found,) = [f for f in judge(records) if f.name == "requests"]
    assert found.fact == "0 of 9 failed, 4 were cut off by Ctrl-C"


def test_warm_up_and_cool_down_that_leave_nothing_are_said():
    records = make_records(make_record(steady(50)))
    records.marks = [Mark(2.0, "warmup_end"), Mark(3.0, "cooldown_start")]
    assert failed(judge(records)) == {"window"}
    records.add(make_record(steady(5, first_s=2.6), id="b", send_s=2.5))
    assert is_valid(judge(records))


def test_prompts_that_the_server_had_seen_before_are_said():
    def run(cached, **header):
        usage = {"prompt_tokens_details": {"cached_tokens": cached}}
        return make_records(make_record(steady(9), prompt_tokens=500, usage=usage), **header)

    assert cached_prompts(run(50)) == []
    assert cached_prompts(make_records(make_record(steady(9)))) == []
    assert "100% of the prompts' tokens" in cached_prompts(run(499))[0]
    counted = make_records(make_record(steady(9)))
    names = ('vllm:prefix_cache_queries_total{a="b"}', 'vllm:prefix_cache_hits_total{a="b"}')
    counted.scrapes = [Scrape(0.0, dict(zip(names, (10.0, 0.0), strict=True)))]
    counted.scrapes.append(Scrape(1.0, dict(zip(names, (510.0, 400.0), strict=True))))
    assert "80% of the prompts' tokens" in cached_prompts(counted)[0]
    again = make_record(steady(9), id="victim-0~1", class_name="victim")
    assert cached_prompts(make_records(again, *counted.requests)) == []
    assert cached_prompts(run(499, workload={"asked": {"prefix_len": 400}})) == []
