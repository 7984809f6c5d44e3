"""`evenflow pull random:SHAPE`: writes the file and shows how far it is."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError
from evenflow.model.gguf import read_gguf
from evenflow.model.load import RANDOM_SEED_KEY, resolve_model
from evenflow.model.shapes import SHAPES
from evenflow.progress import BytesProgress
from evenflow.synthetic.tokens import tokenizer_keys
from evenflow.synthetic.write import write_random

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow.model.places import RandomName

TOKENIZER_OF = "smollm2"


def pull_random(name: RandomName, seed: int | None) -> None:
    """Write the model unless it is there; says what it is and where.

    Raises:
        ModelError: it cannot be written, or is there with another seed than the one given.
    """
    path = name.path()
    if path.is_file():
        found = read_gguf(path).metadata.get(RANDOM_SEED_KEY)
        if seed is not None and seed != found:
            raise ModelError(
                f"{path} is there already, with seed {found}, not {seed}",
                hint="remove it first",
            )
        print(f"{name} is there already: {path} (seed {found})", file=sys.stderr)
        return
    shape = SHAPES[name.shape]
    borrowed = _borrowed_tokenizer()
    keys = tokenizer_keys(int(shape.keys["vocab_size"]), borrowed)
    began = time.perf_counter()
    with _terminated_like_interrupted(), BytesProgress(str(name)) as progress:
        write_random(name, shape, keys, seed=seed or 0, wrote=progress.update)
    size_mb, took_s = path.stat().st_size / 1e6, time.perf_counter() - began
    print(
        f"{name}: {size_mb:,.1f} MB of random weights (seed {seed or 0}) in {took_s:.1f} s: {path}",
        file=sys.stderr,
    )


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM too gives the unfinished file back."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _borrowed_tokenizer() -> dict[str, Any] | None:
    try:
        return read_gguf(resolve_model(TOKENIZER_OF)).metadata
    except ModelError:
        return None
