"""Masks from schemas and grammars: what may follow, over a vocabulary of bytes and a few merges."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.errors import InvalidRequestError, ModelError
from evenflow.structured import StructuredOutputs
from helpers.texts import EOS, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def masks(**form):
    return TOKENIZER.compile(StructuredOutputs(**form))


def allowed(source, generated=()) -> set[int]:
    bits = np.unpackbits(np.frombuffer(source.allowed(generated), np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def spell(source, seed: int, most: int = 200) -> tuple[list[int], bool]:
    """Draw allowed tokens, ends preferred, until one ends the answer."""
    rng, answer = np.random.default_rng(seed), []
    while len(answer) < most:
        choices = sorted(allowed(source, answer))
        assert choices, "nothing may follow, and the answer has not ended"
        token = EOS if EOS in choices else int(rng.choice(choices))
        if token == EOS:
            return answer, True
        answer.append(token)
    return answer, False


def test_an_end_is_allowed_exactly_where_the_answer_is_complete():
    source = masks(regex="(in|the)g?")
    assert allowed(source) == {
        *ids("i"),
        *ids("in"),
        *ids("ing"),
        *ids("t"),
        *ids("th"),
        *ids("the"),
    }
    assert allowed(source, ids("th")) == set(ids("e"))
    assert allowed(source, ids("the")) == {*ids("g"), EOS}
    assert allowed(source, ids("ing")) == {EOS}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_drawn_has_the_form(seed):
    answer, done = spell(masks(choice=["red", "green", 'blue ☃ "x" \\ 💙']), seed)
    assert done
    assert TOKENIZER.decode(answer, continues=True) in {"red", "green", 'blue ☃ "x" \\ 💙'}
    answer, done = spell(masks(grammar='start: "a" b+ "c"\nb: /[0-9]/'), seed)
    text = TOKENIZER.decode(answer)
    assert done
    assert re.fullmatch("a[0-9]+c", text)
    answer, done = spell(masks(grammar='root ::= ("x" | "y") "z"'), seed)
    assert done
    assert TOKENIZER.decode(answer) in {"xz", "yz"}
    answer, done = spell(masks(json={"enum": [1, "two", None]}), seed)
    assert done
    assert json.loads(TOKENIZER.decode(answer)) in [1, "two", None]


def test_a_schema_lets_its_values_through_and_no_others():
    source = masks(json=OBJECT)
    text = json.dumps({"name": "Ann", "age": 41})
    answer = ids(text)
    for at, token in enumerate(answer):
        assert token in allowed(source, answer[:at])
    assert EOS in allowed(source, answer)
    assert not allowed(source, ids('{"name": ')) & set(ids("4"))
    same = masks(json=json.dumps(OBJECT))
    assert allowed(same, answer[:3]) == allowed(source, answer[:3])
    assert ids("[")[0] not in allowed(masks(json_object=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text("abc", max_size=6), min_size=1, max_size=8))
def test_a_mask_depends_on_the_answer_alone(answers):
    # a draft that was rejected, a preemption: the source is asked in any order
    source = masks(regex="(a|b)*c?")
    for text in answers:
        fresh = masks(regex="(a|b)*c?")
        assert source.allowed(ids(text)) == fresh.allowed(ids(text))


def test_a_copy_begins_anew_and_goes_its_own_way():
    source = masks(regex="(in|the)g?")
    before = source.allowed([])
    source.allowed(ids("the"))
    other = source.copy()
    assert other.allowed([]) == before
    other.allowed(ids("in"))
    assert allowed(source, ids("the")) == {*ids("g"), EOS}


def test_special_tokens_are_not_text():
    everything = masks(regex="(.|\n)*")
    assert TOKENIZER.special_ids - {EOS} == TOKENIZER.special_ids - allowed(everything)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, r"minimum \(5\) is greater"),
        ({"json": {"enum": []}}, "Unsatisfiable"),
        ({"json": {"type": "nope"}}, "nope"),
        ({"json": {"$ref": "#/$defs/x"}}, "does not exist"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"type": "string", "pattern": "("}}, "unclosed group"),
        ({"json": {"const": {1, 2}}}, "set cannot be written as JSON"),
        ({"regex": "("}, "unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "no text has this form"),
        ({"grammar": 'start: "a" b'}, 'unknown name: "b"'),
        ({"grammar": 'nope: "a"'}, "no start rule"),
        ({"grammar": 'root ::= ("a"'}, "GBNF"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_fact(form, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        masks(**form)
    assert caught.value.message.startswith(f"structured_outputs.{next(iter(form))} cannot be used")
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_model_without_an_end_is_refused():
    endless = tiny_tokenizer(eos_token_id=None)
    assert not endless.eos_ids
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        endless.compile(StructuredOutputs(regex="a"))
