"""The reference runner against what transformers computed on the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.model.load import load_model
from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, extend, plan_of, request_with_blocks
from helpers.goldens import check_greedy, load_golden, needs_smollm2, pieces

MAX_DIFF = 2e-3
NUM_BLOCKS, BLOCK = 480, 16

pytestmark = needs_smollm2


@pytest.fixture(scope="module")
def runner():
    return ReferenceRunner(load_model("smollm2"), num_blocks=NUM_BLOCKS, block_size=BLOCK)


@pytest.fixture(scope="module")
def golden():
    return load_golden("smollm2_logits.npz")


def shuffled_blocks(seed):
    return np.random.default_rng(seed).permutation(NUM_BLOCKS).tolist()


def check_prompt(runner, golden, index, chunk):
    """Logits at the recorded positions, then 64 greedy tokens; the number of tokens compared."""
    prompt, positions = pieces(golden, "prompts")[index], pieces(golden, "positions")[index]
    request = request_with_blocks("r", prompt, shuffled_blocks(index))
    wanted = pieces(golden, "logits")[index]
    logits = np.full_like(wanted, np.nan)
    start = 0
    for length in cut(len(prompt), chunk):
        result = runner.submit(plan_of((request, start, length, length))).result()
        here = (start <= positions) & (positions < start + length)
        logits[here] = runner.last_logits[positions[here] - start][:, golden["logit_ids"]]
        start += length
    difference = np.abs(logits - wanted).max()
    assert difference <= MAX_DIFF, f"prompt {index}: logits differ by {difference}"
    request.token_ids.append(result.tokens[0][-1])
    extend(runner, [request], 63)
    drawn = request.token_ids[len(prompt) :]
    return check_greedy(drawn, golden["tokens"][index], golden["margins"][index], f"prompt {index}")


@pytest.mark.parametrize("index", [0, 4, 8, 12])
def test_logits_and_greedy_tokens_of_short_prompts(runner, golden, index):
    check_prompt(runner, golden, index, chunk=48)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [32, 256])
def test_logits_and_greedy_tokens_of_all_prompts(runner, golden, chunk):
    sure = [check_prompt(runner, golden, i, chunk) for i in range(len(golden["tokens"]))]
    assert sum(sure) > 0.9 * golden["tokens"].size  # the margin rule excuses few


@pytest.mark.slow
def test_greedy_tokens_of_200_prompts_in_packed_steps(runner):
    """40 prompts of 10 lengths share every step: one packed prefill, then 63 decode steps."""
    golden = load_golden("smollm2_greedy.npz")
    prompts, sure = pieces(golden, "prompts"), 0
    for first in range(5):
        chosen = range(first, len(prompts), 5)
        blocks = iter(shuffled_blocks(first))
        requests = []
        for i in chosen:
            mine = [next(blocks) for _ in range(-(-(len(prompts[i]) + 64) // BLOCK))]
            requests.append(request_with_blocks(str(i), prompts[i], mine))
        spans = [(r, 0, r.num_tokens, 1) for r in requests]
        result = runner.submit(plan_of(*spans)).result()
        for request, tokens in zip(requests, result.tokens, strict=True):
            request.token_ids.extend(tokens)
        extend(runner, requests, 63)
        for i, request in zip(chosen, requests, strict=True):
            drawn = request.token_ids[len(prompts[i]) :]
            sure += check_greedy(drawn, golden["tokens"][i], golden["margins"][i], f"prompt {i}")
    assert sure > 0.9 * golden["tokens"].size
