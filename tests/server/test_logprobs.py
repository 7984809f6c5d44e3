"""Log probabilities over HTTP: the shapes of OpenAI and vLLM, true to the engine, streamed or not."""

from __future__ import annotations

import math

import openai
import pytest

from helpers.servers import serving
from helpers.tiny_server import tiny

ASK = {"model": "letters", "max_tokens": 12, "seed": 5, "extra_body": {"ignore_eos": True}}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client():
    with (
        serving(tiny()) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made


def near(numbers):
    """The reference runner rounds as the step's shape wants it; see the laws."""
    return pytest.approx(list(numbers), abs=1e-4)


def test_of_a_chat(client):
    answer = client.chat.completions.create(**ASK, messages=MESSAGES, logprobs=True, top_logprobs=3)
    (choice,) = answer.choices
    content = choice.logprobs.content
    assert len(content) == answer.usage.completion_tokens == 12
    text = b"".join(bytes(one.bytes) for one in content).decode(errors="replace")
    assert text == choice.message.content
    for one in content:
        assert len(one.top_logprobs) == 3
        tops = [top.logprob for top in one.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert one.logprob <= tops[0] < 0
        assert sum(math.exp(top) for top in tops) < 1
        same = [top.logprob for top in one.top_logprobs if top.bytes == one.bytes]
        assert same in ([], [one.logprob])


def test_without_the_likeliest_ones(client):
    answer = client.chat.completions.create(**ASK, messages=MESSAGES, logprobs=True)
    assert all(one.top_logprobs == [] for one in answer.choices[0].logprobs.content)
    plain = client.chat.completions.create(**ASK, messages=MESSAGES)
    assert plain.choices[0].logprobs is None
    assert plain.choices[0].message.content == answer.choices[0].message.content


@pytest.mark.parametrize("interval", [1, 5])
def test_a_stream_of_a_chat_adds_up_to_the_whole(client, interval):
    options = {**ASK, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**options)
    with (
        serving(tiny(), stream_interval=interval) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="any") as other,
    ):
        chunks = list(other.chat.completions.create(**options, stream=True))
    assert len(chunks) == (12 if interval == 1 else 4)
    entries = [one for c in chunks for one in c.choices[0].logprobs.content]
    expected = whole.choices[0].logprobs.content
    assert [one.token for one in entries] == [one.token for one in expected]
    assert [one.logprob for one in entries] == near(one.logprob for one in expected)
    for one, other in zip(entries, expected, strict=True):
        assert [t.token for t in one.top_logprobs] == [t.token for t in other.top_logprobs]
    text = "".join(c.choices[0].delta.content for c in chunks)
    assert text == whole.choices[0].message.content


def test_of_a_completion(client):
    answer = client.completions.create(**ASK, prompt="abc", logprobs=2)
    found, text = answer.choices[0].logprobs, answer.choices[0].text
    sizes = {len(found.tokens), len(found.token_logprobs), len(found.top_logprobs)}
    assert sizes == {12} == {len(found.text_offset)}
    assert found.text_offset[0] == 0
    for token, logprob, top, offset in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset, strict=True
    ):
        assert top[token] == logprob  # the drawn one is there, among the likeliest or beside them
        assert 2 <= len(top) <= 3
        assert logprob <= max(top.values()) < 0
        if not token.startswith(("bytes:", "<")):
            assert text[offset:].lstrip("\N{REPLACEMENT CHARACTER}").startswith(token)


def test_an_echo_scores_the_prompt(client):
    options = {**ASK, "prompt": "abcdef", "max_tokens": 3, "logprobs": 1, "echo": True}
    answer = client.completions.create(**options)
    found, text = answer.choices[0].logprobs, answer.choices[0].text
    size = answer.usage.prompt_tokens
    assert text.startswith("abcdef")
    assert len(found.tokens) == size + 3
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert all(one <= 0 for one in found.token_logprobs[1:])
    shown = "".join(t for t in found.tokens[:size] if t != "<s>")
    assert shown == "abcdef"
    for token, offset in zip(found.tokens[:size], found.text_offset, strict=False):
        assert token == "<s>" or text[offset : offset + len(token)] == token
    chunks = list(client.completions.create(**options, stream=True))
    assert len(chunks) == 3
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [one for c in chunks for one in getattr(c.choices[0].logprobs, name)]
        expected = getattr(found, name)
        if name == "token_logprobs":
            assert parts[1:] == near(expected[1:])
        elif name == "top_logprobs":
            assert [one and set(one) for one in parts] == [one and set(one) for one in expected]
        else:
            assert parts == expected


def test_the_prompts_own_report(client):
    body = {"prompt_logprobs": 2, "ignore_eos": True}
    ask = ASK | {"extra_body": body}
    answer = client.completions.create(**ask, prompt=["abcdef", "xy"])
    for choice, prompt in zip(answer.choices, ("abcdef", "xy"), strict=True):
        first, *others = choice.prompt_logprobs
        assert first is None
        assert len(others) == len(prompt) - 1  # this model has no BOS
        for entry in others:
            assert 2 <= len(entry) <= 3
            assert {one["rank"] for one in entry.values()} >= {1, 2}
            assert all(one["logprob"] <= 0 for one in entry.values())
            assert all(isinstance(one["decoded_token"], str) for one in entry.values())
        own = [
            entry for entry in others if any(v["decoded_token"] in prompt for v in entry.values())
        ]
        assert len(own) == len(others)
    chat = client.chat.completions.create(**ask, messages=MESSAGES)
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens
    assert not hasattr(chat.choices[0], "prompt_logprobs")


def test_several_answers_share_the_report_on_their_prompt(client):
    options = {**ASK, "prompt": ["abc", "de"], "n": 2, "logprobs": 1, "echo": True}
    answer = client.completions.create(**options)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    sizes = [len(c.logprobs.tokens) - 12 for c in answer.choices]
    scores = [
        c.logprobs.token_logprobs[:size] for c, size in zip(answer.choices, sizes, strict=True)
    ]
    assert scores[0] == scores[1]
    assert scores[2] == scores[3]
    assert [c.text[:2] for c in answer.choices] == ["ab", "ab", "de", "de"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**options, stream=True)
    assert caught.value.response.json()["error"]["param"] == "logprobs"
