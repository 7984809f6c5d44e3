"""Several answers to a prompt, penalties and forms, over HTTP with a real forward pass."""

from __future__ import annotations

import asyncio
import json
import re

import openai
import pytest

from helpers.servers import serving, until
from helpers.tiny_server import tiny

ASK = {"model": "letters", "prompt": "abc", "max_tokens": 20, "seed": 3}
MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["age", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def small():
    with serving(tiny()) as served:
        yield served


@pytest.fixture(scope="module")
def client(small):
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_answers_are_numbered_prompt_by_prompt(client, small):
    answer = client.completions.create(**(ASK | {"prompt": ["abc", "xyz"]}), n=3)
    texts = [c.text for c in answer.choices]
    assert [c.index for c in answer.choices] == list(range(6))
    assert len(set(texts)) == 6
    assert answer.usage.completion_tokens == 6 * 20
    one = client.completions.create(**ASK)
    assert texts[0] == one.choices[0].text  # the first answer is the only one's
    assert answer.usage.prompt_tokens == 2 * one.usage.prompt_tokens  # each prompt once
    small.model.wait_idle()


def test_usage_says_what_the_prefix_cache_had(client, small):
    ask = {"model": "letters", "prompt": "a prompt that nobody sent before", "max_tokens": 3}
    first = client.completions.create(**ask).usage
    assert first.prompt_tokens_details.cached_tokens == 0
    *_, last = client.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    size, block = first.prompt_tokens, 4
    cached = last.usage.prompt_tokens_details.cached_tokens
    assert size - block <= cached <= size
    several = client.completions.create(**(ask | {"prompt": [ask["prompt"]] * 2}), n=2).usage
    assert several.prompt_tokens_details.cached_tokens == 2 * cached  # each prompt once
    small.model.wait_idle()


def test_a_stream_interleaves_them(client):
    whole = client.completions.create(**ASK, n=3)
    chunks = list(
        client.completions.create(**ASK, n=3, stream=True, stream_options={"include_usage": True})
    )
    *parts, last = chunks
    assert last.usage == whole.usage
    assert len(parts) == 3 * 20
    order = [c.choices[0].index for c in parts]
    assert order != sorted(order)
    for choice in whole.choices:
        own = [c.choices[0] for c in parts if c.choices[0].index == choice.index]
        assert "".join(c.text for c in own) == choice.text
        assert [c.finish_reason for c in own] == [None] * 19 + ["length"]


def test_a_chat_and_an_event_loop(small):
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{small.url}/v1", api_key="x") as client:
            stream = await client.chat.completions.create(
                model="letters", messages=MESSAGES, max_tokens=8, n=2, stream=True, seed=1
            )
            texts, roles = ["", ""], [0, 0]
            async for chunk in stream:
                (choice,) = chunk.choices
                texts[choice.index] += choice.delta.content
                roles[choice.index] += choice.delta.role is not None
            assert roles == [1, 1]
            return texts

    first, second = asyncio.run(main())
    assert first != second


def test_a_client_that_goes_away_takes_all_answers_with_it(small):
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="x") as client:
        stream = client.completions.create(**(ASK | {"max_tokens": 400}), n=4, stream=True)
        next(iter(stream))
        stream.close()
    until(lambda: small.on_loop(lambda: small.bridge.num_open) == 0)
    small.model.wait_idle()


def test_answers_need_seats():
    """Each is a request of its own."""
    with (
        serving(tiny(max_num_seqs=2), max_num_queued_reqs=1) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**ASK, n=4)
        assert len(client.completions.create(**ASK, n=3).choices) == 3


def test_penalties_bias_and_bad_words_reach_the_sampler(client):
    def text(**more) -> str:
        body = more.pop("extra_body", {})
        return client.completions.create(**(ASK | more), extra_body=body).choices[0].text

    plain = text(temperature=0)
    for changed in (
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 1.9}},
    ):
        assert text(temperature=0, **changed) != plain
    token = (
        client.completions.create(**ASK, logprobs=0, temperature=0).choices[0].logprobs.tokens[0]
    )
    (wanted,) = {i for i in range(256) if small_piece(i) == token} or {None}
    if wanted is not None:
        assert not text(temperature=0, logit_bias={str(wanted): -100}).startswith(token)
    assert text(logit_bias={"65": 100}) == text(logit_bias={"65": 100}, seed=4)
    letter = next(c for c in plain if c.isascii() and c.isalpha())
    assert letter not in text(temperature=0, extra_body={"bad_words": [letter]})


def small_piece(token: int) -> str:
    from evenflow.server.reports import shown
    from helpers.texts import tiny_tokenizer

    return shown(tiny_tokenizer().token_bytes(token))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("form", "check"),
    [
        ({"choice": ["yes", "no"]}, lambda text: text in {"yes", "no"}),
        ({"regex": "[a-c]{3}-[0-9]+;"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]+;", text)),
        ({"json": SCHEMA}, lambda text: set(json.loads(text)) == {"age", "ok"}),
        ({"json": json.dumps(SCHEMA)}, lambda text: set(json.loads(text)) == {"age", "ok"}),
        ({"grammar": 'start: "a" ("b" | "c")+ "d"'}, lambda text: re.fullmatch("a[bc]+d", text)),
    ],
)
def test_forms(client, form, check, streaming):
    options = ASK | {"max_tokens": 200}
    body = {"structured_outputs": form}
    answer = client.completions.create(**options, extra_body=body)
    assert answer.choices[0].finish_reason == "stop"
    assert check(answer.choices[0].text)
    if streaming:
        chunks = client.completions.create(**options, extra_body=body, stream=True)
        assert "".join(c.choices[0].text for c in chunks) == answer.choices[0].text


def test_the_response_format_of_a_chat(client):
    def content(form) -> str:
        answer = client.chat.completions.create(
            model="letters", messages=MESSAGES, seed=2, response_format=form
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content

    named = {"name": "person", "schema": SCHEMA, "strict": True}
    assert set(json.loads(content({"type": "json_schema", "json_schema": named}))) == {"age", "ok"}


def test_any_object(client):
    answer = client.chat.completions.create(
        model="letters",
        messages=MESSAGES,
        seed=2,
        response_format={"type": "json_object"},
        logit_bias={str(b): 30 for b in b"}"},  # random weights would hardly come to an end
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra_body": {"structured_outputs": {"regex": "(a"}}}, "structured_outputs"),
        (
            {"extra_body": {"structured_outputs": {"grammar": "start: nowhere"}}},
            "structured_outputs",
        ),
        ({"extra_body": {"structured_outputs": {"json": "{"}}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"allOf": [{"const": 1}, {"const": 2}]}},
                }
            },
            "response_format",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a"}, "ignore_eos": True}},
            "ignore_eos",
        ),
    ],
)
def test_a_form_that_cannot_be_kept_is_refused(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="letters", messages=MESSAGES, max_tokens=5, **fields)
    error = caught.value.response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
