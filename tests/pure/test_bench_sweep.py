"""Sweeps: how each engine is started for a setting, and that it is ended again."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenflow.bench.drivers.http import HttpOptions
from evenflow.bench.records import read_records
from evenflow.bench.run import RunOptions
from evenflow.bench.sweep.launch import ServerLaunch, engine_options
from evenflow.bench.sweep.recipes import RECIPES, Recipe, Setting, choose_recipe, command_for
from evenflow.bench.workload.build import WorkloadOptions, make_workload
from evenflow.errors import ConfigError, TargetError
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
        (
            python("-c", "'import json; json.loads(chr(33))'"),
            r"before it was ready: json\.decoder\.JSONDecodeError: Expecting value",
        ),
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


def test_a_sweep_that_is_told_to_stop_takes_its_server_with_it(tmp_path):
    seen = tmp_path / "server"
    server = f"import os, time; open({str(seen)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command = [sys.executable, "-m", "evenflow", "sweep", "--server", "custom", "--model", "m"]
    command += ["--serve-cmd", f"{sys.executable} -c {shlex.quote(server)} {{port}} {{knob}}"]
    command += ["--knob-on", "{budget}", "--budgets", "8", "--result-dir", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as sweep:
        while not (seen.exists() and seen.read_text()):
            assert sweep.poll() is None, sweep.stdout.read()
            time.sleep(0.05)
        sweep.send_signal(signal.SIGTERM)
        said = sweep.stdout.read()
    assert sweep.returncode == 130, said
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)
