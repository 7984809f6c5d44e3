"""The size budget: a file of at most 400 lines, a function of at most 60, a median file under 150.

Run from the root of the repository; prints each file or function over budget and exits with 1.
A docstring does not count towards its function, so that nobody saves lines by explaining less.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_LINES = 150
FOLDERS = ("src", "tests", "csrc")
SUFFIXES = {".py", ".cpp", ".h"}
CXX_BLOCK = re.compile(r"^(?P<indent>\s*)\S.*\)[\w\s]*\{$")


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """Name, line and length of each function, docstring left out."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                doc = node.body[0]
                length -= (doc.end_lineno or doc.lineno) - doc.lineno + 1
            found.append((node.name, node.lineno, length))
    return found


def cxx_functions(text: str) -> list[tuple[str, int, int]]:
    """Header, line and length of each braced block, as clang-format lays it out.

    Loops are among them, which does no harm: one over budget is in a function over budget.
    """
    lines = text.splitlines()
    found = []
    for first, line in enumerate(lines):
        if match := CXX_BLOCK.match(line):
            closing = match["indent"] + "}"
            last = next(
                (i for i in range(first + 1, len(lines)) if lines[i].startswith(closing)), first
            )
            found.append((line.strip(), first + 1, last - first + 1))
    return found


def over_budget(root: Path) -> list[str]:
    """One line for each file, function or folder over its budget."""
    problems = []
    for folder in FOLDERS:
        sizes = []
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            text = path.read_text(encoding="utf-8")
            num_lines = len(text.splitlines())
            sizes.append(num_lines)
            name = path.relative_to(root)
            if num_lines > MAX_FILE_LINES:
                problems.append(f"{name}: {num_lines} lines, budget {MAX_FILE_LINES}")
            functions = python_functions(text) if path.suffix == ".py" else cxx_functions(text)
            problems += [
                f"{name}:{line}: {function} has {length} lines, budget {MAX_FUNCTION_LINES}"
                for function, line, length in functions
                if length > MAX_FUNCTION_LINES
            ]
        if sizes and statistics.median(sizes) >= MAX_MEDIAN_LINES:
            problems.append(
                f"{folder}: the median file has {statistics.median(sizes):g} lines, "
                f"budget under {MAX_MEDIAN_LINES}"
            )
    return problems


def main() -> int:
    """Print what is over budget; 1 if anything is."""
    problems = over_budget(Path.cwd())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
