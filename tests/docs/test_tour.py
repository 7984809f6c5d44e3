"""The documents name code that exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("**/*.md"))
NAME = re.compile(r"`(evenflow(?:\.\w+)*):(\w+(?:\.\w+)*)`")
LAYOUT = re.compile(r"\b(\w+\.py)\b")


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.name)
def test_every_name_on_the_page_exists(page):
    for module, path in NAME.findall(page.read_text()):
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)


def test_the_tour_names_its_code():
    assert len(NAME.findall((ROOT / "docs" / "tour.md").read_text())) > 20


def test_every_file_in_the_layout_exists():
    text = (ROOT / "docs" / "design.md").read_text()
    block = text.split("## Layout")[1].split("```")[1]
    known = {p.name for p in (ROOT / "src").glob("**/*.py")}
    assert set(LAYOUT.findall(block)) <= known
