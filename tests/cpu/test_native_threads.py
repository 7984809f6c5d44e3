"""The pool of compute threads: every tile once, whatever the threads' timing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
SOURCE = Path(__file__).with_name("pool_stress.cpp")


@pytest.fixture(scope="module")
def stress(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("pool") / "stress"
    command = [COMPILER, "-std=c++20", "-O1", "-pthread", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_a_late_thread_never_takes_a_tile_of_the_next_job(stress, threads):
    """It did: between a job's end and the next one's start it saw the new range's end."""
    done = subprocess.run([str(stress), str(threads), "1500"], check=False)
    assert done.returncode == 0
