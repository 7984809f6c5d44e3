"""What the machine has and what is chosen, also where the native part was not built."""

from __future__ import annotations

import json
import sys

import evenflow
from evenflow.cli.main import main


def test_the_machine_and_the_choice_are_printed(capfd):
    assert main(["doctor", "--machine"]) == 0
    out = capfd.readouterr().out
    for name in ("processor", "memory", "instruction sets", "chosen runner", "why"):
        assert name in out


def test_json_says_the_same(capfd):
    assert main(["doctor", "--machine", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["chosen runner"] in {"native", "reference"}
    assert {"llama", "gemma3", "granite"} <= set(found["model families"])
    if found["chosen runner"] == "native":
        assert found["chosen instruction set"] == found["instruction sets"][0]
        assert found["chosen threads"] >= 1


def test_without_the_native_part_the_reference_is_chosen_and_why(capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "evenflow._native", None)
    monkeypatch.delattr(evenflow, "_native", raising=False)
    assert main(["doctor", "--machine", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["chosen runner"] == "reference"
    assert "compiler" in found["why"]


def test_nothing_named_is_an_error(capfd):
    assert main(["doctor"]) == 2
    assert "--machine" in capfd.readouterr().err
