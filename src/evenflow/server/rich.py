"""Answers that hold more than text: log probabilities, calls of tools.

In: events, as for a plain call. Out: the bytes of a whole answer, or of a stream's messages. Kept apart
from the plain ones, which are written faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.server.call import Call, StreamingCall
from evenflow.server.replies import message, plain_choice, whole
from evenflow.server.reports import CompletionLogprobs, chat_logprobs, prompt_report
from evenflow.server.tools import CallWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.server.call import Choice
    from evenflow.server.replies import Head, Usage
    from evenflow.server.reports import Scored
    from evenflow.server.tools import ToolPlan
    from evenflow.text.tokenizer import Tokenizer
    from evenflow.types import StreamEvent, TokenLogprobs


class Extras(NamedTuple):
    """What an answer holds besides its text.

    `logprobs`: of its tokens, and with an `echo` of the prompt's; `prompt_logprobs`: vLLM's report on
    the prompt; `tools`: how calls are read.
    """

    tokenizer: Tokenizer
    new_id: Callable[[], str]
    logprobs: bool = False
    echo: bool = False
    prompt_logprobs: bool = False
    skip_special_tokens: bool = True
    tools: ToolPlan | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there are any."""
        return self.logprobs or self.prompt_logprobs or self.tools is not None


class _Writer:
    """Writes what one choice holds, in one piece or in several."""

    def __init__(self, head: Head, index: int, extras: Extras, *, eager: bool) -> None:
        self._head = head
        self._index = index
        self._extras = extras
        self._calls = (
            None if extras.tools is None else CallWriter(extras.tools, extras.new_id, eager=eager)
        )
        self._completion = CompletionLogprobs(
            extras.tokenizer, skip_special_tokens=extras.skip_special_tokens
        )
        self._is_first = True

    def whole(self, text: str, finish: str | None, scored: list[Scored]) -> dict[str, Any]:
        """A choice of a whole answer."""
        choice = plain_choice(self._head, self._index, text, finish)
        choice["logprobs"] = self._logprobs(scored)
        if self._calls is not None:
            content, calls = self._calls.whole(text)
            if calls:
                choice["message"] |= {"content": content or None, "tool_calls": calls}
            else:
                choice["message"]["content"] = content
            choice["finish_reason"] = self._reason(finish)
        return choice

    def part(self, text: str, finish: str | None, scored: list[Scored]) -> dict[str, Any]:
        """A choice of a message of a stream."""
        choice: dict[str, Any] = {"index": self._index}
        if self._head.kind == "text":
            choice["text"] = text
        else:
            choice["delta"] = self._delta(text, is_last=finish is not None)
        choice["logprobs"] = self._logprobs(scored)
        choice["finish_reason"] = self._reason(finish)
        return choice

    def _delta(self, text: str, *, is_last: bool) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": "assistant"} if self._is_first else {}
        if self._calls is None:
            delta["content"] = text
        else:
            content, calls = self._calls.delta(text, is_last=is_last)
            if content or self._is_first:
                delta["content"] = content or None
            if calls:
                delta["tool_calls"] = calls
        self._is_first = False
        return delta

    def _reason(self, finish: str | None) -> str | None:
        """An answer that was cut off by its length says so, calls or not."""
        has_calls = self._calls is not None and self._calls.has_calls
        return "tool_calls" if has_calls and finish == "stop" else finish

    def _logprobs(self, scored: list[Scored]) -> dict[str, Any] | None:
        if not self._extras.logprobs:
            return None
        if self._head.kind == "text":
            return self._completion.write(scored)
        return chat_logprobs(self._extras.tokenizer, scored)


class RichCall(Call):
    """Gathers a whole answer."""

    def __init__(self, *args: Any, extras: Extras) -> None:
        super().__init__(*args)
        self._extras = extras
        self._scored: list[list[Scored]] = [[] for _ in self.choices]
        self._prompt_scores: dict[int, list[TokenLogprobs | None]] = {}  # by prompt

    def _add(self, choice: Choice, event: StreamEvent) -> None:
        super()._add(choice, event)
        if event.logprobs is not None:
            self._scored[choice.index].append((event.token_id, event.logprobs))
        if event.prompt_logprobs is not None:
            self._prompt_scores[choice.index // self.num_each] = event.prompt_logprobs

    def body(self) -> bytes:
        """The answer."""
        extras = self._extras
        made: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        for choice in self.choices.values():
            number = choice.index // self.num_each
            scored = self._scored[choice.index]
            prompt: list[Scored] = []
            if number in self._prompt_scores:
                prompt = list(
                    zip(self.prompts[number].ids, self._prompt_scores[number], strict=True)
                )
            if extras.echo:
                scored = prompt + scored
            writer = _Writer(self.head, choice.index, extras, eager=False)
            made.append(writer.whole("".join(choice.texts), choice.finish, scored))
            if extras.prompt_logprobs:
                holder = made[-1] if self.head.kind == "text" else more
                holder["prompt_logprobs"] = prompt_report(extras.tokenizer, prompt)
        return whole(self.head, made, self.counts(), more)


class RichStreamingCall(StreamingCall):
    """A stream whose messages hold more than text; one per token all the same."""

    def __init__(self, *args: Any, extras: Extras, **options: Any) -> None:
        super().__init__(*args, **options)
        self._writers = [
            _Writer(self.head, choice.index, extras, eager=True) for choice in self.choices.values()
        ]
        self._scored: list[list[Scored]] = [[] for _ in self.choices]
        self._echoes = extras.echo

    def _add(self, choice: Choice, event: StreamEvent) -> None:
        scored = self._scored[choice.index]
        if event.prompt_logprobs is not None and self._echoes:
            ids = self.prompts[choice.index // self.num_each].ids
            scored += zip(ids, event.prompt_logprobs, strict=True)
        if event.logprobs is not None:
            scored.append((event.token_id, event.logprobs))
        super()._add(choice, event)

    def _write(self, choice: Choice, text: str, counts: Usage | None) -> bytes:
        scored, self._scored[choice.index] = self._scored[choice.index], []
        part = self._writers[choice.index].part(text, choice.finish, scored)
        return message(self.head, part, counts, with_usage=self._with_usage)
