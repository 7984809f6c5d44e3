"""Without a compiler the install succeeds as a pure wheel, and says what it uses instead, and why.

The wheel is built from this source with compilers that fail, offline; what it holds runs in a process that
sees neither this environment's evenflow nor its native module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core", reason="the build backend is not installed")

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests/golden/tiny/gqa-tied"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the package as an install without a compiler leaves it."""
    if not (ROOT / "CMakeLists.txt").exists():
        pytest.skip("not a source tree")
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", f"-Cbuild-dir={folder / 'build'}",
        "--wheel-dir", folder, ROOT, CC="false", CXX="false")  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "evenflow/cli/main.py" in names
    assert not [name for name in names if name.endswith((".so", ".pyd", ".cpp"))]
    target = folder / "target"
    pip("install", "--no-deps", "--target", target, wheel)
    return target


def pip(*words, **environment) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    subprocess.run(
        [*command, *map(str, words), "--no-index"],
        check=True,
        capture_output=True,
        env=os.environ | environment,
    )


def run(target: Path, code: str) -> str:
    """What this code prints there; -S leaves out this environment's own (editable) evenflow."""
    path = os.pathsep.join([str(target), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    return done.stdout


def test_the_doctor_names_the_reference_and_the_reason(installed):
    code = "from evenflow.cli.main import main; main(['doctor', '--machine', *{}])"
    found = json.loads(run(installed, code.format(["--json"])))
    assert found["native runner"].startswith("not built: ")
    assert found["chosen runner"] == "reference"
    assert "no C++20 compiler" in found["why"]
    assert found["instruction sets"] == []
    assert "reference" in run(installed, code.format([]))


CHOOSE = """
import json, sys
from evenflow.config import EngineConfig
from evenflow.errors import ConfigError
from evenflow.model.load import load_model
from evenflow.runner.choose import make_runner, native_facts
model = load_model({model!r})
sizes = dict(context_length=512, kv_bytes_per_token=1024, free_memory_bytes=2**30)
config = EngineConfig.resolve({{"runner": "auto"}}, **sizes, native=native_facts(model))
told = [make_runner(config, model).name, *config.warnings]
try:
    EngineConfig.resolve({{"runner": "native"}}, **sizes, native=native_facts(model))
except ConfigError as error:
    told.append(error.message)
print(json.dumps(told))
"""


def test_auto_takes_the_reference_and_warns_and_native_is_refused(installed):
    runner, warning, error = json.loads(run(installed, CHOOSE.format(model=str(TINY))))
    assert runner == "reference"
    assert "no C++20 compiler" in warning
    assert "no C++20 compiler" in error
