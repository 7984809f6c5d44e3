"""Where models that `evenflow pull` makes lie, and the names of those with random weights.

In: a name such as "random:llama-3.2-1b" or "random:llama-3.2-1b:q4_0". Out: the file's path. The
folder is EVENFLOW_MODELS, else evenflow/models in XDG_CACHE_HOME or ~/.cache.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from evenflow.errors import ModelError
from evenflow.model.shapes import FORMATS, SHAPES

RANDOM_PREFIX = "random:"
VARIABLE = "EVENFLOW_MODELS"


class RandomName(NamedTuple):
    """A model with random weights: the shape's name, and one of `FORMATS`."""

    shape: str
    format: str

    def __str__(self) -> str:
        return f"{RANDOM_PREFIX}{self.shape}:{self.format}"

    def path(self) -> Path:
        """Where its file is, or would be."""
        return models_folder() / f"random-{self.shape}-{self.format}.gguf"


def models_folder() -> Path:
    """The folder; it need not exist."""
    stated = os.environ.get(VARIABLE)
    if stated:
        return Path(stated).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "evenflow" / "models"


def random_name(name: str) -> RandomName | None:
    """What a name that starts with "random:" stands for; None for other names.

    Raises:
        ModelError: an unknown shape or format; lists those known.
    """
    if not name.startswith(RANDOM_PREFIX):
        return None
    shape, _, chosen = name.removeprefix(RANDOM_PREFIX).partition(":")
    if shape not in SHAPES:
        raise ModelError(
            f"there is no shape {shape!r} for random weights",
            hint=f"known: {', '.join(RANDOM_PREFIX + known for known in SHAPES)}",
        )
    chosen = chosen or SHAPES[shape].format
    if chosen not in FORMATS:
        raise ModelError(
            f"{name} asks for weights of type {chosen!r}",
            hint=f"random weights are written as {', '.join(FORMATS)}",
        )
    return RandomName(shape, chosen)
