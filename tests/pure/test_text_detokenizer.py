"""Text from tokens as they come: characters, stop strings, ends."""

from __future__ import annotations

import pytest

from evenflow.errors import InvalidRequestError
from evenflow.text.detokenizer import Detokenizer
from evenflow.text.tokenizer import Tokenizer
from helpers.texts import BOS, EOS, sentencepiece_json, tiny_tokenizer, write_folder


def _push(detokenizer, data: bytes):
    """Push the one-byte tokens of `data`; the texts, up to the one that stopped."""
    texts = []
    for byte in data:
        text, stopped = detokenizer.push(byte)
        texts.append(text)
        if stopped:
            break
    return texts


def test_a_character_is_never_cut():
    detokenizer = Detokenizer(tiny_tokenizer())
    assert _push(detokenizer, "aé😀".encode()) == ["a", "", "é", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_broken_bytes_become_replacement_characters():
    detokenizer = Detokenizer(tiny_tokenizer())
    assert _push(detokenizer, b"\xe6\x97a\xff") == ["", "", "\ufffda", "\ufffd"]
    assert _push(detokenizer, b"\xe6\x97") == ["", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_stop_string_is_found_across_tokens():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["END"])
    assert _push(detokenizer, b"aEENDx") == ["a", "", "E", "", ""]
    assert detokenizer.stopped_by == "END"
    assert detokenizer.push(97) == ("", True)  # already under way when the stop was found
    assert detokenizer.flush() == ""


def test_a_stop_string_inside_one_token():
    tokenizer = tiny_tokenizer()
    (the,) = tokenizer.encode("the")
    assert Detokenizer(tokenizer, stop=["h"]).push(the) == ("t", True)
    kept = Detokenizer(tokenizer, stop=["h"], include_stop_str_in_output=True)
    assert kept.push(the) == ("th", True)


def test_what_only_looked_like_a_stop_string_is_given_back():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["abac", "ax"])
    assert _push(detokenizer, b"abababz") == ["", "", "", "ab", "", "ab", "abz"]
    assert _push(detokenizer, b"aba") == ["", "", ""]
    assert detokenizer.flush() == "aba"
    assert detokenizer.stopped_by is None


def test_an_included_stop_string_holds_nothing_back():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["END"], include_stop_str_in_output=True)
    assert _push(detokenizer, b"aENDx") == ["a", "E", "N", "D"]
    assert detokenizer.stopped_by == "END"


@pytest.mark.parametrize(
    ("stop", "found", "text"),
    [
        (["bcd", "abcdef"], "bcd", "xa"),  # completed first wins over begun first
        (["cd", "bcd"], "bcd", "xa"),  # completed together: the longest
        (["bcd", "cd"], "bcd", "xa"),  # in whatever order they are listed
        (["zz", "a"], "a", "x"),
    ],
)
def test_which_stop_string_wins(stop, found, text):
    detokenizer = Detokenizer(tiny_tokenizer(), stop=stop)
    assert "".join(_push(detokenizer, b"xabcdef")) == text
    assert detokenizer.stopped_by == found


def test_a_stop_string_of_several_bytes_a_character():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["日本"])
    assert "".join(_push(detokenizer, "x日日本y".encode())) == "x日"
    assert detokenizer.stopped_by == "日本"


def test_stop_strings_wait_for_min_tokens():
    early = Detokenizer(tiny_tokenizer(), stop=["ab"], min_tokens=2)
    # the one that token 2 completes is text, and nothing of it is held back
    assert _push(early, b"abcab") == ["", "ab", "c", "", ""]
    assert early.stopped_by == "ab"
    late = Detokenizer(tiny_tokenizer(), stop=["ab"], min_tokens=1)
    assert _push(late, b"ab") == ["", ""]  # begun before, completed after
    assert late.stopped_by == "ab"


def test_special_tokens_are_left_out_but_counted():
    tokenizer = tiny_tokenizer()
    detokenizer = Detokenizer(tokenizer, stop=["b"], min_tokens=2)
    assert [detokenizer.push(i) for i in (BOS, 97, 98)] == [("", False), ("a", False), ("", True)]
    shown = Detokenizer(tokenizer, skip_special_tokens=False)
    assert [shown.push(i)[0] for i in (97, EOS)] == ["a", "</s>"]


def test_a_special_token_can_be_a_stop_string_when_shown():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["</s>"], skip_special_tokens=False)
    assert [detokenizer.push(i) for i in (97, EOS)] == [("a", False), ("", True)]


def test_the_flush_can_complete_a_stop_string():
    detokenizer = Detokenizer(tiny_tokenizer(), stop=["a\ufffd"])
    assert _push(detokenizer, b"xa\xe6") == ["x", "", ""]
    assert detokenizer.flush() == ""
    assert detokenizer.stopped_by == "a\ufffd"


def test_a_leading_space_continues_the_prompt(tmp_path):
    write_folder(tmp_path, sentencepiece_json(metaspace=False))
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = tokenizer.encode("ab é😀")
    detokenizer = Detokenizer(tokenizer)
    texts = [detokenizer.push(i)[0] for i in ids]
    assert texts == [" ab", " ", "é", "", "", "", "😀"]


def test_a_negative_id_is_refused():
    with pytest.raises(InvalidRequestError, match="-1, below 0"):
        Detokenizer(tiny_tokenizer()).push(-1)
