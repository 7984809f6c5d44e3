"""The pages on the instruments name commands, fields and keys that exist."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from evenflow.bench.blame import blame
from evenflow.bench.blame.model import Verdict
from evenflow.bench.blame.show import as_json
from evenflow.bench.records import Mark, Probe, RequestRecord, Scrape
from evenflow.cli.main import app
from helpers.blamed import attack
from helpers.synthetic import Plan, simulate, streams

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("bench.md", "blame.md", "learn.md")


def _commands():
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
            for line in block.strip().splitlines():
                words = shlex.split(line, comments=True)
                if words[0] == "evenflow":
                    yield pytest.param(words[1:], id=f"{page}: {' '.join(words)[:60]}")


def _commands_of_the_script():
    """The commands that `benchmarks/learn.sh` runs, with a folder put in for its variable."""
    script = (DOCS.parent / "benchmarks" / "learn.sh").read_text(encoding="utf-8")
    body = script.partition('"$evenflow" --version')[2].replace("\\\n", " ")
    for line in body.replace("$out", "runs/learn").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["answer"]:
            yield pytest.param(words[2:], id=words[1])
        elif words[:1] == ["sweep"]:
            yield pytest.param(["sweep", *words[2:], "--result-dir", "x"], id=words[1])


def test_the_script_asks_all_seven_questions():
    names = [param.id for param in _commands_of_the_script()]
    assert {name[0] for name in names} == set("1234567")


@pytest.mark.parametrize("words", [*_commands(), *_commands_of_the_script()])
def test_every_command_can_be_read(words):
    group = typer.main.get_command(app)
    command = group.commands[words[0]]
    command.make_context(words[0], words[1:])


def test_all_pages_have_commands():
    assert len(list(_commands())) > 20


def test_every_field_of_the_records_is_described():
    text = (DOCS / "bench.md").read_text(encoding="utf-8")
    for record in (RequestRecord, Probe, Scrape, Mark):
        for field in fields(record):
            assert f"`{field.name}`" in text, f"{record.__name__}.{field.name}"


def test_every_key_of_the_document_is_described():
    text = (DOCS / "blame.md").read_text(encoding="utf-8")
    found = as_json(blame(simulate(streams(5, 300) + attack(1), Plan()).records))
    keys = {*found, *found["budget"], *found["offenders"][0], *found["stalls"][0]}
    for key in keys:
        assert f"`{key}`" in text, key
    for verdict in Verdict.__args__:
        assert f"`{verdict}`" in text


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text(encoding="utf-8")):
            assert (DOCS / target).exists(), f"{page}: {target}"
