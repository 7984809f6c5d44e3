"""The figures of runs whose every stall is known, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.bench.gaps import Window, gap_table, stalls_by_factor, stalls_by_limit
from evenflow.bench.measure import MeasureOptions, as_json, measure
from evenflow.bench.records import CUT, Mark, Message
from helpers.recorded import make_record, make_records, steady
from helpers.synthetic import Arrival, Plan, simulate, streams

EXACT = MeasureOptions(percentiles=(50.0, 95.0, 99.0, 100.0))


def test_every_gap_of_a_simulated_run_is_found_exactly():
    long = Arrival(0.5, "long", 3000, 4, "attacker")
    run = simulate([*streams(5, 100), long], Plan(decode_ms=10, token_ms=0.1, budget=None))
    metrics = measure(run.records, EXACT)
    truth = np.concatenate([np.diff(times) * 1e3 for times in run.left.values()])
    itl = metrics.latencies["itl_ms"]
    assert itl is not None
    assert itl.count == len(truth)
    for percent, found in itl.percentiles.items():
        assert found.value == pytest.approx(np.percentile(truth, percent), abs=1e-6)
    assert itl.maximum == pytest.approx(10 + 0.1 * 3000)


def test_the_streams_gaps_during_the_long_prefill_are_told_from_the_others():
    long = Arrival(0.5, "long", 3000, 4, "attacker")
    run = simulate([*streams(5, 100), long], Plan(decode_ms=10, token_ms=0.1, budget=None))
    attack = measure(run.records, EXACT).attack
    assert attack is not None
    assert attack.during is not None
    assert attack.outside is not None
    assert attack.during.maximum == pytest.approx(310)
    assert attack.outside.value(99.0) < 14
    assert attack.ttft_ms is not None
    assert 310 <= attack.ttft_ms.mean <= 320


def test_stalls_are_counted_and_their_time_summed():
    stalls = {20: 0.25, 60: 0.05}
    gaps = gap_table([make_record(steady(100, stalls=stalls)), make_record(steady(50), id="b")])
    by_factor = stalls_by_factor(gaps, 4.0)
    assert by_factor.count == 2
    assert by_factor.rate == pytest.approx(2 / (99 + 49))
    assert by_factor.stalled_ms == pytest.approx(300)
    assert by_factor.worst_ms == pytest.approx(260)
    total_ms = (99 + 49) * 10 + 300
    assert by_factor.time_share == pytest.approx(300 / total_ms)
    assert stalls_by_limit(gaps, 100.0).count == 1


def test_a_short_stream_is_judged_by_its_class():
    short = make_record([0.0, 0.2], id="short")
    long = make_record(steady(100), id="long")
    assert stalls_by_factor(gap_table([short, long])).count == 1


def test_several_tokens_in_a_message_are_counted_and_weighted():
    record = make_record([0.0, 0.1, 0.2], tokens=5)
    metrics = measure(make_records(record), EXACT)
    assert metrics.messages.multi_token == 3
    assert metrics.messages.most_tokens == 5
    per_message, per_token = (metrics.latencies[n] for n in ("itl_ms", "itl_per_token_ms"))
    assert per_message is not None
    assert per_token is not None
    assert (per_message.count, per_message.value(50.0)) == (2, pytest.approx(100))
    assert (per_token.count, per_token.value(50.0)) == (10, pytest.approx(20))
    assert metrics.latency("tpot_ms", 50.0) == pytest.approx(20)
    assert metrics.latency("worst_itl_ms", 50.0) == pytest.approx(100)


def test_token_weighting_is_not_the_mean_of_messages():
    record = make_record([0.0, 0.1, 0.2])
    record.messages = [Message(0.0, 1, 4), Message(0.1, 9, 36), Message(0.2, 1, 4)]
    per_token = measure(make_records(record), EXACT).latencies["itl_per_token_ms"]
    assert per_token is not None
    assert per_token.mean == pytest.approx(200 / 10)


def test_failed_requests_are_counted_and_in_no_latency():
    good = make_record(steady(20), id="good")
    bad = make_record(steady(20, 5.0), id="bad", error="HTTP 500: oh")
    metrics = measure(make_records(good, bad), EXACT)
    assert (metrics.counts.completed, metrics.counts.failed) == (1, 1)
    assert metrics.counts.errors == {"HTTP 500: oh": 1}
    itl = metrics.latencies["itl_ms"]
    assert itl is not None
    assert itl.maximum == pytest.approx(10)
    assert metrics.counts.output_tokens == 20


def test_warmup_and_cooldown_leave_their_gaps_and_requests_out():
    records = make_records(
        make_record(steady(50, 0.125, first_s=0.125), id="early", send_s=0.0),
        make_record(steady(50, 0.01, first_s=2.1), id="mid", send_s=2.0),
        make_record(steady(50, 0.2, first_s=4.1), id="late", send_s=4.0),
    )
    records.marks = [Mark(1.0, "warmup_end"), Mark(3.0, "cooldown_start")]
    metrics = measure(records, EXACT)
    assert metrics.window == Window(1.0, 3.0)
    ttft = metrics.latencies["ttft_ms"]
    assert ttft is not None
    assert ttft.count == 1
    early = 16  # an eighth of a second each, from 1 to 3
    itl = metrics.latencies["itl_ms"]
    assert itl is not None
    assert itl.count == 49 + early
    assert metrics.output_throughput == pytest.approx((50 + early + 1) / 2.0)


def test_a_stream_that_the_client_cut_off_has_no_end_to_end_latency():
    metrics = measure(make_records(make_record(steady(30), finish_reason=CUT)), EXACT)
    assert metrics.latencies["e2el_ms"] is None
    assert metrics.latencies["itl_ms"] is not None


def test_goodput_counts_requests_that_meet_every_limit():
    records = make_records(
        make_record(steady(20, first_s=0.1), id="good"),
        make_record(steady(20, first_s=0.9), id="late"),
        make_record(steady(20, first_s=0.1, stalls={5: 0.5}), id="stalled"),
        make_record([], id="failed", error="HTTP 500"),
    )
    limits = {"ttft": 200.0, "itl": 100.0}
    found = measure(records, MeasureOptions(goodput=limits)).goodput
    assert found is not None
    assert (found.good, found.share) == (1, 0.25)
    only_mean = measure(records, MeasureOptions(goodput={"ttft": 200.0, "tpot": 40.0})).goodput
    assert only_mean is not None
    assert only_mean.good == 2  # a mean hides the stall


def test_classes_are_split():
    records = make_records(
        make_record(steady(20, 0.01), id="a", class_name="short"),
        make_record(steady(20, 0.03), id="b", class_name="long"),
    )
    metrics = measure(records, EXACT)
    assert {n: m.latency("itl_ms", 50.0) for n, m in metrics.classes.items()} == {
        "short": pytest.approx(10),
        "long": pytest.approx(30),
    }


def test_an_empty_run_has_no_figures_and_does_not_fail():
    metrics = measure(make_records())
    assert all(found is None for found in metrics.latencies.values())
    assert as_json(metrics)["counts"].requests == 0
