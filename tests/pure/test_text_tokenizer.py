"""A tokenizer from GGUF metadata: ids, special tokens, and every way the metadata can be wrong."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evenflow.errors import InvalidRequestError, ModelError
from evenflow.text.tokenizer import Tokenizer
from helpers.texts import BOS, EOS, TOOL, tiny_metadata, tiny_tokenizer


def test_merges_are_applied_and_undone():
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("the thing")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"the", b" ", b"th", b"ing"]
    assert tokenizer.decode(ids) == "the thing"


def test_facts_of_the_file():
    tokenizer = tiny_tokenizer(chat_template="hello")
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (266, BOS)
    assert tokenizer.eos_ids == {EOS}
    assert tokenizer.special_ids == {BOS, EOS}
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template == "hello"


def test_every_end_that_the_file_states_is_an_end():
    assert tiny_tokenizer(eot_token_id=TOOL, eom_token_id=7).eos_ids == {EOS, TOOL, 7}


def test_ends_are_special_even_without_token_types():
    tokenizer = tiny_tokenizer(token_type=None)
    assert tokenizer.special_ids == {BOS, EOS}
    assert tokenizer.encode("</s>") == [EOS]


def test_special_tokens_in_a_text_are_read_or_spelled_out():
    tokenizer = tiny_tokenizer()
    assert tokenizer.encode("a<s>b</s>") == [97, BOS, 98, EOS]
    plain = tokenizer.encode("a<s>b</s>", parse_special=False)
    assert tokenizer.special_ids.isdisjoint(plain)
    assert tokenizer.decode(plain) == "a<s>b</s>"
    assert tokenizer.encode("a<s>b</s>") == [97, BOS, 98, EOS]  # the switch is no state


def test_an_added_token_that_is_not_special_stays_in_the_text():
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("a<tool x>b<s>")
    assert ids == [97, TOOL, 98, BOS]
    assert tokenizer.decode(ids) == "a<tool x>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<tool x>b<s>"


@pytest.mark.parametrize(
    ("changes", "edges"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([BOS], [])),
        ({"add_eos_token": True}, ([], [EOS])),
        ({"add_bos_token": True, "add_eos_token": True}, ([BOS], [EOS])),
        ({"pre": "llama-bpe"}, ([BOS], [])),
        ({"pre": "llama-bpe", "add_bos_token": False}, ([], [])),
    ],
)
def test_edges_are_added_as_the_file_says(changes, edges):
    tokenizer = tiny_tokenizer(**changes)
    before, after = edges
    assert tokenizer.encode("hi") == [*before, 104, 105, *after]
    assert tokenizer.encode("") == [*before, *after]
    assert tokenizer.encode("hi", parse_special=False) == [*before, 104, 105, *after]
    assert tokenizer.encode("hi", add_special_tokens=False) == [104, 105]


def test_digits_are_cut_apart_where_the_model_says_so():
    tokens = [*tiny_metadata()["tokenizer.ggml.tokens"][:-1], "12"]
    changes = {"tokens": tokens, "merges": ["1 2"], "token_type": None}
    assert tiny_tokenizer(pre="gpt-2", **changes).encode("12") == [265]
    assert tiny_tokenizer(pre="smollm", **changes).encode("12") == [49, 50]


def test_a_word_that_is_a_token_needs_no_merge_where_the_model_says_so():
    changes = {"merges": [], "add_bos_token": False}
    assert tiny_tokenizer(pre="llama-bpe", **changes).encode("the") == [257]
    assert tiny_tokenizer(pre="gpt-2", **changes).encode("the") == [116, 104, 101]


def test_an_added_token_is_matched_letter_by_letter_before_the_text_is_composed():
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    tokenizer = tiny_tokenizer(pre="qwen2", tokens=[*tokens[:-1], "<e\u0301>"])
    assert tokenizer.encode("<e\u0301>") == [TOOL]
    assert tokenizer.encode("<\u00e9>") == [60, *"\u00e9".encode(), 62]


def test_bos_of_a_rendered_chat_is_not_doubled():
    tokenizer = tiny_tokenizer(add_bos_token=True)
    assert tokenizer.encode_chat("<s>hi") == [BOS, 104, 105]


def test_broken_bytes_become_replacement_characters():
    tokenizer = tiny_tokenizer()
    e_acute = list("é".encode())
    assert tokenizer.decode(e_acute) == "é"
    assert tokenizer.decode(e_acute[:1]) == "\ufffd"
    assert tokenizer.decode([*e_acute, e_acute[0], 97]) == "é\ufffda"


def test_ids_past_the_vocabulary_stand_for_nothing():
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode([97, 266, 10**9, 98]) == "ab"
    with pytest.raises(InvalidRequestError, match="-1, below 0"):
        tokenizer.decode([-1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab\ud800c", r"character 2 of the 4 .* lone surrogate '\\ud800'"),
        (b"bytes", "the prompt is a bytes"),
        (None, "the prompt is a NoneType"),
        (("a", "b"), "the prompt is a tuple"),
    ],
)
def test_a_text_that_is_none_is_refused(text, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        tiny_tokenizer().encode(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "kind 'bert'; known are gpt2, llama, t5"),
        ({"model": None}, "no tokenizer.ggml.model"),
        ({"pre": None}, "no tokenizer.ggml.pre"),
        ({"pre": "mystery"}, "'mystery', which is not known"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is a str, but a list belongs there"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"merges": ["q zz"]}, "the 1 merges do not fit the 266 tokens"),
        ({"merges": ["qz"]}, "the 1 merges do not fit the 266 tokens"),
        ({"token_type": [1, 1]}, "266 tokens, but 2 token types"),
        ({"eos_token_id": 266}, "eos_token_id is 266, but the tokens count 0 to 265"),
        ({"bos_token_id": True}, "bos_token_id is a bool, but a int belongs there"),
        ({"bos_token_id": None, "add_bos_token": True}, "add_bos_token is set, but"),
        ({"eos_token_id": None, "add_eos_token": True}, "add_eos_token is set, but"),
        ({"chat_template": 7}, "tokenizer.chat_template is a int"),
    ],
)
def test_broken_metadata_is_named(changes, message):
    with pytest.raises(ModelError, match=message) as caught:
        Tokenizer.from_gguf(tiny_metadata(**changes))
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_threads_share_a_tokenizer():
    tokenizer = tiny_tokenizer()
    texts = [f"the <s> thing {i}" for i in range(50)]
    alone = [(tokenizer.encode(t), tokenizer.encode(t, parse_special=False)) for t in texts]
    shared = tiny_tokenizer()
    with ThreadPoolExecutor(2) as pool:
        read = pool.map(shared.encode, texts)
        spelled = pool.map(lambda text: shared.encode(text, parse_special=False), texts)
        assert list(zip(read, spelled, strict=True)) == alone


@pytest.mark.parametrize("parse_special", [True, False])
def test_other_threads_run_while_a_long_text_is_read(parse_special):
    """A stream must not stand still for another request's prompt, so the GIL is let go."""
    tokenizer = tiny_tokenizer()
    text = "the thing in the ring " * 20_000
    tokenizer.encode("", parse_special=parse_special)
    done, turns = False, 0

    def work():
        nonlocal turns
        while not done:
            turns += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    try:
        sys.setswitchinterval(1000)  # from here on a thread gives way only of its own accord
        thread.start()
        gained = []
        for _ in range(5):
            before = turns
            tokenizer.encode(text, parse_special=parse_special)
            gained.append(turns - before)
    finally:
        done = True
        sys.setswitchinterval(interval)
        thread.join()
    assert max(gained) > 0
