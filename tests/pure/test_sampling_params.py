"""What a request may ask for: values in range are taken as they are, others are refused by name."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest

from evenflow.errors import InvalidRequestError
from evenflow.sampling import MAX_SEED, SamplingParams
from evenflow.structured import StructuredOutputs


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("temperature", math.nan, "from 0 to 100"),
        ("temperature", math.inf, "from 0 to 100"),
        ("temperature", -0.1, "from 0 to 100"),
        ("temperature", "1", "from 0 to 100"),
        ("temperature", True, "from 0 to 100"),
        ("top_p", 0, "above 0 to 1"),
        ("top_p", 1.01, "above 0 to 1"),
        ("top_p", math.nan, "above 0 to 1"),
        ("min_p", -0.1, "from 0 to 1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("top_k", -2, "from 0 to"),
        ("top_k", 1.0, "from 0 to"),
        ("max_tokens", 0, "from 1 to"),
        ("max_tokens", True, "from 1 to"),
        ("min_tokens", -1, "from 0 to"),
        ("min_tokens", 17, "at most max_tokens"),
        ("seed", -1, "from 0 to"),
        ("seed", MAX_SEED + 1, "from 0 to"),
        ("priority", 0.5, "whole number"),
        ("stop", [""], "at least one character"),
        ("stop", [b"end"], "at least one character"),
        ("stop", b"end", "takes a list"),
        ("stop", 5, "takes a list"),
        ("stop_token_ids", 5, "takes a list"),
        ("stop_token_ids", "5", "takes a list"),
        ("stop_token_ids", [-1], "from 0 to"),
        ("n", 0, "from 1 to"),
        ("n", 16_385, "from 1 to"),
        ("repetition_penalty", 0, "above 0 to 100"),
        ("repetition_penalty", math.nan, "above 0 to 100"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("logit_bias", [5], "maps token ids"),
        ("logit_bias", {"5": 1}, "whole number"),
        ("logit_bias", {-1: 1}, "from 0 to"),
        ("logit_bias", {5: 100.5}, "from -100 to 100"),
        ("logit_bias", {5: math.nan}, "from -100 to 100"),
        ("bad_words", [""], "at least one character"),
        ("bad_words", [" "], "at least one character"),
        ("bad_words", [7], "at least one character"),
        ("logprobs", -1, "from 0 to"),
        ("logprobs", True, "from 0 to"),
        ("prompt_logprobs", 1.5, "from 0 to"),
        ("structured_outputs", {"regex": "a"}, "StructuredOutputs("),
        ("ignore_eos", "no", "True or False"),
        ("skip_special_tokens", 0, "True or False"),
        ("include_stop_str_in_output", None, "True or False"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(name, value, hint):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.message.startswith(name)
    assert hint in caught.value.hint


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)


def test_spellings_that_mean_the_same():
    assert SamplingParams(stop="end") == SamplingParams(stop=["end"])
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(stop_token_ids=[3]).stop_token_ids == (3,)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"n": 2, "temperature": 0}, "n is 2, but temperature 0"),
        ({"min_tokens": 3}, "min_tokens is 3, but structured_outputs"),
        ({"ignore_eos": True}, "ignore_eos is True, but structured_outputs"),
    ],
)
def test_options_that_contradict_each_other_are_refused(values, said):
    if "structured" in said:
        values = values | {"structured_outputs": StructuredOutputs(regex="a")}
    with pytest.raises(InvalidRequestError, match=said) as caught:
        SamplingParams(**values)
    assert caught.value.hint


def test_parameters_can_be_compared_hashed_copied_and_pickled():
    made = SamplingParams(
        logit_bias={3: 1}, bad_words="no", structured_outputs=StructuredOutputs(json={"a": 1})
    )
    assert made.logit_bias == {3: 1.0}
    assert made.bad_words == ("no",)
    assert replace(made) == made != replace(made, logit_bias={3: 2})
    assert hash(made) == hash(replace(made))
    assert pickle.loads(pickle.dumps(made)) == made
    assert not made.has_penalties
    assert replace(made, frequency_penalty=0.5).has_penalties


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "no constraint"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json": "{"}, "not JSON"),
        ({"json": "[1]"}, "list, not a schema"),
        ({"json": 5}, "int, not a schema"),
        ({"regex": ""}, "regex is ''"),
        ({"grammar": 5}, "grammar is 5"),
        ({"choice": []}, r"choice is \[\]"),
        ({"choice": "red"}, "choice is 'red'"),
        ({"choice": ["a", ""]}, "choice is"),
        ({"json_object": "yes"}, "json_object is 'yes'"),
    ],
)
def test_a_form_that_is_none_is_refused(form, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        StructuredOutputs(**form)
    assert caught.value.hint


def test_a_form_says_what_it_is():
    assert StructuredOutputs(choice=["a", "b"]).given == ("choice", ("a", "b"))
    assert StructuredOutputs(regex="a", json_object=False).given == ("regex", "a")


def test_the_ends_of_the_ranges_are_allowed():
    made = SamplingParams(
        max_tokens=None, min_tokens=99, temperature=100, top_p=1, min_p=1, seed=MAX_SEED
    )
    assert (made.max_tokens, made.seed) == (None, MAX_SEED)
