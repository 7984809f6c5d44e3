"""The next turn of a chat with the real model and its template: history is found, not computed."""

from __future__ import annotations

import pytest

pytest.importorskip("evenflow._native", reason="built without a compiler")

from evenflow import LLM, SamplingParams
from helpers.goldens import needs_smollm2

pytestmark = needs_smollm2

QUESTIONS = (
    "What is the capital of France? Answer in one short sentence.",
    "Write one line of Python that prints the numbers 1 to 3.",
    "Say hello in Spanish, with an exclamation mark.",
)


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2", progress=False, max_model_len=1024, num_kv_blocks=64) as made:
        yield made


def ids_of(llm, messages):
    return llm.tokenizer.encode_chat(llm.render_chat(messages))


class Ends:
    def __init__(self):
        self.records = []

    def step(self, record):
        pass

    def request(self, record):
        self.records.append(record)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_second_turn_extends_the_first_and_computes_only_what_is_new(llm, question):
    messages = [{"role": "user", "content": question}]
    first = ids_of(llm, messages)
    ends = Ends()
    llm.trace(ends)
    (answer,) = llm.chat(messages, SamplingParams(max_tokens=200, temperature=0))
    assert answer.finish_reason == "stop"
    history = [*first, *answer.token_ids]
    messages += [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "Thank you. Now say it in other words."},
    ]
    second = ids_of(llm, messages)
    assert second[: len(history)] == history
    llm.chat(messages, SamplingParams(max_tokens=1, temperature=0))
    assert [r.cached_tokens for r in ends.records] == [
        ends.records[0].cached_tokens,
        len(history) - 1,
    ]


def test_speculation_gives_the_same_answer(llm):
    text = "The ferry leaves at seven. The ferry comes back at nine. The harbour is closed at ten."
    messages = [{"role": "user", "content": f"Repeat word for word: {text}"}]
    options = {"max_model_len": 1024, "num_kv_blocks": 64, "speculative": "ngram"}
    with LLM("smollm2", progress=False, **options) as guessing:
        for params in (
            SamplingParams(max_tokens=40, temperature=0),
            SamplingParams(max_tokens=40, temperature=0.9, seed=7),
        ):
            (plain,), (fast,) = llm.chat(messages, params), guessing.chat(messages, params)
            assert plain.token_ids == fast.token_ids
        assert guessing.engine.stats().num_accepted_tokens > 0
