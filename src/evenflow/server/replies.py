"""The answers' bytes: what is the same in every message of a stream is rendered once.

In: text, counts, reasons. Out: bytes as OpenAI's API writes them. Nothing is validated here, and
no object is built per token.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.types import FinishReason

Kind = Literal["chat", "text"]
DONE = b"data: [DONE]\n\n"


Usage = dict[str, int | dict[str, int]]


class Head(NamedTuple):
    """What every message of an answer begins with."""

    kind: Kind
    id: str
    created_s: int
    model: str


def usage(num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int) -> Usage:
    """The token counts, as the API names them; cached ones were not computed again."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }


class Messages:
    """Writes the messages of one choice of a stream.

    Args:
        head: the answer's.
        index: the choice's number.
        with_usage: whether a message has a "usage" at all; null unless counts are given.
    """

    def __init__(self, head: Head, index: int, *, with_usage: bool) -> None:
        start = _start(head) + b',"choices":[{"index":' + str(index).encode()
        is_chat = head.kind == "chat"
        self._first = start + (
            b',"delta":{"role":"assistant","content":' if is_chat else b',"text":'
        )
        self._next = start + (b',"delta":{"content":' if is_chat else b',"text":')
        self._end = (b"}" if is_chat else b"") + b',"logprobs":null,"finish_reason":'
        self._usage_key = b'}],"usage":' if with_usage else b"}]"
        self._no_usage = self._usage_key + (b"null}\n\n" if with_usage else b"}\n\n")
        self._plain = self._end + b"null" + self._no_usage
        self._lead = self._first

    def write(self, text: str, finish: FinishReason | None, counts: Usage | None = None) -> bytes:
        """One message; the first of a chat names the role beside its text."""
        lead, self._lead = self._lead, self._next
        if finish is None and counts is None:
            return lead + orjson.dumps(text) + self._plain
        reason = b"null" if finish is None else b'"' + finish.encode() + b'"'
        tail = self._no_usage
        if counts is not None:
            tail = self._usage_key + orjson.dumps(counts) + b"}\n\n"
        return lead + orjson.dumps(text) + self._end + reason + tail


def usage_message(head: Head, counts: Usage) -> bytes:
    """The message that ends a stream with the counts."""
    return _start(head) + b',"choices":[],"usage":' + orjson.dumps(counts) + b"}\n\n"


def error_message(body: bytes) -> bytes:
    """The message that ends a stream with an error."""
    return b"data: " + body + b"\n\n"


def plain_choice(head: Head, index: int, text: str, finish: str | None) -> dict[str, Any]:
    """A choice of a whole answer."""
    choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish}
    if head.kind == "chat":
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    return choice


def message(head: Head, choice: dict[str, Any], counts: Usage | None, *, with_usage: bool) -> bytes:
    """A message of a stream that holds more than text; `Messages` writes the others faster."""
    more = b',"usage":' + orjson.dumps(counts) if with_usage else b""
    return _start(head) + b',"choices":[' + orjson.dumps(choice) + b"]" + more + b"}\n\n"


def whole(
    head: Head,
    choices: Sequence[dict[str, Any]],
    counts: Usage,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """A whole answer; `more` are fields besides the usual ones."""
    name = "chat.completion" if head.kind == "chat" else "text_completion"
    return orjson.dumps(
        {
            "id": head.id,
            "object": name,
            "created": head.created_s,
            "model": head.model,
            "choices": list(choices),
            "usage": counts,
            **more,
        }
    )


def _start(head: Head) -> bytes:
    name = "chat.completion.chunk" if head.kind == "chat" else "text_completion"
    fields = {
        "id": head.id,
        "object": name,
        "created": head.created_s,
        "model": head.model,
    }
    return b"data: " + orjson.dumps(fields)[:-1]
