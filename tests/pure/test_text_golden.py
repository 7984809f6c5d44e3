"""Ids and chats against llama.cpp and transformers, recorded by tests/golden/record_text.py."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evenflow.text.chat import ChatTemplate
from evenflow.text.tokenizer import Tokenizer
from helpers.texts import golden, smollm2_metadata, smollm2_tokenizer


def _cases(field):
    return list(zip(golden()["texts"], golden()[field], strict=True))


@pytest.mark.model
def test_ids_are_llama_cpps():
    tokenizer = smollm2_tokenizer()
    assert [(text, tokenizer.encode(text)) for text in golden()["texts"]] == [
        (text, ids) for text, ids in _cases("ids")
    ]


@pytest.mark.model
def test_ids_of_special_tokens_spelled_out_are_llama_cpps():
    tokenizer = smollm2_tokenizer()
    for text, ids in _cases("plain_ids"):
        assert tokenizer.encode(text, parse_special=False) == ids, text


@pytest.mark.model
def test_transformers_differs_only_where_it_lacks_the_rule_for_digits():
    """Its reading of GGUF files does not cut digits apart, so spaces before one merge otherwise."""
    tokenizer = smollm2_tokenizer()
    differs = [text for text, ids in _cases("transformers_ids") if tokenizer.encode(text) != ids]
    assert differs == ["x   123", "   123   456", "١٢٣ ४५६ ½ a²³ Ⅷ ①②③"]


@pytest.mark.model
@pytest.mark.parametrize(
    "pre", ["gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "deepseek-coder"]
)
def test_other_rules_are_llama_cpps(pre):
    tokenizer = Tokenizer.from_gguf({**smollm2_metadata(), "tokenizer.ggml.pre": pre})
    for text, ids in _cases(f"ids of {pre}"):
        found = tokenizer.encode(text, add_special_tokens=False)
        if pre == "qwen2" and "e\u0301" in text:
            # Qwen2's own tokenizer.json composes characters first; llama.cpp does not
            assert tokenizer.encode("\u00e9", add_special_tokens=False) == found[:1]
        else:
            assert found == ids, text


@pytest.mark.model
def test_every_text_survives():
    tokenizer = smollm2_tokenizer()
    for text, theirs in _cases("transformers_texts"):
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text == theirs


@pytest.mark.parametrize("case", golden()["chats"])
def test_chats_are_rendered_as_transformers_does(case):
    special_tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    template = ChatTemplate(
        case["template"],
        now=lambda: datetime(2025, 1, 2, tzinfo=UTC),
        special_tokens=special_tokens,
    )
    rendered = template.render(
        case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=case.get("add_generation_prompt", True),
        **case.get("variables", {}),
    )
    assert rendered == case["rendered"]


@pytest.mark.model
def test_the_models_own_template():
    template = ChatTemplate.from_tokenizer(smollm2_tokenizer(), now=lambda: datetime.now(UTC))
    case = golden()["own_template"]
    assert template.render(case["messages"], add_generation_prompt=False) == case["rendered"]
