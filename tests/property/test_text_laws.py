"""Laws of text: nothing is lost, nothing comes too early, and cuts do not matter."""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.text.detokenizer import Detokenizer
from evenflow.text.stops import StopMatcher
from evenflow.text.tokenizer import Tokenizer
from helpers.texts import sentencepiece_json, tiny_tokenizer, write_folder


@cache
def _tokenizer(kind: str) -> Tokenizer:
    if kind == "byte level":
        return tiny_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        source = sentencepiece_json(metaspace=kind == "metaspace")
        return Tokenizer.from_folder(write_folder(Path(folder), source))


# Random bytes hardly ever spell a character, so runs that do are mixed in; in the tiny vocabulary
# the id of a byte is its value, in SentencePiece's it is 3 more.
def _ids(kind):
    shift = 0 if kind == "byte level" else 3
    spelled = st.text(max_size=15).map(lambda text: [b + shift for b in text.encode()])
    cut = st.tuples(spelled, st.integers(0, 3)).map(lambda case: case[0][case[1] :])
    anything = st.lists(st.integers(0, 280), max_size=15)
    runs = st.lists(st.one_of(anything, spelled, cut), max_size=6)
    return runs.map(lambda found: [i for run in found for i in run])


kinds = st.sampled_from(["byte level", "metaspace", "replace"])
outputs = kinds.flatmap(lambda kind: st.tuples(st.just(kind), _ids(kind)))
letters = st.text(alphabet="ab\ufffd日", max_size=40)
stop_lists = st.lists(
    st.text(alphabet="ab\ufffd日", min_size=1, max_size=5), min_size=1, max_size=4
)


def _first_stop(text, stop, after=0):
    """By definition: the first character that completes a string, and the longest it completes."""
    for end in range(after + 1, len(text) + 1):
        completed = [s for s in stop if text[:end].endswith(s)]
        if completed:
            return end, max(completed, key=len)
    return None


def _could_begin(text, stop):
    """Length of the longest end of the text that begins a stop string without completing it."""
    starts = {s[:size] for s in stop for size in range(1, len(s))}
    return max((n for n in range(1, len(text) + 1) if text[len(text) - n :] in starts), default=0)


@given(outputs, st.booleans())
def test_pushes_and_flush_are_the_decoded_text(output, skip):
    kind, ids = output
    tokenizer = _tokenizer(kind)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    texts = [detokenizer.push(i)[0] for i in ids]
    whole = "".join(texts) + detokenizer.flush()
    assert whole == tokenizer.decode(ids, skip_special_tokens=skip, continues=True)


@given(outputs)
@example(("metaspace", [0xED + 3, 0xA0 + 3]))
def test_what_was_pushed_is_never_taken_back(output):
    """Each text so far begins the text of every longer output: no half character came out."""
    kind, ids = output
    tokenizer = _tokenizer(kind)
    detokenizer = Detokenizer(tokenizer)
    whole = tokenizer.decode(ids, continues=True)
    so_far = ""
    for count, token_id in enumerate(ids, 1):
        so_far += detokenizer.push(token_id)[0]
        assert whole.startswith(so_far)
        # late by one unfinished character at most; the codec also waits for the third byte of a
        # lone surrogate (ED A0 ..), whose first two are two broken characters if nothing follows
        assert len(tokenizer.decode(ids[:count], continues=True)) - len(so_far) <= 2


@given(outputs, stop_lists, st.booleans(), st.integers(0, 20))
def test_text_ends_at_the_stop_string(output, stop, include, min_tokens):
    kind, ids = output
    tokenizer = _tokenizer(kind)
    plain = Detokenizer(tokenizer)
    pieces = [plain.push(i)[0] for i in ids] + [plain.flush()]
    whole = "".join(pieces)
    # the flush belongs to the last token
    unarmed = pieces if len(ids) <= min_tokens else pieces[:min_tokens]
    found = _first_stop(whole, stop, after=len("".join(unarmed)))

    detokenizer = Detokenizer(
        tokenizer, stop=stop, include_stop_str_in_output=include, min_tokens=min_tokens
    )
    text = "".join([detokenizer.push(i)[0] for i in ids]) + detokenizer.flush()
    if found is None:
        assert (text, detokenizer.stopped_by) == (whole, None)
    else:
        end, winner = found
        assert detokenizer.stopped_by == winner
        assert text == whole[: end if include else end - len(winner)]


@given(letters, stop_lists, st.sets(st.integers(0, 40)), st.booleans())
def test_cuts_do_not_matter_and_no_more_is_held_than_must_be(text, stop, cuts, include):
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    found = _first_stop(text, stop)
    matcher = StopMatcher(stop, include=include)
    out = ""
    for start, end in pairwise(edges):
        piece, winner = matcher.feed(text[start:end], armed=True)
        out += piece
        if winner:
            assert found is not None
            assert (found[1], start < found[0] <= end) == (winner, True)
            assert out == text[: found[0] if include else found[0] - len(winner)]
            return
        held = 0 if include else _could_begin(text[:end], stop)
        assert out == text[: end - held]
    assert found is None
    assert out + matcher.rest() == text


@given(st.text(), st.booleans())
def test_encoding_loses_nothing(text, parse_special):
    tokenizer = _tokenizer("byte level")
    ids = tokenizer.encode(text, parse_special=parse_special)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


@given(st.lists(st.integers(0, 262), max_size=40))
def test_decoding_is_the_librarys(ids):
    tokenizer = _tokenizer("byte level")
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)
