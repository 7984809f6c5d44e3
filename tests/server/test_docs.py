"""What is written about the server is true of it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from evenflow.cli.flags import SERVER
from evenflow.server.exposition import Exposition
from evenflow.server.metrics import Metrics
from helpers.servers import LetterModel

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))


def generator():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "endpoint_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_endpoint_pages_are_those_of_the_code():
    module = generator()
    made = module.pages()
    found = {p.name: p.read_text(encoding="utf-8") for p in module.FOLDER.glob("*.md")}
    assert found == made, "run python tools/endpoint_pages.py"


@pytest.fixture(scope="module")
def families() -> set[str]:
    """The names of all samples of /metrics."""
    model = LetterModel(speculative="ngram")
    metrics = Metrics(lambda: 0.0)
    metrics.stats = model.engine.stats
    text = Exposition(metrics, "evenflow").render().decode()
    model.close()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line.startswith("evenflow")}


def test_every_metric_is_in_the_guide_and_the_other_way_round(families):
    bare = {
        re.sub(r"_(bucket|count|sum)$", "", name).removeprefix("evenflow:") for name in families
    }
    bare = {name for name in bare if not name.endswith("_created")}
    named = set(re.findall(r"^\| `(\w+)`", GUIDE.partition("## Metrics")[2], re.MULTILINE))
    assert named == bare


def test_every_query_of_the_dashboard_finds_something(families):
    queries = [t["expr"] for p in DASHBOARD["panels"] for t in p.get("targets", [])]
    assert len(queries) > 8
    for query in queries:
        names = re.findall(r"evenflow:\w+", query)
        assert names
        assert set(names) <= families, query


def test_every_flag_of_the_server_is_in_the_guide():
    for name in SERVER:
        assert f"`--{name.replace('_', '-')}`" in GUIDE
