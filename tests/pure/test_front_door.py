"""What a Python caller may hand in, and what is refused, by an `LLM` of letters."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.errors import EngineClosedError, InvalidRequestError, ModelError
from evenflow.llm import LLM
from evenflow.sampling import SamplingParams
from helpers.letters import make_llm

FIVE = SamplingParams(max_tokens=5, ignore_eos=True)


@pytest.fixture
def llm():
    with make_llm() as made:
        yield made


def test_ids_may_be_numpys(llm):
    (expected,) = llm.generate([[1, 2, 3]], FIVE)
    ids = np.array([1, 2, 3])
    for prompts in (ids, list(ids), [ids], np.array([ids]), (1, 2, 3), [range(1, 4)]):
        assert llm.generate(prompts, FIVE) == [expected]
    assert {type(i) for i in expected.prompt_token_ids} == {int}
    assert "".join(e.text for e in llm.stream(ids, FIVE)) == expected.text


@pytest.mark.parametrize(
    "prompts", [None, 5, b"abc", {"prompt": "a"}, ["a", None], [b"abc"], [3.5]]
)
def test_what_is_no_prompt_is_refused(llm, prompts):
    with pytest.raises(InvalidRequestError, match="a prompt is a"):
        llm.generate(prompts, FIVE)
    assert llm.generate("a", FIVE)[0].finish_reason == "length"


@pytest.mark.parametrize("token", [1.0, True, "a", -1, 1000])
def test_what_is_no_token_is_refused(llm, token):
    with pytest.raises(InvalidRequestError, match="is not in the vocabulary"):
        llm.generate([[1, token]], FIVE)


@pytest.mark.parametrize("params", [{"temperature": 0}, 5, [{"temperature": 0}], [None, 3]])
def test_what_are_no_params_is_refused(llm, params):
    prompts = ["a"] * (len(params) if isinstance(params, list) else 1)
    with pytest.raises(InvalidRequestError):
        llm.generate(prompts, params)
    if not isinstance(params, list):
        with pytest.raises(InvalidRequestError, match="sampling parameters are a"):
            llm.stream("a", params)


def test_a_closed_llm_takes_nothing(llm):
    stream = llm.stream("a", SamplingParams(max_tokens=100, ignore_eos=True))
    llm.close()
    llm.close()
    assert list(stream)[-1].finish_reason in {"abort", "length"}
    for call in (llm.generate, llm.stream, llm.trace):
        with pytest.raises(EngineClosedError, match="closed"):
            call("a")


@pytest.mark.parametrize("model", ["", 5])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ModelError, match="is no model"):
        LLM(model)
