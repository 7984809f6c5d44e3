"""`evenflow generate` with several answers, log probabilities and a form."""

from __future__ import annotations

import json

import pytest

from evenflow.cli.main import main
from helpers.letters import make_llm


@pytest.fixture(autouse=True)
def letters(monkeypatch):
    monkeypatch.setattr("evenflow.LLM", lambda model, **options: make_llm(None), raising=False)


def generate(capfd, *arguments):
    code = main(["generate", "hello", "--max-tokens", "3", *arguments])
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return code, out, err


def test_several_answers_each_under_its_number(capfd):
    code, out, _ = generate(capfd, "--n", "2")
    assert code == 0
    lines = out.splitlines()
    assert (lines[0], lines[2]) == ("[0]", "[1]")
    assert len(lines[1]) == len(lines[3]) == 3
    whole = json.loads(generate(capfd, "--n", "2", "--json")[1])
    assert [o["text"] for o in whole["outputs"]] == [lines[1], lines[3]]
    assert whole["text"] == lines[1]


def test_a_stream_of_several_answers_names_them(capfd):
    _, out, _ = generate(capfd, "--n", "2", "--json", "--stream")
    events = [json.loads(line) for line in out.splitlines()]
    assert sorted(e["index"] for e in events) == [0, 0, 0, 1, 1, 1]
    code, _, err = generate(capfd, "--n", "2", "--stream")
    assert code == 2
    assert "mix the answers" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--logprobs", "2"], "not --json"),
        (["--n", "2", "--temperature", "0"], "n is 2, but temperature 0"),
        (["--regex", "a", "--json-schema", "SCHEMA"], "json and regex"),
        (["--json-schema", "missing.json"], "cannot read missing.json"),
        (["--json-schema", '{"type": '], "structured_outputs.json is not JSON"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0"),
    ],
)
def test_what_contradicts_or_has_no_effect_is_refused(capfd, tmp_path, arguments, said):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    code, out, err = generate(capfd, *[str(schema) if a == "SCHEMA" else a for a in arguments])
    assert (code, out) == (2, "")
    assert said in err
    assert "hint:" in err
