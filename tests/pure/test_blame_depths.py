"""Blame with a server's help: our step records, other engines' logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evenflow.bench.blame import blame
from evenflow.bench.blame.logged import LogEvidence
from evenflow.bench.blame.logs import parse_log
from evenflow.bench.blame.steps import StepEvidence, records_of
from evenflow.trace import Trace
from helpers.blamed import attack, llama_log, mixture, score, sglang_log, traced, vllm_log
from helpers.synthetic import Event, Plan, simulate, streams

PAUSES = tuple(Event(3 + 4.1 * i, 0.3) for i in range(8))


def _log(text):
    return LogEvidence(parse_log(text.splitlines(), 2025))


@pytest.mark.parametrize("budget", [None, 8192])
def test_blame_from_outside_agrees_with_the_record_of_every_step(budget):
    run = simulate(mixture(11), Plan(budget=budget, max_prefills=2, jitter_ms=2, pauses=PAUSES))
    outside = blame(run.records)
    inside = blame(run.records, evidence=StepEvidence(traced(run, offset_s=77.0)))
    assert inside.depth == "steps"
    views = [
        {
            (s.request_id, s.start_s): (e.cause, e.culprits[0].request_id if e.culprits else "")
            for e in found.episodes
            for s in e.stalls
        }
        for found in (outside, inside)
    ]
    assert views[0].keys() == views[1].keys()
    agreed = sum(views[1][stall] == view for stall, view in views[0].items())
    assert len(views[0]) > 150
    assert agreed >= 0.95 * len(views[0])
    assert score(run, inside).wrong == 0


def test_a_trace_alone_is_enough():
    run = simulate(streams(10, 600) + attack(1), Plan())
    trace = traced(run, offset_s=500.0)
    result = blame(records_of(trace), evidence=StepEvidence(trace))
    assert result.verdict == "chunked_prefill_off"
    assert result.options.engine == "evenflow"
    (offender,) = result.offenders
    assert offender.stream_ms == pytest.approx(10 * 480, rel=0.01)


def test_requests_are_matched_by_order_where_their_ids_differ():
    run = simulate(streams(10, 600) + attack(1), Plan())
    trace = traced(run, offset_s=500.0)
    for r in run.records.requests:
        r.id = f"client-{r.id}"
    result = blame(run.records, evidence=StepEvidence(trace))
    assert result.depth == "steps"
    assert result.offenders[0].request_id == "client-attack-0"


def test_steps_show_a_preemption_and_its_recomputation():
    run = simulate(streams(6, 400), Plan(preemptions=(Event(1.5, 0.5),)))
    result = blame(run.records, evidence=StepEvidence(traced(run)))
    (episode,) = result.episodes
    assert episode.cause == "preemption"
    assert episode.confidence > 0.9


def test_a_slow_step_is_not_laid_at_a_small_chunks_door():
    """Something else held up a step that happened to have a few prompt tokens in it."""
    arrivals = [*streams(10, 900), *attack(1), *attack(1, tokens=200)]
    arrivals[-1] = arrivals[-1]._replace(id="small", at_s=6.0)
    trace = traced(simulate(arrivals, Plan()))
    at = next(
        i for i, s in enumerate(trace.steps) if s.chunks and s.chunks[0].request_id == "small"
    )
    late_s, from_s = 0.3, trace.steps[at].start_s
    slow = replace(trace.steps[at], seconds=trace.steps[at].seconds + late_s)
    later = [replace(s, start_s=s.start_s + late_s) for s in trace.steps[at + 1 :]]
    requests = [
        replace(r, token_times_s=[t + late_s * (t > from_s) for t in r.token_times_s])
        for r in trace.requests
    ]
    moved = Trace({}, [*trace.steps[:at], slow, *later], requests, [])
    result = blame(records_of(moved), evidence=StepEvidence(moved))
    assert [e.cause for e in result.episodes] == ["prefill", "server_pause"]


def test_steps_clear_an_engine_that_emitted_in_time():
    stops = (Event(2.0, 0.6),)
    run = simulate(streams(6, 400), Plan(client_stops=stops), probes=False)
    run.records.probes.clear()
    result = blame(run.records, evidence=StepEvidence(traced(run)))
    assert (result.verdict, result.looks_like) == ("not_prefill", "client")


def test_a_trace_of_another_run_is_not_used():
    run = simulate(streams(6, 400) + attack(1), Plan())
    other = traced(simulate(streams(3, 50, prompt_tokens=999), Plan()))
    for i, r in enumerate(other.requests):
        object.__setattr__(r, "id", f"x{i}")
    result = blame(run.records, evidence=StepEvidence(other))
    assert result.depth == "records"
    assert result.verdict == "chunked_prefill_off"
    assert any("no request of the records is in the trace" in p for p in result.problems)


@pytest.mark.parametrize("zone_h", [0.0, 2.0, -7.0])
def test_vllm_lines_confirm_prefills_and_refute_pauses(zone_h):
    run = simulate(mixture(12), Plan(budget=8192, max_prefills=2, pauses=PAUSES))
    without = blame(run.records)
    result = blame(run.records, evidence=_log(vllm_log(run, zone_h)))
    assert result.depth == "log"
    assert result.options.engine == "vllm"
    assert result.verdict == "budget_too_large"
    found = score(run, result)
    assert found.found >= 0.95 * found.planted
    assert found.wrong <= 0.02 * found.blamed
    sure = [e.confidence for e in result.episodes if e.cause == "prefill"]
    before = [e.confidence for e in without.episodes if e.cause == "prefill"]
    assert min(sure) >= 0.95 > min(before)
    assert result.budget.chunk_tokens <= 8192
    assert any("UTC" in p for p in result.problems) == (zone_h != 0)


def test_a_long_step_without_prompt_tokens_is_no_prefill():
    """The client alone would blame the long prompt that waits meanwhile."""
    run = simulate(streams(8, 900) + attack(1), Plan())
    step = next(s for s in run.steps if "attack-0" in s.chunks)
    at = run.steps.index(step)
    run.steps[at] = step._replace(chunks={})
    assert blame(run.records).verdict == "chunked_prefill_off"
    result = blame(run.records, evidence=_log(vllm_log(run)))
    assert (result.verdict, result.looks_like) == ("not_prefill", "server_pause")
    assert "no prompt tokens" in result.episodes[0].evidence


def test_sglang_batches_confirm_prefills_and_clear_what_had_none():
    run = simulate(mixture(13), Plan(separate=True, pauses=(Event(9.0, 0.4),)))
    result = blame(run.records, evidence=_log(sglang_log(run)))
    assert result.depth == "log"
    assert result.verdict == "chunked_prefill_off"
    assert "--chunked-prefill-size" in result.summary
    found = score(run, result)
    assert found.found >= 0.95 * found.planted


def test_sglang_retractions_are_preemptions():
    run = simulate(
        streams(6, 400), Plan(preemptions=(Event(1.5, 0.5), Event(1.6, 0.5, "stream-0")))
    )
    line = "[2025-11-30 10:53:21 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1\n"
    result = blame(run.records, evidence=_log(sglang_log(run) + line))
    assert result.looks_like == "preemption"
    assert result.episodes[0].confidence >= 0.95


def test_llama_cpp_slot_timings_say_how_long_each_prefill_took():
    """A prompt that waited long for its slot is charged for its prefill only."""
    run = simulate(streams(8, 900) + attack(2), Plan())
    log = parse_log(llama_log(run).splitlines(), 2025)
    assert (log.engine, len(log.slots), log.unrecognised) == ("llama.cpp", 10, [])
    result = blame(run.records, evidence=LogEvidence(log))
    assert result.depth == "log"
    assert result.offenders[0].stream_ms == pytest.approx(8 * 480, rel=0.02)


def test_lines_that_look_like_a_known_one_are_counted_and_not_guessed_at():
    text = (
        "INFO 11-30 10:40:01 [core.py:1] Iteration(4): 1 context requests, some tokens\n"
        "[2025-11-30 10:40:01] Prefill batch: 12 requests\n"
        "INFO 11-30 10:40:02 [core.py:1] Iteration(5): 0 context requests, 0 context tokens, "
        "4 generation requests, 4 generation tokens, iteration elapsed time: 9.50 ms\n"
        "INFO something else\n\n"
    )
    log = parse_log(text.splitlines(), 2025)
    assert log.unrecognised == [1, 2]
    assert (log.num_lines, log.num_other, len(log.steps)) == (4, 1, 1)
    assert log.steps[0].ms == 9.5
    assert "2 lines look like one" in log.words()


def test_dummy_iterations_and_several_engines_are_noted():
    step = (
        "(EngineCore_DP{}) INFO 11-30 10:40:01 Iteration(4): 0 context requests, 0 context tokens, "
        "0 generation requests, 0 generation tokens, iteration elapsed time: 9.50 ms{}\n"
    )
    log = parse_log((step.format(0, "") + step.format(1, " (dummy)")).splitlines(), 2025)
    assert len(log.steps) == 1
    assert any("mixes 2 engines" in p for p in LogEvidence(log).problems)


def test_a_log_from_another_day_is_not_used():
    run = simulate(streams(8, 900) + attack(1), Plan())
    run.records.header["started_unix_s"] += 5 * 86_400
    result = blame(run.records, evidence=_log(sglang_log(simulate(streams(1, 5), Plan()))))
    assert result.depth == "records"
    assert any("none of the log's lines" in p for p in result.problems)


def test_a_log_without_the_start_of_the_run_is_not_used():
    run = simulate(streams(8, 900) + attack(1), Plan())
    log = vllm_log(run)
    del run.records.header["started_unix_s"]
    result = blame(run.records, evidence=_log(log))
    assert result.depth == "records"
    assert any("do not say when they began" in p for p in result.problems)
