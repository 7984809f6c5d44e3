"""A run that must not be believed says so, with the figure."""

from __future__ import annotations

import pytest

from evenflow.bench.records import Mark, Probe
from evenflow.bench.validity import is_valid, judge
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
