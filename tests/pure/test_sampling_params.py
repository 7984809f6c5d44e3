"""What a request may ask for: values in range are taken as they are, others are refused by name."""

from __future__ import annotations

import math

import pytest

from evenflow.errors import InvalidRequestError
from evenflow.sampling import MAX_SEED, SamplingParams


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


def test_the_ends_of_the_ranges_are_allowed():
    made = SamplingParams(
        max_tokens=None, min_tokens=99, temperature=100, top_p=1, min_p=1, seed=MAX_SEED
    )
    assert (made.max_tokens, made.seed) == (None, MAX_SEED)
