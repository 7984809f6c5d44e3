"""The real client of OpenAI: sync, async, streams, errors."""

from __future__ import annotations

import asyncio

import openai
import pytest

FUNCTION = {"type": "function", "function": {"name": "f"}}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_models(client):
    (card,) = client.models.list().data
    assert card.id == "letters"
    assert client.models.retrieve("letters").id == "letters"
    with pytest.raises(openai.NotFoundError, match="'other'"):
        client.models.retrieve("other")


def test_a_chat(client):
    answer = client.chat.completions.create(model="letters", messages=MESSAGES, max_tokens=7)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert len(choice.message.content) == 7
    assert choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == len("user: hello")
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")


def test_a_stream_says_what_the_whole_answer_says(client):
    options = {"model": "letters", "messages": MESSAGES, "max_tokens": 20, "seed": 4}
    whole = client.chat.completions.create(**options)
    with client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    *texts, last = chunks
    assert "".join(c.choices[0].delta.content for c in texts) == whole.choices[0].message.content
    assert len(texts) == 20
    assert [c.choices[0].delta.role for c in texts] == ["assistant"] + [None] * 19
    assert [c.choices[0].finish_reason for c in texts] == [None] * 19 + ["length"]
    assert last.choices == []
    assert last.usage == whole.usage
    assert len({c.id for c in chunks}) == 1


def test_a_stop_string(client):
    options = {"model": "letters", "prompt": "abc", "max_tokens": 50}
    text = client.completions.create(**options).choices[0].text
    stop = text[5:8]
    answer = client.completions.create(**options, stop=[stop])
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_prompts_of_every_shape(client):
    def texts(prompt):
        answer = client.completions.create(
            model="letters", prompt=prompt, max_tokens=3, extra_body={"add_special_tokens": False}
        )
        assert [c.index for c in answer.choices] == list(range(len(answer.choices)))
        return [c.text for c in answer.choices]

    ids = [1 + ord(c) % 26 for c in "abc"]
    (one,) = texts("abc")
    (other,) = texts("xyz")
    assert one != other
    assert texts(ids) == [one]
    assert texts(["abc", "xyz"]) == [one, other]
    assert texts([ids, ids]) == [one, one]
    assert texts([ids, "xyz"]) == [one, other]


def test_echo_begins_with_the_prompt(client):
    options = {"model": "letters", "prompt": ["abc", "de"], "max_tokens": 3, "echo": True}
    answer = client.completions.create(**options)
    assert [c.text[:-3] for c in answer.choices] == ["abc", "de"]
    texts = ["", ""]
    for chunk in client.completions.create(**options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [c.text for c in answer.choices]


def test_running_usage(client):
    stream = client.completions.create(
        model="letters",
        prompt="abc",
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert [c.usage.completion_tokens for c in stream] == [1, 2, 3, 4, 4]


def test_many_at_once_from_an_event_loop(served):
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x") as client:

            async def one(i: int) -> str:
                stream = await client.completions.create(
                    model="letters", prompt=f"{i % 4}", max_tokens=30, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*[one(i) for i in range(32)])

    texts = asyncio.run(main())
    assert all(len(text) == 30 for text in texts)
    assert texts == texts[:4] * 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"extra_body": {"best_of": 2}}, "best_of"),
        ({"tools": [FUNCTION]}, "tools"),
        ({"tools": [FUNCTION, {"type": "function", "function": {}}]}, "tools.1.function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {
                "response_format": {"type": "json_object"},
                "extra_body": {"structured_outputs": {"regex": "a"}},
            },
            "structured_outputs",
        ),
        ({"extra_body": {"structured_outputs": {}}}, "structured_outputs"),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}},
            "structured_outputs",
        ),
        ({"extra_body": {"structured_outputs": {"xml": 1}}}, "structured_outputs.xml"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
        ({"extra_body": {"bad_words": [" "]}}, "bad_words"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"chat_template_kwargs": {"tools": []}}}, "chat_template_kwargs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"1": 500}}, "logit_bias.1"),
        ({"logit_bias": {"1000": 5}}, "logit_bias"),
        ({"logit_bias": {"x": 5}}, "logit_bias.x"),
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"nonsense": 1}}, "nonsense"),
        ({"extra_body": {"stop": [1]}}, "stop.0"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
            "messages.0.tool_calls",
        ),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_is_not_supported_is_named(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**({"model": "letters", "messages": MESSAGES} | fields))
    body = caught.value.response.json()["error"]
    assert body["param"] == param
    assert param in body["message"]
    assert body["type"] == "invalid_request_error"


def test_neutral_values_pass(client):
    answer = client.chat.completions.create(
        model="letters",
        messages=[*MESSAGES, {"role": "assistant", "content": "hi", "tool_calls": None}],
        max_tokens=2,
        n=1,
        logprobs=False,
        top_logprobs=None,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        user="somebody",
        store=False,
        metadata=None,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        parallel_tool_calls=True,
        service_tier="auto",
        extra_body={"best_of": 1, "repetition_penalty": 1.0, "top_k": -1, "min_p": 0},
    )
    assert answer.usage.completion_tokens == 2


def test_an_unknown_model_and_a_path_from_elsewhere(client):
    with pytest.raises(openai.NotFoundError, match="this server has letters"):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError, match="use /v1/chat/completions"):
        client.responses.create(model="letters", input="x")
    with pytest.raises(openai.NotFoundError, match="embedding"):
        client.embeddings.create(model="letters", input="x")


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError, match=r"5,000 tokens.*4,096"):
        client.completions.create(model="letters", prompt=[1] * 5000, max_tokens=1)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_more_tokens_than_the_context_has_room_for_are_refused_when_asked_for(client, name):
    size = len("user: hello")
    room = 4096 - size
    options = {"model": "letters", "messages": MESSAGES}
    with pytest.raises(
        openai.BadRequestError, match=rf"{size} tokens .* {room + 1:,}.* 4,096"
    ) as it:
        client.chat.completions.create(**options, **{name: room + 1})
    assert it.value.response.json()["error"]["param"] == name
    answer = client.chat.completions.create(**options, **{name: room}, stop=["a"])
    assert answer.choices[0].finish_reason == "stop"


def test_a_default_limit_is_cut_to_the_room(client):
    answer = client.completions.create(model="letters", prompt=[1] * 4090)
    assert answer.usage.completion_tokens == 6
    with pytest.raises(openai.BadRequestError, match=r"4,090 tokens .* 7"):
        client.completions.create(model="letters", prompt=[[1], [1] * 4090], max_tokens=7)
