"""A stream of server-sent events as an OpenAI-compatible server sends them, into a record.

In: bytes with the moment at which they came. Out: messages in a `RequestRecord`. Does no I/O and
reads no clock, so that it is tested with bytes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from evenflow.bench.counting import settle_tokens
from evenflow.bench.records import Message

if TYPE_CHECKING:
    from evenflow.bench.records import RequestRecord

SHOWN_CHARS = 200  # of an error's text


class EventReader:
    """Turns the bytes of one answer into messages.

    A message counts when it carries text of any kind (an answer, a reasoning, arguments of a tool)
    or when the server says that it carries tokens. The role-only message of a chat does neither.
    """

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._rest: list[bytes] = []  # of a line that is not complete
        self._counted = 0  # tokens by the server's running count
        self._each_known = True
        self._silent: list[Message] = []  # without text, yet perhaps a token each
        self.parts: list[str] = []
        self.done = False

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes that came at a moment; a long event is put together once, at its end."""
        head, newline, tail = data.partition(b"\n")
        self._rest.append(head)
        if not newline:
            return
        *lines, rest = tail.split(b"\n")
        lines.insert(0, b"".join(self._rest))
        self._rest = [rest]
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def end(self, now_s: float) -> None:
        """The answer is complete, or the connection gone: settle tokens and judge the ending."""
        record = self._record
        record.end_s = now_s
        usage = record.usage or {}
        total = usage.get("completion_tokens")
        each_known = self._each_known and bool(record.messages)
        if not each_known and total is not None:
            self._settle_silent(total)
        counted = settle_tokens(record.messages, total, each_known=each_known)
        record.messages = counted.messages
        record.tokens_from = counted.tokens_from
        record.output_tokens = counted.output_tokens
        if isinstance(usage.get("prompt_tokens"), int):
            record.prompt_tokens = usage["prompt_tokens"]
        if record.error:
            return
        if not self.done and not record.finish_reason:
            record.error = f"the stream ended early, after {len(record.messages):,} messages"
        elif not record.messages:
            record.error = "no output"

    def _settle_silent(self, total: int) -> None:
        """Take messages without text for a token each where the server's total then comes out.

        An end token has no text, nor has half a character: the gap before it is a gap like any
        other. Messages on a prompt's progress, before all output, are none.
        """
        messages = self._record.messages
        later = [m for m in self._silent if messages and m.time_s >= messages[0].time_s]
        for silent in (self._silent, later):
            if messages and silent and total == len(messages) + len(silent):
                self._record.messages = sorted([*messages, *silent], key=lambda m: m.time_s)
                self._record.empty_messages -= len(silent)
                return

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._fail(data)
            return
        if not isinstance(event, dict):
            self._fail(data)
            return
        if event.get("error"):
            self._record.error = self._record.error or f"the server said: {_text_of(event)}"
            return
        self._take(event, now_s)

    def _take(self, event: dict[str, Any], now_s: float) -> None:
        record = self._record
        usage = event.get("usage")
        if usage:
            record.usage = usage
        told = event.get("timings") or event.get("metrics")
        if told:
            record.metrics = told
        choices = event.get("choices")
        if not choices:
            return
        choice = choices[0]
        text = _output_of(choice)
        ids = choice.get("token_ids")
        tokens = -1
        if ids is not None:
            tokens = len(ids)
        elif usage and usage.get("completion_tokens") is not None and self._each_known:
            # a total that comes with the last message only says nothing about that message
            tokens = usage["completion_tokens"] - self._counted
        if tokens > 0:
            self._counted += tokens
        if text or tokens > 0:
            self._each_known = self._each_known and tokens >= 0
            record.messages.append(Message(now_s, max(tokens, 0), len(text)))
            self.parts.append(text)
        else:
            record.empty_messages += 1
            spoken = "role" not in (choice.get("delta") or ())
            if spoken and tokens < 0 and choice.get("finish_reason") != "length":
                self._silent.append(Message(now_s, 1, 0))
        if choice.get("finish_reason"):
            record.finish_reason = choice["finish_reason"]

    def _fail(self, data: bytes) -> None:
        if self._record.error:
            return
        try:
            data.decode()
        except UnicodeDecodeError as e:
            self._record.error = (
                f"an event is not UTF-8: byte {e.start:,} of it is {data[e.start]:#04x}"
            )
        else:
            self._record.error = f"an event is not a JSON object: {data[:40]!r}"


def error_of(status: int, body: bytes) -> str:
    """One line for an answer that is an error."""
    try:
        said = _text_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        said = body.decode(errors="replace")
    said = " ".join(said.split())[:SHOWN_CHARS]
    return f"HTTP {status}: {said}" if said else f"HTTP {status}"


def _text_of(event: Any) -> str:
    """What an error object says, in any of the usual shapes."""
    found = event
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return " ".join(str(found).split())[:SHOWN_CHARS]


def _output_of(choice: dict[str, Any]) -> str:
    """The text that a choice carries, whatever kind it is."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text += (function.get("name") or "") + (function.get("arguments") or "")
    return text if isinstance(text, str) else str(text)
