"""The margin that excuses a difference is the margin of the logits themselves."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.bench.equality import compare, reference_margin
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import prefill, request_with_blocks
from helpers.tiny_model import tiny_model


@pytest.mark.parametrize("length", [1, 7, 50])
def test_the_margin_is_the_distance_of_the_two_best_logits(length):
    model = tiny_model(3)
    prompt = np.random.default_rng(length).integers(0, 64, length).tolist()
    runner = ReferenceRunner(model, num_blocks=16, block_size=4)
    logits = prefill(runner, request_with_blocks("a", prompt, range(16)), [length])[-1]
    second, first = np.sort(logits)[-2:]
    assert reference_margin(model, prompt) == pytest.approx(first - second, abs=1e-4)


def test_a_wrong_token_is_a_fault_for_a_real_model():
    model = tiny_model(3)
    right, wrong = {"a": [1, 2, 3]}, {"a": [1, 5, 3]}
    found = compare(right, wrong, lambda _, output: reference_margin(model, [7, 8, *output]))
    (difference,) = found.differences
    assert difference.position == 1
    assert difference.margin == reference_margin(model, [7, 8, 1])
    assert not found.holds
