"""Tools over HTTP: calls in each style, whole and streamed, and what a conversation says of them."""

from __future__ import annotations

import json

import openai
import pytest

from helpers.servers import post, read_all, serving
from helpers.tiny_server import PLAIN, TEMPLATES, telling, tiny

MESSAGES = [{"role": "user", "content": "weather in Oslo?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
ASK = {"model": "letters", "messages": MESSAGES, "tools": [WEATHER, NOW]}
CALL = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
TEXTS = {
    "hermes": f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n" + '{"name": "now"}\n</tool_call>',
    "llama3_json": CALL.replace("arguments", "parameters") + '; {"name": "now", "parameters": {}}',
    "mistral": f"[TOOL_CALLS] [{CALL}, " + '{"name": "now", "arguments": {}}]',
}
EXPECTED = [("get_weather", {"city": "Oslo"}), ("now", {})]


def client_of(served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)


def calls_of(message) -> list[tuple[str, dict]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]


def gathered(chunks) -> tuple[str, list[dict], str]:
    """Content, calls and the finish reason, put together as clients do."""
    content, calls, finish = "", [], ""
    for chunk in chunks:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for part in choice.delta.tool_calls or ():
            if part.index == len(calls):
                assert part.id
                assert part.type == "function"
                calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
            else:
                assert part.index == len(calls) - 1
                assert part.id is None
                assert part.function.name is None
            calls[part.index]["arguments"] += part.function.arguments or ""
    return content, calls, finish


@pytest.mark.parametrize("style", list(TEXTS))
def test_calls_are_found(style):
    with serving(telling(TEXTS[style], TEMPLATES[style])) as served, client_of(served) as client:
        answer = client.chat.completions.create(**ASK)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert calls_of(choice.message) == EXPECTED
        ids = [call.id for call in choice.message.tool_calls]
        assert len(set(ids)) == 2
        if style == "mistral":
            assert all(len(one) == 9 and one.isalnum() for one in ids)

        chunks = list(client.chat.completions.create(**ASK, stream=True))
        content, calls, finish = gathered(chunks)
        assert (content, finish) == ("", "tool_calls")
        assert [(c["name"], json.loads(c["arguments"])) for c in calls] == EXPECTED
        assert len(chunks) == answer.usage.completion_tokens  # an event per token, as ever
        parts = [p for c in chunks for p in c.choices[0].delta.tool_calls or () if p.index == 0]
        assert len(parts) > 4  # the arguments came as they were written
        assert chunks[0].choices[0].delta.role == "assistant"

        one = client.chat.completions.create(**ASK, parallel_tool_calls=False)
        assert calls_of(one.choices[0].message) == EXPECTED[:1]
        _, calls, _ = gathered(
            client.chat.completions.create(**ASK, parallel_tool_calls=False, stream=True)
        )
        assert [c["name"] for c in calls] == ["get_weather"]

        none = client.chat.completions.create(**ASK, tool_choice="none")
        assert none.choices[0].message.tool_calls is None
        assert none.choices[0].finish_reason == "stop"
        assert none.usage.prompt_tokens < answer.usage.prompt_tokens  # the model is told of none


def test_content_before_a_call_and_without_one():
    text = "Let me look. " + TEXTS["hermes"]
    with serving(telling(text, TEMPLATES["hermes"])) as served, client_of(served) as client:
        message = client.chat.completions.create(**ASK).choices[0].message
        assert message.content == "Let me look."
        assert calls_of(message) == EXPECTED
        content, calls, _ = gathered(client.chat.completions.create(**ASK, stream=True))
        assert content == "Let me look."
        assert len(calls) == 2
    with serving(telling("No <tool", TEMPLATES["hermes"])) as served, client_of(served) as client:
        choice = client.chat.completions.create(**ASK).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("No <tool", "stop")
        content, calls, finish = gathered(client.chat.completions.create(**ASK, stream=True))
        assert (content, calls, finish) == ("No <tool", [], "stop")


@pytest.mark.parametrize("text", ['<tool_call>{"name": "get_weather", "arg', "<tool_call>{}"])
def test_what_is_no_call_is_content(text):
    with serving(telling(text, TEMPLATES["hermes"])) as served, client_of(served) as client:
        choice = client.chat.completions.create(**ASK).choices[0]
        assert (choice.message.content, choice.message.tool_calls) == (text, None)
        assert choice.finish_reason == "stop"


def test_an_answer_that_is_cut_off_says_so():
    with serving(telling(TEXTS["hermes"], TEMPLATES["hermes"])) as served, client_of(served) as c:
        answer = c.chat.completions.create(**ASK, max_tokens=70)
        assert calls_of(answer.choices[0].message) == EXPECTED[:1]
        assert answer.choices[0].finish_reason == "length"


def test_calls_with_log_probabilities_and_several_answers():
    with serving(tiny(TEMPLATES["hermes"])) as served, client_of(served) as client:
        options = ASK | {"tool_choice": "required", "n": 2, "logprobs": True, "seed": 1}
        answer = client.chat.completions.create(**options)
        assert len(answer.choices) == 2
        for choice in answer.choices:
            assert calls_of(choice.message)
            assert choice.logprobs.content


@pytest.mark.parametrize("style", ["hermes", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_must_be_is_one(style, seed):
    """Random weights have no idea of tools: the grammar makes the call, in its tool's schema."""
    with serving(tiny(TEMPLATES[style])) as served, client_of(served) as client:
        options = ASK | {"seed": seed, "tool_choice": "required", "parallel_tool_calls": False}
        choice = client.chat.completions.create(**options).choices[0]
        assert choice.finish_reason == "tool_calls"
        ((name, arguments),) = calls_of(choice.message)
        assert choice.message.content is None
        assert arguments in ({"city": "Oslo"}, {"city": "Rome"}) if name == "get_weather" else {}
        content, calls, finish = gathered(client.chat.completions.create(**options, stream=True))
        assert (content, finish) == ("", "tool_calls")
        assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [(name, arguments)]

        options |= {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        choice = client.chat.completions.create(**options).choices[0]
        ((name, arguments),) = calls_of(choice.message)
        assert name == "get_weather"
        assert arguments in ({"city": "Oslo"}, {"city": "Rome"})
        assert choice.finish_reason == "tool_calls"
        _, calls, _ = gathered(client.chat.completions.create(**options, stream=True))
        assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [(name, arguments)]


def test_a_conversation_with_calls_and_results_reaches_the_template():
    """Arguments are an object for the template, whatever the client sends."""
    model = telling("Sunny.", TEMPLATES["hermes"])
    past = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees"},
    ]
    rendered = []
    original = model.render_chat
    model.render_chat = lambda *a, **k: rendered.append(original(*a, **k)) or rendered[-1]
    with serving(model) as served, client_of(served) as client:
        answer = client.chat.completions.create(**(ASK | {"messages": past}))
        assert answer.choices[0].message.content == "Sunny."
        for arguments, place in (("{", "arguments"), ("[1]", "arguments")):
            past[1]["tool_calls"][0]["function"]["arguments"] = arguments
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**(ASK | {"messages": past}))
            param = caught.value.response.json()["error"]["param"]
            assert param == f"messages.1.tool_calls.0.function.{place}"
    (text,) = rendered
    assert text.startswith('tools: [{"type": "function", "function": {"name": "get_weather",')
    assert '<tool_call>get_weather {"city": "Oslo"}' in text
    assert "tool: 12 degrees" in text


def test_tokenize_counts_the_tools_too():
    with serving(telling("x", TEMPLATES["hermes"])) as served, client_of(served) as client:
        asked = client.chat.completions.create(**ASK).usage.prompt_tokens
        body = {"messages": MESSAGES, "tools": ASK["tools"]}
        assert tokenized(served.port, body)["count"] == asked
        error = tokenized(served.port, {"prompt": "x", "tools": ASK["tools"]})["error"]
        assert "tools is given" in error["message"]


def tokenized(port, body) -> dict:
    answer = read_all(post(port, "/tokenize", body, headers={"connection": "close"}))
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def refused(client, **fields) -> dict:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | fields))
    return caught.value.response.json()["error"]


def test_what_tools_cannot_be_combined_with():
    with serving(telling("x", TEMPLATES["hermes"])) as served, client_of(served) as client:
        form = {"type": "json_object"}
        assert refused(client, response_format=form)["param"] == "response_format"
        assert refused(client, tools=[NOW, NOW])["param"] == "tools"
        other = {"type": "function", "function": {"name": "other"}}
        assert refused(client, tool_choice=other)["param"] == "tool_choice"
        broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "no"}}}
        assert refused(client, extra_body={"structured_outputs": {}})["param"] == (
            "structured_outputs"
        )
        error = refused(client, tools=[broken], tool_choice="required")
        assert error["param"] == "tools"
        assert error["message"].startswith("tools")
        answer = client.chat.completions.create(
            **ASK, tool_choice="none", response_format={"type": "text"}
        )
        assert answer.choices[0].message.content == "x"


def test_a_template_without_tools_or_of_an_unknown_style():
    with serving(telling("x", PLAIN)) as served, client_of(served) as client:
        assert refused(client)["param"] == "tools"
        assert "template takes none" in refused(client)["message"]
    with serving(telling(TEXTS["hermes"], TEMPLATES["none"])) as served, client_of(served) as c:
        assert "--tool-call-parser" in refused(c)["message"]
    model = telling(TEXTS["hermes"], TEMPLATES["none"])
    with serving(model, tool_call_parser="hermes") as served, client_of(served) as client:
        message = client.chat.completions.create(**ASK).choices[0].message
        assert calls_of(message) == EXPECTED
