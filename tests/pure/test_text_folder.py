"""A tokenizer from a Hugging Face folder."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from evenflow.errors import ModelError
from evenflow.text.tokenizer import Tokenizer
from helpers.texts import (
    BOS,
    EOS,
    sentencepiece_json,
    tiny_json,
    tiny_metadata,
    tiny_tokenizer,
    write_folder,
)

NAMES = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}


def _load(tmp_path, source=None, **files):
    named = {
        name.replace("__", "."): value for name, value in files.items()
    }  # "generation_config__json" is a file's name
    return Tokenizer.from_folder(write_folder(tmp_path, source or tiny_json(), named))


def test_the_same_as_from_gguf(tmp_path):
    folder = _load(tmp_path, tokenizer_config__json=NAMES)
    gguf = tiny_tokenizer()
    for text in ("the thing", " a  b\n", "é日😀", "a<s>b<tool x></s>", ""):
        ids = gguf.encode(text)
        assert folder.encode(text) == ids
        assert folder.encode(text, parse_special=False) == gguf.encode(text, parse_special=False)
        assert folder.decode(ids, skip_special_tokens=False) == text
    assert folder.vocab_size == gguf.vocab_size
    assert folder.special_ids == gguf.special_ids
    assert (folder.bos_id, folder.eos_ids) == (BOS, {EOS})
    assert folder.special_tokens == gguf.special_tokens
    assert folder.chat_template is None


def test_names_may_come_from_the_special_tokens_map(tmp_path):
    tokenizer = _load(tmp_path, special_tokens_map__json=NAMES)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (BOS, {EOS})


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 11}, {EOS, 7, 9}),
        ({"eos_token_id": 7}, {}, {EOS, 7}),
        ({}, {"eos_token_id": 11}, {EOS, 11}),
        ({"eos_token_id": None}, {"eos_token_id": None}, {EOS}),
    ],
)
def test_every_end_counts(tmp_path, generation, config, ends):
    tokenizer = _load(
        tmp_path,
        tokenizer_config__json=NAMES,
        generation_config__json=generation,
        config__json=config,
    )
    assert tokenizer.eos_ids == ends


def test_edges_are_those_of_the_post_processor(tmp_path):
    backend = tokenizers.Tokenizer.from_str(tiny_json())
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    tokenizer = _load(tmp_path, backend.to_str(), tokenizer_config__json=NAMES)
    assert tokenizer.encode("hi") == [BOS, 104, 105]
    assert tokenizer.encode_chat("<s>hi") == [BOS, 104, 105]


def test_a_prompt_is_neither_cut_nor_filled(tmp_path):
    backend = tokenizers.Tokenizer.from_str(tiny_json())
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert _load(tmp_path, backend.to_str()).encode("xyz") == [120, 121, 122]


def test_tokens_that_only_the_config_lists(tmp_path):
    config = {"added_tokens_decoder": {"266": {"content": "<new>", "special": True}}}
    tokenizer = _load(tmp_path, tokenizer_config__json=config)
    assert tokenizer.encode("a<new>") == [97, 266]
    assert 266 in tokenizer.special_ids
    assert tokenizer.vocab_size == 267


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config__json": {"chat_template": "one"}}, "one"),
        (
            {"tokenizer_config__json": {"chat_template": "one"}, "chat_template__jinja": "two"},
            "two",
        ),
        ({"chat_template__json": {"chat_template": "three"}}, "three"),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "rag", "template": "r"},
                        {"name": "default", "template": "d"},
                    ]
                }
            },
            "d",
        ),
    ],
)
def test_where_a_chat_template_may_lie(tmp_path, files, template):
    assert _load(tmp_path, **files).chat_template == template


@pytest.mark.parametrize("metaspace", [True, False])
def test_sentencepiece_spelling(tmp_path, metaspace):
    source = sentencepiece_json(metaspace=metaspace)
    tokenizer = _load(tmp_path, source, tokenizer_config__json=NAMES)
    backend = tokenizers.Tokenizer.from_str(source)
    for text in ("abba", "ab ab", "é日😀x ab", "a  b "):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == backend.decode(ids) == text
    if not metaspace:  # which writes "  a" and " a" with the same ids
        assert tokenizer.decode(tokenizer.encode("  a")) == "  a"
    ids = tokenizer.encode("ab ab")
    assert tokenizer.decode(ids, continues=True) == " ab ab"
    assert tokenizer.decode(ids[1:]) == "ab"


def test_a_byte_that_is_no_byte_is_text(tmp_path):
    edited = json.loads(sentencepiece_json(metaspace=False))
    edited["model"]["vocab"]["<0xZZ>"] = len(edited["model"]["vocab"])
    tokenizer = _load(tmp_path, json.dumps(edited))
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"<0xZZ>"
    assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"


def _decoder(decoder):
    edited = json.loads(tiny_json())
    edited["decoder"] = decoder
    return json.dumps(edited)


@pytest.mark.parametrize(
    ("source", "files", "message"),
    [
        ("{", {}, "tokenizer.json cannot be read"),
        (_decoder(None), {}, "decoder .* is missing"),
        (_decoder({"type": "WordPiece", "prefix": "##", "cleanup": True}), {}, "is WordPiece"),
        (
            _decoder({"type": "Strip", "content": "_", "start": 1, "stop": 0}),
            {},
            "decoder .* is Strip",
        ),
        (None, {"tokenizer_config__json": "{"}, "tokenizer_config.json is not JSON"),
        (None, {"tokenizer_config__json": "[]"}, "holds a list, not an object"),
        (None, {"tokenizer_config__json": {"eos_token": "<gone>"}}, "eos_token .* is '<gone>'"),
        (
            None,
            {"tokenizer_config__json": {"added_tokens_decoder": {"5": {"content": "<s>"}}}},
            "'<s>' has id 5 .* but 263",
        ),
        (
            None,
            {"tokenizer_config__json": {"added_tokens_decoder": {"5": {}}}},
            r"added_tokens_decoder .* is broken: KeyError\('content'\)",
        ),
        (
            None,
            {"tokenizer_config__json": {"added_tokens_decoder": {"x": {"content": "y"}}}},
            "broken",
        ),
        (None, {"tokenizer_config__json": {"added_tokens_decoder": [3]}}, "is broken"),
        (None, {"tokenizer_config__json": {"chat_template": {"a": 1}}}, "template .* is a dict"),
        (None, {"generation_config__json": {"eos_token_id": ["</s>"]}}, "eos_token_id in .* is"),
        (None, {"generation_config__json": {"eos_token_id": True}}, "eos_token_id in .* is True"),
    ],
)
def test_a_broken_folder_is_named(tmp_path, source, files, message):
    with pytest.raises(ModelError, match=message) as caught:
        _load(tmp_path, source, **files)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_template_that_is_not_text(tmp_path):
    write_folder(tmp_path, tiny_json())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="is not UTF-8"):
        Tokenizer.from_folder(tmp_path)


def test_a_folder_without_tokenizer_json(tmp_path):
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert "tokenizer.model must first be converted" in caught.value.hint


def test_the_tiny_metadata_is_what_it_says():
    fields = tiny_metadata()
    assert fields["tokenizer.ggml.tokens"][BOS] == "<s>"
    assert fields["tokenizer.ggml.tokens"][EOS] == "</s>"


def test_no_text_leads_to_a_special_token_through_merges(tmp_path):
    """A vocabulary may hold the way to a control token; with parse_special off nobody goes it."""
    pieces = ["<unk>", "<s>", "<", "s", ">", "<s", "a", "\u2581"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("<", "s"), ("<s", ">")],
            unk_token="<unk>",
        )
    )
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "<s>"])
    backend.add_tokens(["<extra>"])
    tokenizer = _load(tmp_path, backend.to_str())
    assert tokenizer.encode("a<s>a<extra>") == [6, 1, 6, 8]
    assert tokenizer.encode("a<s>a<extra>", parse_special=False) == [6, 5, 4, 6, 8]
    assert tokenizer.encode("?", parse_special=False) == [0]
