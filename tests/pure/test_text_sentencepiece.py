"""SentencePiece tokenizers from GGUF metadata, against tests/golden/record_sentencepiece.py."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest

from evenflow.errors import ModelError
from evenflow.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ("llama", "gemma", "t5", "unigram-bytes")
KEY = "tokenizer.ggml."
# the only texts whose reading as plain text is not transformers': there, a unigram model finds the
# names of its control tokens in it, which SentencePiece never does
CONTROLS = {
    "[INST] Hi there [/INST] Hello</s>[INST]x[/INST]",
    "<s>a</s> b<s> <s>c",
    "<unk> and <pad>, <0x0A> and <0xE2><0x96><0x81>",
}


@cache
def golden():
    return json.loads((GOLDEN / "sentencepiece_cases.json").read_text())


@cache
def texts():
    sys.path.insert(0, str(GOLDEN))
    try:
        from text_inputs import PIECE_TEXTS, TEXTS
    finally:
        sys.path.remove(str(GOLDEN))
    return [*TEXTS, *PIECE_TEXTS]


def metadata(kind, **changes):
    """A recorded model's keys; a change to None takes a key out."""
    fields = golden()[kind]["metadata"] | {KEY + name: value for name, value in changes.items()}
    return {key: value for key, value in fields.items() if value is not None}


def tokenizer(kind, **changes):
    return Tokenizer.from_gguf(metadata(kind, **changes))


def spelled(kind, ids):
    return [golden()[kind]["metadata"][KEY + "tokens"][i] for i in ids]


def read(kind, *, parse_special, **changes):
    ours = tokenizer(kind, **changes)
    return [
        ours.encode(text, add_special_tokens=False, parse_special=parse_special) for text in texts()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(kind):
    found = read(kind, parse_special=True)
    for text, ours, theirs in zip(texts(), found, golden()[kind]["ids"], strict=True):
        assert ours == theirs, (text, spelled(kind, ours), spelled(kind, theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_as_text_are_those_of_transformers_where_it_reads_text(kind):
    found = read(kind, parse_special=False)
    for text, ours, theirs in zip(texts(), found, golden()[kind]["plain_ids"], strict=True):
        assert ours == theirs or (kind in {"t5", "unigram-bytes"} and text in CONTROLS), text


@pytest.mark.parametrize(
    ("kind", "differs"),
    [
        ("llama", []),
        ("gemma", []),
        # of two spellings of one probability, transformers takes another; so do we
        ("t5", ["!!!???...", "\u2581 a sign "]),
        # SentencePiece never finds a byte piece in a text; transformers does, and so do we
        ("unigram-bytes", ["!!!???...", "<unk> and"]),
    ],
)
def test_text_is_what_sentencepiece_makes_of_it(kind, differs):
    found = read(kind, parse_special=False)
    recorded = zip(texts(), found, golden()[kind]["sentencepiece_ids"], strict=True)
    found_differing = [text[:9] for text, ours, theirs in recorded if ours != theirs]
    assert found_differing == differs


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_leads_to_a_control_token(kind):
    keys = metadata(kind)
    control = {i for i, t in enumerate(keys[KEY + "token_type"]) if t == 3}
    ours = Tokenizer.from_gguf(keys)
    for token_id in control:
        name = keys[KEY + "tokens"][token_id]
        for text in (name, f"a{name}b", f" {name} ", name * 3):
            assert control.isdisjoint(
                ours.encode(text, add_special_tokens=False, parse_special=False)
            )
            assert token_id in ours.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_every_text_survives_with_byte_fallback(kind):
    ours = tokenizer(kind)
    for text in texts():
        for parse_special in (True, False):
            ids = ours.encode(text, add_special_tokens=False, parse_special=parse_special)
            if parse_special and kind == "llama" and ours.special_ids & set(ids):
                continue  # text behind a special token gets a space of its own
            found = ours.decode(ids, skip_special_tokens=False)
            # the sign itself is read as the space it stands for
            assert found == text.replace("\u2581", " ")


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("llama", {}, ["<s>", "\u2581x"]),
        ("llama", {"add_bos_token": False}, ["\u2581x"]),
        ("llama", {"add_bos_token": None}, ["<s>", "\u2581x"]),
        ("llama", {"add_eos_token": True}, ["<s>", "\u2581x", "</s>"]),
        ("llama", {"bos_token_id": None, "eos_token_id": None}, ["<s>", "\u2581x"]),
        ("llama", {"add_space_prefix": None}, ["<s>", "\u2581x"]),
        ("llama", {"add_space_prefix": False}, ["<s>", "x"]),
        ("gemma", {}, ["<s>", "x"]),
        ("t5", {}, ["\u2581", "x", "</s>"]),
        ("t5", {"add_eos_token": None}, ["\u2581", "x", "</s>"]),
        ("t5", {"add_eos_token": False, "add_space_prefix": False}, ["x"]),
    ],
)
def test_edges_and_the_space_in_front_follow_the_file(kind, changes, expected):
    found = "".join(spelled(kind, tokenizer(kind, **changes).encode("x")))
    assert found == "".join(expected)


def test_extra_spaces_follow_the_file():
    text = "  a   b  "
    squeezed = "".join(spelled("t5", tokenizer("t5").encode(text)))
    kept = tokenizer("t5", remove_extra_whitespaces=False).encode(text)
    assert squeezed == "\u2581a\u2581b</s>"
    assert "".join(spelled("t5", kept)) == "\u2581\u2581\u2581a\u2581\u2581\u2581b\u2581\u2581</s>"
    squeezed = tokenizer("llama", remove_extra_whitespaces=True).encode(text)
    assert "".join(spelled("llama", squeezed)) == "<s>\u2581a\u2581b"


def test_user_defined_pieces_may_be_spelled_with_spaces():
    """llama.cpp's converter writes them so; the ids are the same."""
    tokens = metadata("gemma")[KEY + "tokens"]
    types = metadata("gemma")[KEY + "token_type"]
    plain = [
        token.replace("\u2581", " ") if kind == 4 else token
        for token, kind in zip(tokens, types, strict=True)
    ]
    assert plain != tokens
    other = read("gemma", parse_special=True, tokens=plain)
    assert other == golden()["gemma"]["ids"]
    ours = tokenizer("gemma", tokens=plain)
    assert ours.decode(ours.encode("a   b\n\nc")) == "a   b\n\nc"
    prefixed = tokenizer("gemma", add_space_prefix=True)
    ids = prefixed.encode("a   b", add_special_tokens=False)
    assert spelled("gemma", ids)[1] == "\u2581" * 3
    assert prefixed.decode(ids) == "a    b"  # what follows a piece has the space in front too


def test_turn_ends_end_a_text_though_the_file_names_one_end():
    ours = tokenizer("gemma")
    tokens = metadata("gemma")[KEY + "tokens"]
    assert ours.eos_ids == {1, tokens.index("<end_of_turn>")}
    assert tokenizer("gemma", eot_token_id=7).eos_ids == ours.eos_ids | {7}


def test_whitespace_behind_a_special_token_of_phi3_is_the_tokens():
    plain = tokenizer("llama")
    phi3 = Tokenizer.from_gguf({**metadata("llama"), "general.architecture": "phi3"})
    text = "[INST]\n  x<s> y"
    assert spelled("llama", plain.encode(text))[:4] == ["<s>", "[INST]", "\u2581", "<0x0A>"]
    assert spelled("llama", phi3.encode(text)) == [
        "<s>", "[INST]", "\u2581x", "<s>", "\u2581\u2581", "y",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"scores": None}, "no tokenizer.ggml.scores"),
        ("llama", {"scores": [0.0]}, "560 tokens, but 1 scores"),
        ("llama", {"scores": ["a"] * 560}, "no finite number"),
        ("llama", {"scores": [float("nan")] * 560}, "no finite number"),
        ("llama", {"unknown_token_id": 560}, "unknown_token_id is 560, but the tokens count"),
        ("llama", {"add_space_prefix": 1}, "add_space_prefix is a int, but a bool"),
        ("llama", {"merges": ["q zz"]}, "the 1 merges do not fit the 560 tokens"),
        ("t5", {"scores": None}, "no tokenizer.ggml.scores"),
        ("t5", {"precompiled_charsmap": [1, 2, 3]}, "precompiled_charsmap, 3 bytes, cannot be"),
    ],
)
def test_broken_metadata_is_named(kind, changes, message):
    with pytest.raises(ModelError, match=message) as caught:
        tokenizer(kind, **changes)
    assert caught.value.hint


def test_merges_of_the_file_come_before_scores():
    tokens = metadata("llama")[KEY + "tokens"]
    assert "th" in tokens
    ours = tokenizer("llama", merges=["t h"], add_space_prefix=False)
    ids = ours.encode("the th", add_special_tokens=False)
    assert spelled("llama", ids) == ["th", "e", "\u2581", "th"]
