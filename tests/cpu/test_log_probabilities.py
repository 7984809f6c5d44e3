"""Log probabilities of prompt and answer, against a log-softmax of all logits in float64."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.runner.reference import ReferenceRunner
from helpers.driving import cut, plan_of, prefill, request_with_blocks
from helpers.native_models import native_runner, prompt, stored_model

TOKENS = prompt(21, 90)


def make_runner(name: str):
    if name == "reference":
        return ReferenceRunner(stored_model("F32"), num_blocks=8, block_size=64)
    pytest.importorskip("evenflow._native", reason="built without a compiler")
    return native_runner("f32", num_blocks=8)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis=1, keepdims=True))


def check(entry, row: np.ndarray, token: int, count: int) -> None:
    """An entry against a row of log probabilities."""
    assert entry.logprob == pytest.approx(row[token], abs=1e-4)
    assert entry.rank == 1 + np.count_nonzero(row > row[token])
    best = np.argsort(-row, kind="stable")[:count]
    assert [t for t, _ in entry.top] == best.tolist()
    assert [value for _, value in entry.top] == pytest.approx(row[best], abs=1e-4)


@pytest.mark.parametrize("name", ["reference", "native"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 90])
def test_scores_of_a_prompt_in_chunks(name, chunk):
    runner = make_runner(name)
    exact = log_softmax(prefill(runner, request_with_blocks("plain", TOKENS, [0, 1]), [90]))
    options = {"prompt_logprobs": 3, "logprobs": 5, "repetition_penalty": 1.3, "seed": 1}
    request = request_with_blocks("r", TOKENS, [2, 3], temperature=0.7, **options)
    entries, start = [], 0
    for length in cut(90, chunk):
        result = runner.submit(plan_of((request, start, length, length))).result()
        entries += result.prompt_logprobs.get(0, [])
        start += length
        assert bool(result.tokens[0]) == (start == 90)  # rows that score do not draw
    assert len(entries) == 89
    for position, entry in enumerate(entries):
        check(entry, exact[position], TOKENS[position + 1], 3)
    ((token,),), ((drawn,),) = result.tokens, result.logprobs
    check(drawn, exact[89], token, 5)  # of the distribution before penalty and temperature


@pytest.mark.parametrize("name", ["reference", "native"])
def test_neighbours_that_ask_for_nothing_get_nothing(name):
    runner = make_runner(name)
    asks = request_with_blocks("asks", TOKENS[:5], [0], prompt_logprobs=0)
    plain = request_with_blocks("plain", TOKENS[:9], [1])
    drawn = request_with_blocks("drawn", TOKENS[:7], [2], logprobs=0)
    result = runner.submit(plan_of((plain, 0, 9, 1), (asks, 0, 5, 5), (drawn, 0, 7, 1))).result()
    assert {span: len(entries) for span, entries in result.prompt_logprobs.items()} == {1: 4}
    assert all(entry.top == () for entry in result.prompt_logprobs[1])
    assert result.logprobs[:2] == [(None,), (None,)]
    assert result.logprobs[2][0].rank == 1  # greedy
    assert [len(tokens) for tokens in result.tokens] == [1, 1, 1]
