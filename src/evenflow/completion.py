"""What became of a prompt, gathered from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenflow.sampling import SamplingParams
    from evenflow.types import FinishReason, StreamEvent, TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    `logprobs` runs beside `token_ids`, and is None where none were asked for. `error` is set where
    `finish_reason` is "error"; text and tokens are then what was there before.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprobs | None] | None = field(default=None)
    error: Exception | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt: `outputs` holds its answers, as many as `n` asked for.

    `text`, `token_ids`, `finish_reason`, `logprobs` and `error` are those of the first.
    `prompt_logprobs` has an entry per token of the prompt, of which the first is None; it is None
    where none were asked for, or the request ended before its first token. `num_cached_tokens` is
    how many of the prompt's tokens were in the prefix cache; None where there was no first token.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = field(default=None)
    num_cached_tokens: int | None = field(default=None)

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first answer's tokens."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """How the first answer ended."""
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs | None] | None:
        """The first answer's log probabilities."""
        return self.outputs[0].logprobs

    @property
    def error(self) -> Exception | None:
        """What went wrong with the first answer."""
        return self.outputs[0].error


class Gathered:
    """Collects the events of one request, all its choices."""

    def __init__(self, params: SamplingParams) -> None:
        self.name = ""  # the engine's, once submitted
        self._params = params
        self._events: list[list[StreamEvent]] = [[] for _ in range(params.n)]
        self._num_open = params.n

    @property
    def request_ids(self) -> list[str]:
        """The ids that its events carry."""
        if len(self._events) == 1:
            return [self.name]
        return [f"{self.name}-{index}" for index in range(len(self._events))]

    @property
    def is_done(self) -> bool:
        """Whether every choice has ended."""
        return self._num_open == 0

    def take(self, event: StreamEvent) -> bool:
        """Add an event; returns whether it was the last one."""
        self._events[event.index].append(event)
        if event.finish_reason is not None:
            self._num_open -= 1
            return self.is_done
        return False

    def completion(self, prompt: str | None, prompt_token_ids: list[int]) -> Completion:
        """What was collected; all of it must have come."""
        scores = next((e.prompt_logprobs for e in self._events[0] if e.prompt_logprobs), None)
        outputs = [self._output(index, events) for index, events in enumerate(self._events)]
        cached = self._events[0][0].num_cached_tokens
        return Completion(prompt, prompt_token_ids, outputs, scores, cached)

    def _output(self, index: int, events: list[StreamEvent]) -> CompletionOutput:
        drawn = [event for event in events if event.token_id >= 0]
        last = events[-1]
        assert last.finish_reason is not None, "an answer is made after its end"
        return CompletionOutput(
            index,
            "".join(event.text for event in events),
            [event.token_id for event in drawn],
            last.finish_reason,
            None if self._params.logprobs is None else [event.logprobs for event in drawn],
            last.error,
        )
