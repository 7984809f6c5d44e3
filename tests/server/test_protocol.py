"""Bodies: whatever comes is either a request or an error that names a field."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.errors import InvalidRequestError
from evenflow.sampling import SamplingParams
from evenflow.server.protocol import ChatRequest, CompletionRequest
from evenflow.server.reading import FieldError, UnsupportedFieldError, parse
from evenflow.server.replies import Head, Messages, message, plain_choice, usage, whole
from evenflow.structured import StructuredOutputs

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*CompletionRequest.model_fields, "unknown", ""])
CHAT = Head("chat", "chatcmpl-1", 7, "m")
TEXT = Head("text", "cmpl-1", 7, "m")


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_a_body_is_a_request_or_names_what_is_wrong(fields):
    body = json.dumps({"prompt": "x"} | fields).encode()
    request, error = attempt(lambda: parse(CompletionRequest, body))
    if error is not None:
        assert error.hint
        if error.param is not None:
            first = error.param.partition(".")[0]
            assert first in fields
            assert first in error.message
        return
    params, error = attempt(lambda: request.sampling(16))
    assert error.hint if error else isinstance(params, SamplingParams)


def attempt(call):
    """What comes of it: a value, or the error that it is allowed to raise."""
    try:
        return call(), None
    except InvalidRequestError as error:
        return None, error


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(body):
    with pytest.raises(FieldError):
        parse(ChatRequest, body)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_tokens": 16}),
        ({"max_tokens": 5, "temperature": 0, "top_k": -1}, {"max_tokens": 5, "temperature": 0}),
        ({"stop": "a"}, {"max_tokens": 16, "stop": ("a",)}),
        ({"stop": ["a", "b"], "seed": 3}, {"max_tokens": 16, "stop": ("a", "b"), "seed": 3}),
        ({"stop": None, "top_p": None}, {"max_tokens": 16}),
        (
            {
                "min_p": 0.1,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": [4],
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "priority": -3,
            },
            {
                "max_tokens": 16,
                "min_p": 0.1,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": (4,),
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "priority": -3,
            },
        ),
        (
            {
                "n": 3,
                "best_of": 3,
                "presence_penalty": 1,
                "frequency_penalty": -0.5,
                "repetition_penalty": 1.2,
                "logit_bias": {"7": -100, "8": 2.5},
                "bad_words": ["x y"],
                "logprobs": 2,
                "prompt_logprobs": 1,
                "structured_outputs": {"choice": ["a", "b"]},
            },
            {
                "max_tokens": 16,
                "n": 3,
                "presence_penalty": 1.0,
                "frequency_penalty": -0.5,
                "repetition_penalty": 1.2,
                "logit_bias": {7: -100.0, 8: 2.5},
                "bad_words": ("x y",),
                "logprobs": 2,
                "prompt_logprobs": 1,
                "structured_outputs": StructuredOutputs(choice=("a", "b")),
            },
        ),
        ({"echo": True, "logprobs": 2}, {"max_tokens": 16, "logprobs": 2, "prompt_logprobs": 2}),
        (
            {"echo": True, "logprobs": 2, "prompt_logprobs": 4},
            {"max_tokens": 16, "logprobs": 2, "prompt_logprobs": 4},
        ),
        ({"response_format": {"type": "text"}}, {"max_tokens": 16}),
        (
            {"response_format": {"type": "json_object"}},
            {"max_tokens": 16, "structured_outputs": StructuredOutputs(json_object=True)},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            {"max_tokens": 16, "structured_outputs": StructuredOutputs(json={"a": 1})},
        ),
    ],
)
def test_every_sampling_field_reaches_the_engine(fields, expected):
    request = parse(CompletionRequest, json.dumps({"prompt": "x"} | fields).encode())
    assert request.sampling(16) == SamplingParams(**expected)


@pytest.mark.parametrize("value", [True, "1", 1.5, [1], 2])
def test_a_neutral_value_is_exactly_that(value):
    with pytest.raises(UnsupportedFieldError, match="length_penalty is"):
        parse(CompletionRequest, json.dumps({"prompt": "x", "length_penalty": value}).encode())


@pytest.mark.parametrize("name", ["json", "regex", "choice", "grammar"])
def test_the_older_spelling_of_a_form_is_told_the_newer_one(name):
    with pytest.raises(UnsupportedFieldError, match=f"guided_{name} is") as caught:
        parse(CompletionRequest, json.dumps({"prompt": "x", f"guided_{name}": "a"}).encode())
    assert f'structured_outputs, an object with "{name}"' in caught.value.hint


def chat(**fields) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "x"}]} | fields
    return parse(ChatRequest, json.dumps(body).encode())


def test_the_two_names_of_max_tokens():
    assert chat(max_completion_tokens=5).sampling(None).max_tokens == 5
    assert chat(max_tokens=5).sampling(None).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=5).sampling(None).max_tokens == 5
    assert chat().sampling(None).max_tokens is None
    with pytest.raises(
        InvalidRequestError, match="max_tokens is 5, but max_completion_tokens is 6"
    ):
        chat(max_tokens=5, max_completion_tokens=6).check()


def test_stream_options_without_a_stream_have_no_effect_and_are_refused():
    with pytest.raises(InvalidRequestError, match="stream is not true"):
        chat(stream_options={"include_usage": True}).check()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXTS, min_size=1, max_size=4), st.booleans(), st.sampled_from([CHAT, TEXT]))
def test_messages_built_by_hand_are_what_a_library_would_write(texts, with_usage, head):
    messages = Messages(head, 2, with_usage=with_usage)
    for number, text in enumerate(texts):
        finish = "length" if number == len(texts) - 1 else None
        counts = usage(3, number, 1) if with_usage and finish else None
        raw = messages.write(text, finish, counts)
        assert raw.startswith(b"data: ")
        assert raw.endswith(b"\n\n")
        assert raw.count(b"\n") == 2  # a line break in a text must not end the message
        choice: dict = {"index": 2, "logprobs": None, "finish_reason": finish}
        if head is CHAT:
            role = {} if number else {"role": "assistant"}
            choice["delta"] = role | {"content": text}
        else:
            choice["text"] = text
        name = "chat.completion.chunk" if head is CHAT else "text_completion"
        expected = {"id": head.id, "object": name, "created": 7, "model": "m", "choices": [choice]}
        if with_usage:
            expected["usage"] = counts
        assert orjson.loads(raw[6:]) == expected
        again = message(head, choice, counts, with_usage=with_usage)
        assert orjson.loads(again[6:]) == expected


def test_a_whole_answer():
    made = [plain_choice(CHAT, 0, "a", "stop"), plain_choice(CHAT, 1, "b", "length")]
    answer = orjson.loads(whole(CHAT, made, usage(4, 5, 0), {"more": 1}))
    assert answer["more"] == 1
    assert [c["message"]["content"] for c in answer["choices"]] == ["a", "b"]
    assert [c["finish_reason"] for c in answer["choices"]] == ["stop", "length"]
    assert answer["usage"]["total_tokens"] == 9
