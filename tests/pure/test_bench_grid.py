"""Grids: what is run again after an interruption, and which budget wins."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from evenflow.bench.measure import MeasureOptions
from evenflow.bench.run import RunOptions
from evenflow.bench.session import Session
from evenflow.bench.sweep import experiments as ex
from evenflow.bench.sweep.equal import Answers, differences, prompt_lengths
from evenflow.bench.sweep.graphs import from_log, from_steps
from evenflow.bench.sweep.grid import CEILING, MAIN, Grid
from evenflow.bench.sweep.launch import LocalLaunch
from evenflow.bench.sweep.recipes import Setting
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.prompts import Calibration
from evenflow.cli.sweep import plan_sweep
from evenflow.errors import ConfigError, TargetError
from evenflow.trace import read_trace
from helpers.bench import FakeDriver
from helpers.engines import make_engine

OFF = Setting(None)


class Launches:
    """A launcher that notes its settings; `fail_at` is the launch that is interrupted."""

    def __init__(self, fail_at=None):
        self.settings = []
        self.fail_at = fail_at

    @asynccontextmanager
    async def __call__(self, setting, _log):
        self.settings.append(setting.slug)
        if len(self.settings) == self.fail_at:
            raise TargetError("it fell over")
        gap_s = 0.002 if setting.budget else 0.004
        yield Session(FakeDriver(gap_s), Calibration(), [], {"setting": setting.slug})


def make_grid(folder, repeats=2, seed=0, ceiling=None):
    options = WorkloadOptions(
        num_prompts=4, max_concurrency=2, input_len="5", output_len="6", seed=seed
    )
    workloads = {MAIN: make_workload(options)}
    if ceiling:
        workloads[CEILING] = make_workload(options)
    return Grid(folder, [OFF, Setting(64), Setting(128)], repeats, workloads, ceiling)


def run_grid(grid, launch):
    grid.prepare({"experiment": "budget"})
    return asyncio.run(grid.run(launch, RunOptions(), MeasureOptions(), lambda _: None))


def test_settings_take_turns_and_every_cell_is_measured(tmp_path):
    launch = Launches()
    results = run_grid(make_grid(tmp_path, ceiling=Setting(64)), launch)
    assert launch.settings == ["64", "off", "64", "128", "64", "128", "off"]
    rows = ex.rows_of(results, ex.TABLE)
    assert [r.setting for r in rows] == [OFF, Setting(128), Setting(64)]
    assert all(r.runs == 2 for r in rows)
    off, small = rows[0].figures[0], rows[2].figures[0]
    assert off is not None
    assert small is not None
    assert off.median > small.median
    assert ex.ceiling_of(results) is not None
    pair = ex.paired_ratio(results, OFF, Setting(64), ex.TABLE[0].of)
    assert pair is not None
    assert pair.pairs == 2
    assert pair.ratio < 1


def test_the_ceilings_decodes_run_side_by_side_however_the_traffic_is_paced(tmp_path, monkeypatch):
    """The rate and the duration of the mixed traffic are not those of the ceiling."""
    monkeypatch.setattr(ex, "scale_of_machine", lambda: ex.CPU)
    shape = {"input_len": "5", "output_len": "6"}
    load = {"request_rate": 50.0, "duration": 0.1}
    plan = plan_sweep(
        "budget",
        server={"budgets": "64", "repeats": 1},
        target={},
        load=load,
        shape=shape,
        results={"result_dir": tmp_path},
        engine={},
    )
    plan.grid.prepare({"asked": plan.about})
    results = asyncio.run(
        plan.grid.run(Launches(), plan.asked.run, plan.asked.measure, lambda _: None)
    )
    alone = next(r for r in results if r.cell.workload == CEILING).records.requests
    assert len(alone) == 16
    eighth = sorted(r.send_s for r in alone)[7]
    assert eighth < min(r.end_s for r in alone)
    assert plan.about["request_rate"] == "50.0"


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    with pytest.raises(TargetError):
        run_grid(make_grid(tmp_path), Launches(fail_at=4))
    torn = tmp_path / "128-0.jsonl"
    torn.write_bytes(torn.read_bytes()[:-200])  # killed while it was being written
    launch = Launches()
    results = run_grid(make_grid(tmp_path), launch)
    assert launch.settings == ["128", "64", "128", "off"]
    assert len(results) == 6
    again = Launches()
    run_grid(make_grid(tmp_path), again)
    assert again.settings == []


def test_a_folder_of_another_experiment_is_not_mixed_up(tmp_path):
    run_grid(make_grid(tmp_path), Launches())
    with pytest.raises(ConfigError, match="holds another experiment"):
        run_grid(make_grid(tmp_path, seed=1), Launches())


SPEC = {  # the table to reproduce: p50, p95, p99 ITL, worst, p95 TTFT, output tok/s
    None: (18, 142, 680, 680, 480, 3900),
    8192: (21, 58, 124, 124, 520, 4180),
    2048: (24, 34, 51, 51, 610, 4240),
    512: (31, 38, 47, 47, 890, 3850),
}


def rows(table):
    return [
        ex.Row(Setting(b), 1, 0, [ex.Spread(float(v), float(v), float(v)) for v in values])
        for b, values in table.items()
    ]


def test_the_sweet_spot_of_the_published_table_is_2048():
    assert ex.sweet_spot(rows(SPEC)) == Setting(2048)


def test_where_no_budget_keeps_both_the_throughput_decides():
    table = {64: (1, 1, 5, 5, 100, 1000), 512: (1, 1, 9, 9, 900, 2000)}
    assert ex.sweet_spot(rows(table)) == Setting(512)
    assert ex.sweet_spot(rows({None: SPEC[None]})) is None


def test_lengths_lie_around_the_edges_of_chunks():
    assert prompt_lengths([64], 200) == [1, 63, 64, 65, 127, 128, 129, 200]
    assert prompt_lengths([64], 64) == [1, 63, 64]


def test_answers_that_differ_are_found_with_their_place():
    first = Answers("off", {10: "the sea is wide", 20: "so"}, {})
    same = Answers("budget 64", {10: "the sea is wide", 20: "so"}, {})
    other = Answers("budget 128", {10: "the sea is deep", 20: ""}, {20: "HTTP 500"})
    assert differences([first, same]) == []
    (found,) = differences([first, other])
    lost = Answers("off", {10: ""}, {10: "HTTP 500"})
    assert differences([lost, same]) == []  # nothing to compare with
    assert (found.setting, found.prompt_tokens, found.at_char) == ("budget 128", 10, 11)


def test_graphs_are_read_from_documented_lines_only():
    log = """
| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
| 8 | 8 | 0 | FULL | 40 |
| 2048 | 2048 | 0 | NONE | 3 |
[2026-11-30] Decode batch, #running-req: 8, cuda graph: True, gen throughput: 10
[2026-11-30] Prefill batch, #new-seq: 1, #new-token: 512, cuda graph: False
"""
    use = from_log(log)
    assert use is not None
    assert use.kinds == {
        "8 tokens": (40, 0),
        "2,048 tokens": (0, 3),
        "decode": (1, 0),
        "prefill": (0, 1),
    }
    assert use.applicable
    assert from_log("INFO: ready\n") is None


def test_steps_without_graphs_name_the_reason():
    step = type("Step", (), {"chunks": [1], "num_decodes": 2, "graph": "none: cpu"})
    use = from_steps([step, step])
    assert use.kinds == {"mixed": (0, 2)}
    assert use.reasons == {"cpu": 2}
    assert not use.applicable


class LoadedModel:
    """What a launcher in this process needs of an `LLM`."""

    def __init__(self, options):
        self.options = options
        self.engine = make_engine(**options)
        self.config = self.engine.config
        self.tokenizer = type("Words", (), {"encode": lambda _, text: [1] * len(text.split())})()

    def trace(self, observer):
        self.engine.observe(observer)

    def close(self):
        self.engine.close()


def test_a_model_in_this_process_is_loaded_anew_for_each_setting_with_its_steps_recorded(tmp_path):
    loaded = []

    def load(options):
        loaded.append(LoadedModel(options))
        return loaded[-1]

    launch = LocalLaunch(load, "letters", {"max_num_seqs": 8})
    grid = make_grid(tmp_path, repeats=1)
    results = run_grid(grid, launch)
    assert [m.options.get("max_num_batched_tokens") for m in loaded] == [None, 64, 128]
    assert all(m.options["max_num_seqs"] == 8 for m in loaded)
    assert all(r.metrics.counts.completed == 4 for r in results)
    steps = read_trace(tmp_path / "64-0.steps.jsonl").steps
    assert sum(c.length for s in steps for c in s.chunks) >= 4 * 5
    header = results[0].records.header
    assert header["config"]["enable_chunked_prefill"] is False
    assert header["setting"] == "off"
