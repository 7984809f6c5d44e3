"""The recorded families on the native runner: as close as the format allows, the same bits in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow import _native
from evenflow.model.load import load_model
from evenflow.runner.native import NativeRunner
from helpers.driving import cut, plan_of, prefill, request_with_blocks

FOLDER = Path(__file__).parent / "families"
NAMES = sorted(path.name for path in FOLDER.iterdir())
ALL = pytest.mark.parametrize("name", NAMES)


def runner_of(name: str, weights: str = "bf16", **options) -> NativeRunner:
    values = {"num_blocks": 12, "num_threads": 2, "weights": weights} | options
    runner = NativeRunner(load_model(FOLDER / name), **values)
    runner.poison_kv()
    return runner


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / name / "logits.npz") as file:
        return dict(file)


def prompt_request(name: str, blocks, request_id: str = "r"):
    return request_with_blocks(request_id, golden(name)["prompt"], blocks)


@pytest.mark.parametrize("isa", _native.runnable_isas())
@ALL
def test_float32_agrees_with_transformers(name, isa):
    logits = prefill(runner_of(name, "f32", isa=isa), prompt_request(name, [3, 1, 2]), [150])
    assert np.abs(logits[::10] - golden(name)["logits"]).max() <= 2e-4


@pytest.mark.parametrize("isa", _native.runnable_isas())
@ALL
def test_bf16_is_within_its_rounding(name, isa):
    # every activation loses 2 ** -9 of itself, and these models are far from trained: their
    # attention is sharp. The largest error measured is 3.3% (smollm3, four layers).
    wanted = golden(name)["logits"]
    logits = prefill(runner_of(name, isa=isa), prompt_request(name, [3, 1, 2]), [150])[::10]
    assert np.sqrt(((logits - wanted) ** 2).mean()) <= 0.05 * np.sqrt((wanted**2).mean())
    best = np.sort(wanted, axis=1)
    sure = best[:, -1] - best[:, -2] > 0.5
    assert sure.sum() >= 5
    assert np.array_equal(logits.argmax(1)[sure], wanted.argmax(1)[sure])


@pytest.mark.parametrize("weights", ["bf16", "f32"])
@ALL
def test_chunks_threads_and_neighbours_change_no_bit(name, weights):
    runner = runner_of(name, weights)
    whole = prefill(runner, prompt_request(name, [3, 1, 2]), [150])
    assert np.isfinite(whole).all()
    for size in (1, 13, 37, 64, 149):
        runner.poison_kv()
        chunked = prefill(runner, prompt_request(name, [5, 7, 0]), cut(150, size))
        assert np.array_equal(chunked.view(np.uint32), whole.view(np.uint32)), size
    runner.poison_kv()
    ours, other = prompt_request(name, [4, 9, 2]), prompt_request(name, [8, 1, 10], "o")
    prefill(runner, other, [150])
    rows = []
    for start, length in ((0, 70), (70, 79), (149, 1)):
        plan = plan_of((other, 149, 1, 1), (ours, start, length, length))
        runner.submit(plan).result()
        rows.append(runner.last_logits[1:])
    assert np.array_equal(np.concatenate(rows).view(np.uint32), whole.view(np.uint32))
    many = prefill(runner_of(name, weights, num_threads=5), prompt_request(name, [0, 1, 2]), [150])
    assert np.array_equal(many.view(np.uint32), whole.view(np.uint32))


def test_longrope_looks_at_the_longest_sequence_allowed():
    recorded = golden("phi3")
    request = request_with_blocks("r", recorded["prompt"][:50], [0])
    logits = prefill(runner_of("phi3", "f32", max_positions=64), request, [50])[::10]
    assert np.abs(logits - recorded["short_logits"]).max() <= 2e-4
