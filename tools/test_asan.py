"""Builds the native runner with AddressSanitizer and UBSan and runs its tests on that build.

In: pytest arguments; without any, all quick tests of the native runner. Needs GCC or Clang with the
sanitizers' libraries. Out: pytest's exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "asan"
PACKAGE = BUILD / "package"
TESTS = sorted(str(p) for p in (ROOT / "tests" / "cpu").glob("test_native*.py"))

# an editable install puts a finder in front of every path: take it out, so that BUILD is found
RUN_TESTS = """
import sys, pytest
sys.meta_path[:] = [f for f in sys.meta_path if "Editable" not in type(f).__name__
                    and "ScikitBuild" not in type(f).__name__]
from evenflow import _native
assert "asan" in _native.__file__, _native.__file__
sys.exit(pytest.main(sys.argv[1:]))
"""


def build() -> None:
    """Configure and build into `PACKAGE`, beside links to the package's Python files."""
    target = PACKAGE / "evenflow"
    target.mkdir(parents=True, exist_ok=True)
    for source in (ROOT / "src" / "evenflow").iterdir():
        link = target / source.name
        if source.suffix != ".so" and not link.exists():
            link.symlink_to(source)
    configure = [
        "cmake",
        f"-S{ROOT}",
        f"-B{BUILD}",
        "-DEVENFLOW_SANITIZE=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    jobs = str(min(2, os.cpu_count() or 1))
    subprocess.run(["cmake", "--build", BUILD, "-j", jobs], check=True, stdout=subprocess.DEVNULL)


def _library(name: str) -> str:
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Build, then run the tests."""
    build()
    environment = os.environ | {
        # the C++ library beside the sanitizer's: Python does not load it, and without it the
        # sanitizer finds no `throw` to watch
        "LD_PRELOAD": f"{_library('libasan.so')} {_library('libstdc++.so')}",
        # Python itself never frees everything at exit
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(PACKAGE),
    }
    arguments = sys.argv[1:] or ["-q", "-m", "not slow", *TESTS]
    # a report of the sanitizers must not end in a capture that dies with the process
    command = [sys.executable, "-c", RUN_TESTS, "--capture=sys", *arguments]
    return subprocess.run(command, check=False, env=environment, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
