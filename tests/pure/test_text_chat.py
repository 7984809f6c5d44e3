"""Chat templates: what they may use, and what happens when something does not fit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evenflow.errors import InvalidRequestError, ModelError, UnsupportedError
from evenflow.text.chat import ChatTemplate
from helpers.texts import tiny_tokenizer

EACH = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
USER = [{"role": "user", "content": "Hi"}]


def _now():
    return datetime(2025, 3, 4, tzinfo=UTC)


def _template(source=EACH):
    return ChatTemplate(source, now=_now, special_tokens={"bos_token": "<s>"})


def test_text_parts_are_joined_by_newlines():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    assert _template().render([{"role": "user", "content": parts}]) == "user:a\nb\nc;"


def test_other_fields_are_passed_on_and_calls_need_no_content():
    source = "{% for m in messages %}[{{ m.content }}|{{ m.tool_calls | tojson }}]{% endfor %}"
    calls = [{"function": {"name": "f", "arguments": {"q": "<é>"}}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    expected = '[|[{"function": {"name": "f", "arguments": {"q": "<é>"}}}]]'
    assert _template(source).render([message]) == expected


def test_the_clock_is_the_one_passed_in():
    assert _template("{{ strftime_now('%d %b %Y') }}").render(USER) == "04 Mar 2025"


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    _template().render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_variables_and_tools_reach_a_template_that_reads_them():
    source = (
        "{% if think is defined %}{{ think }}{% endif %}{% for t in tools %}{{ t.n }}{% endfor %}"
    )
    assert _template(source).render(USER, tools=[{"n": 1}, {"n": 2}], think=True) == "True12"


def test_a_conditionally_set_name_counts_as_read():
    source = "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools | tojson }}"
    assert _template(source).render(USER, tools=[{"n": 1}]) == '[{"n": 1}]'
    assert _template(source).render(USER) == "null"


def test_documents_are_none_unless_given():
    source = "{% if documents is not none %}{{ documents }}{% else %}no{% endif %}"
    assert _template(source).render(USER) == "no"
    assert _template(source).render(USER, documents="yes") == "yes"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "there are 0 messages"),
        ("Hi", "messages is a str, not a list"),
        ({"role": "user"}, "messages is a dict, not a list"),
        (None, "messages is a NoneType, not a list"),
        (["Hi"], "message 0 is a str, not an object"),
        ([*USER, {"content": "x"}], "the role of message 1 is None"),
        ([{"role": 3, "content": "x"}], "the role of message 0 is 3"),
        ([{"role": "user"}], "the content of message 0 is a NoneType"),
        ([{"role": "user", "content": 3}], "the content of message 0 is a int"),
        ([{"role": "user", "content": [{"type": "text"}]}], "part 0 of message 0 has a NoneType"),
    ],
)
def test_a_message_of_the_wrong_shape(messages, message):
    with pytest.raises(InvalidRequestError, match=f"^{message}") as caught:
        _template().render(messages)
    assert caught.value.hint


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {}}, {"text": "x"}, 3])
def test_parts_that_are_not_text_are_refused(part):
    with pytest.raises(UnsupportedError, match=r"^part 0 of message 0 is of type"):
        _template().render([{"role": "user", "content": [part]}])


def test_what_the_template_would_ignore_is_refused():
    with pytest.raises(UnsupportedError, match="1 tools were given"):
        _template().render(USER, tools=[{"n": 1}])
    with pytest.raises(UnsupportedError, match="does not read 'think'") as caught:
        _template("{{ mood }}").render(USER, think=True)
    assert "mood" in caught.value.hint


def test_a_template_may_refuse():
    source = "{{ raise_exception('roles must\n alternate, not ' + messages[0].role) }}"
    message = "refuses these messages: roles must alternate, not user$"
    with pytest.raises(InvalidRequestError, match=message):
        _template(source).render(USER)


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + 3 }}", "{{ missing.field.deeper }}", "{{ 1 / 0 }}"]
)
def test_a_template_that_fails(source):
    with pytest.raises(InvalidRequestError, match="fails on these messages: ") as caught:
        _template(source).render(USER)
    assert caught.value.hint


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__ }}"]
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(ModelError, match="does what it may not"):
        _template(source + "{{ ''.__class__.__mro__[1].__subclasses__() }}").render(USER)


@pytest.mark.parametrize(
    "source", ["{% if %}", "\n\n{{ x", "{% for m in messages %}", "{{ x | no_such_filter }}"]
)
def test_a_broken_template(source):
    with pytest.raises(
        ModelError, match=r"line [0-9]+ of the model's chat template is broken"
    ) as it:
        _template(source)
    assert it.value.hint


def test_a_model_without_a_template():
    with pytest.raises(InvalidRequestError, match="no chat template") as caught:
        ChatTemplate.from_tokenizer(tiny_tokenizer(), now=_now)
    assert "generate" in caught.value.hint


def test_a_chat_starts_with_one_bos():
    tokenizer = tiny_tokenizer(add_bos_token=True, chat_template="{{ bos_token }}" + EACH)
    rendered = ChatTemplate.from_tokenizer(tokenizer, now=_now).render(USER)
    ids = tokenizer.encode_chat(rendered)
    assert ids.count(tokenizer.bos_id) == 1
    assert ids[0] == tokenizer.bos_id
