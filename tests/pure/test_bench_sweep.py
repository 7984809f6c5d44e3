"""Sweeps: who is started how, what is run again after an interruption, and which budget wins."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evenflow.bench.drivers.http import HttpOptions
from evenflow.bench.measure import MeasureOptions
from evenflow.bench.records import read_records
from evenflow.bench.run import RunOptions
from evenflow.bench.session import Session
from evenflow.bench.sweep import experiments as ex
from evenflow.bench.sweep.equal import Answers, differences, prompt_lengths
from evenflow.bench.sweep.graphs import from_log, from_steps
from evenflow.bench.sweep.grid import CEILING, MAIN, Grid
from evenflow.bench.sweep.launch import LocalLaunch, ServerLaunch, engine_options
from evenflow.bench.sweep.recipes import RECIPES, Recipe, Setting, choose_recipe, command_for
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.bench.workload.prompts import Calibration
from evenflow.errors import ConfigError, TargetError
from evenflow.trace import read_trace
from helpers.bench import FakeDriver
from helpers.engines import make_engine
from helpers.synthetic_server import MODEL

OFF = Setting(None)


@pytest.mark.parametrize(
    ("engine", "budget", "knob"),
    [
        ("evenflow", 128, "--max-num-batched-tokens 128"),
        ("evenflow", None, "--no-enable-chunked-prefill"),
        ("vllm", 2048, "--max-num-batched-tokens 2048"),
        ("vllm", None, "--no-enable-chunked-prefill"),
        ("sglang", 512, "--chunked-prefill-size 512 --enable-mixed-chunk"),
        ("sglang", None, "--chunked-prefill-size -1"),
        ("llama.cpp", 256, "--batch-size 256 --ubatch-size 256"),
        ("llama.cpp", None, "--batch-size 8192 --ubatch-size 512"),
    ],
)
def test_each_engine_has_its_own_knob(engine, budget, knob):
    words = command_for(RECIPES[engine], Setting(budget), model="a b", port=81, more="--x 1")
    assert " ".join(words[-2 - len(knob.split()) :]) == f"{knob} --x 1"
    assert "a b" in words
    assert "81" in words


def test_a_command_of_ones_own():
    recipe = choose_recipe("custom", command="s --p {port} {knob}", on="-b {budget}", off="-w")
    assert command_for(recipe, Setting(9), model="m", port=1) == ["s", "--p", "1", "-b", "9"]
    assert command_for(recipe, OFF, model="m", port=1)[-1] == "-w"
    bare = choose_recipe("custom", command="s {port} {budget}")
    assert command_for(bare, Setting(9), model="m", port=1)[-1] == "9"


@pytest.mark.parametrize(
    ("name", "given", "fact"),
    [
        ("vlm", {}, "there is no engine"),
        ("custom", {}, "how custom is started is not known"),
        ("openvino", {}, "how openvino is started is not known"),
        ("custom", {"command": "s {knob}"}, "no {port}"),
        ("custom", {"command": "s {port}"}, "neither"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(name, given, fact):
    with pytest.raises(ConfigError, match=fact):
        choose_recipe(name, **given)


def test_a_setting_that_an_engine_cannot_do_is_refused():
    recipe = choose_recipe("custom", command="s {port} {knob}", on="-b {budget}")
    with pytest.raises(ConfigError, match="no known way to switch chunking off"):
        command_for(recipe, OFF, model="m", port=1)
    typo = choose_recipe("custom", command="s {port} {knob} {colour}", on="x")
    with pytest.raises(ConfigError, match="unknown placeholder"):
        command_for(typo, Setting(1), model="m", port=1)


def test_our_own_engines_words():
    assert engine_options(OFF) == {"enable_chunked_prefill": False}
    assert engine_options(Setting(64))["max_num_batched_tokens"] == 64


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


SERVER = Path(__file__).parents[1] / "helpers" / "serve_on_port.py"


def launch_of(command, tmp_path, timeout_s=30.0):
    recipe = Recipe("custom", command, "{budget}", "0", ready_path="/health")
    launch = ServerLaunch(recipe, MODEL, None, HttpOptions(""), ready_timeout_s=timeout_s)
    return launch(Setting(64), tmp_path / "server.log")


def python(*words):
    return f"{shlex.quote(sys.executable)} {' '.join(words)} {{port}} {{knob}}"


def test_a_server_and_its_children_are_ended_by_their_group(tmp_path):
    pids = tmp_path / "pids"
    command = python(str(SERVER), str(pids))

    async def go():
        async with launch_of(command, tmp_path) as session:
            assert session.facts["setting"] == "64"
            outcome = await session.run(
                make_workload(WorkloadOptions(num_prompts=2, input_len="5", output_len="3")),
                tmp_path / "r.jsonl",
                RunOptions(),
            )
            assert outcome.metrics.counts.failed == 0
            return [int(p) for p in pids.read_text().split()]

    children = asyncio.run(go())
    assert len(children) == 2
    for _ in range(100):
        if not any(alive(pid) for pid in children):
            break
        time.sleep(0.05)
    assert not any(alive(pid) for pid in children)
    assert read_records(tmp_path / "r.jsonl").header["command"][-1] == "64"


def alive(pid):
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("command", "fact"),
    [
        ("no-such-program {port} {knob}", "cannot start no-such-program"),
        (python("-c", "'import sys; print(\"no model\"); sys.exit(3)'"), "status 3.*no model"),
    ],
)
def test_a_server_that_does_not_start_is_said_with_its_last_words(tmp_path, command, fact):
    async def go():
        async with launch_of(command, tmp_path):
            raise AssertionError("it cannot have started")

    with pytest.raises(TargetError, match=fact):
        asyncio.run(go())


def test_a_server_that_is_never_ready_is_given_up_and_ended(tmp_path):
    command = python("-c", "'import time; time.sleep(60)'")

    async def go():
        async with launch_of(command, tmp_path, timeout_s=0.5):
            raise AssertionError("it cannot be ready")

    began = time.monotonic()
    with pytest.raises(TargetError, match=r"not ready within 0\.5 s"):
        asyncio.run(go())
    assert time.monotonic() - began < 30


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
