"""`evenflow serve` as a person runs it, with the real model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from evenflow.cli.main import main
from evenflow.cli.serve import chunking_line
from helpers.servers import LetterModel

SRC = Path(__file__).parents[2] / "src"


def start(*arguments: str) -> tuple[subprocess.Popen, list[str], str]:
    """The process, what it said until it served, and its URL."""
    code = "import sys; from evenflow.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SRC), *sys.path])},
    )
    said = []
    for line in process.stderr:
        said.append(line.rstrip())
        if line.startswith("serving "):
            return process, said, line.split()[3].rstrip(";")
    raise AssertionError(f"it ended with {process.wait()}: {said}")


@pytest.mark.model
def test_it_says_what_runs_serves_it_and_stops_with_0():
    flags = "--max-model-len 512 --max-num-batched-tokens 64 --served-model-name tiny"
    process, said, url = start("--host", "0.0.0.0", *flags.split())
    try:
        with openai.OpenAI(base_url=url, api_key="x") as client:
            answer = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "Name three colors."}],
                max_tokens=12,
                temperature=0,
            )
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
    assert said[0].startswith("warning: 0.0.0.0 can be reached from other machines")
    assert "Red" in answer.choices[0].message.content
    assert answer.model == "tiny"
    assert process.returncode == 0
    assert rest == ""
    assert any("llama family, 135 M parameters" in line for line in said)
    budget = next(line for line in said if line.startswith("max_num_batched_tokens"))
    assert budget.split() == ["max_num_batched_tokens", "64", "given"]
    assert "chunked prefill is on: at most 64 tokens a step (max_num_batched_tokens)" in said


@pytest.mark.model
def test_a_flag_without_effect_is_an_error(capsys):
    arguments = ["--no-enable-chunked-prefill", "--long-prefill-token-threshold", "64"]
    assert main(["serve", "--port", "0", *arguments]) == 2
    err = capsys.readouterr().err
    assert "long_prefill_token_threshold is given, but it has no effect" in err
    assert "hint:" in err


def test_the_line_about_chunked_prefill():
    on = LetterModel(max_num_batched_tokens=48)
    off = LetterModel(enable_chunked_prefill=False)
    for model in (on, off):
        model.close()
    assert chunking_line(on.config).startswith("chunked prefill is on: at most 48 tokens a step")
    assert chunking_line(off.config).startswith("chunked prefill is off: whole prompts of up to")
