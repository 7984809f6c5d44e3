"""The size budget finds what is over it and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "sizes.py"


@pytest.fixture(scope="module")
def sizes():
    spec = importlib.util.spec_from_file_location("sizes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(num_lines: int, doc: str = "") -> str:
    body = "    x = 1\n" * (num_lines - 1)
    return f"def f():\n{doc}{body}"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("lines", "found"), [(60, []), (61, ["src/a.py:1: f has 61 lines, budget 60"])]
)
def test_functions(sizes, tmp_path, lines, found):
    put(tmp_path, "src/a.py", function(lines))
    assert sizes.over_budget(tmp_path) == found


def test_a_docstring_does_not_count(sizes, tmp_path):
    doc = '    """One.\n' + "    more\n" * 50 + '    """\n'
    put(tmp_path, "src/a.py", function(60, doc))
    assert sizes.over_budget(tmp_path) == []


def test_methods_and_nested_functions_count(sizes, tmp_path):
    inner = "".join(f"    {line}\n" for line in function(61).splitlines())
    put(tmp_path, "tests/a.py", f"class A:\n{inner}")
    assert sizes.over_budget(tmp_path) == ["tests/a.py:2: f has 61 lines, budget 60"]


def test_files_and_their_median(sizes, tmp_path):
    put(tmp_path, "src/long.py", "x = 1\n" * 401)
    put(tmp_path, "src/short.py", "x = 1\n")
    assert sizes.over_budget(tmp_path) == [
        "src/long.py: 401 lines, budget 400",
        "src: the median file has 201 lines, budget under 150",
    ]
    put(tmp_path, "src/shorter.py", "")
    assert sizes.over_budget(tmp_path) == ["src/long.py: 401 lines, budget 400"]


@pytest.mark.parametrize(
    "header", ["void f(int x) {", "  void f() const {", "int g(int a) noexcept {"]
)
def test_cxx_functions(sizes, tmp_path, header):
    indent = header[: len(header) - len(header.lstrip())]
    body = "  x();\n" * 59
    put(tmp_path, "csrc/a.cpp", f"{header}\n{body}{indent}}}\n")
    assert sizes.over_budget(tmp_path) == [
        f"csrc/a.cpp:1: {header.strip()} has 61 lines, budget 60"
    ]
    put(tmp_path, "csrc/a.cpp", f"{header}\n{body[7:]}{indent}}}\n")
    assert sizes.over_budget(tmp_path) == []
