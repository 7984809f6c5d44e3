"""docs/scheduling.md names the test of every rule; the names must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "scheduling.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    files = [*ROOT.glob("tests/property/test_schedule_*.py"), *ROOT.glob("tests/pure/test_*.py")]
    defined = {n for f in files for n in re.findall(r"def (test_\w+)\(", f.read_text())}
    assert len(named) > 20
    assert named <= defined, f"not there: {sorted(named - defined)}"
