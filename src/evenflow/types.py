"""The items that travel through the engine: spans, plans, results, events.

A step is a list of spans. A prefill chunk and a decode are the same thing with different lengths,
so nothing here says which of the two a span is, and nothing may infer it from a length.

They are NamedTuples: making one costs a quarter of what a frozen dataclass does, and the step loop
makes hundreds per step.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenflow.errors import EvenflowError
    from evenflow.schedule.request import Request

FinishReason = Literal["stop", "length", "abort", "error"]
Policy = Literal["chunked", "prefill-first", "decode-first"]


class Span(NamedTuple):
    """`length` positions of one request, from `start`, computed in one step.

    `num_logits` counts the trailing positions whose logits are wanted: 0 in a middle chunk, 1 for a
    decode or the last chunk of a prompt, 1 + drafts for a decode that verifies drafts, up to
    `length` where a prompt's own tokens are scored.
    """

    request: Request
    start: int
    length: int
    num_logits: int


class StepPlan(NamedTuple):
    """What one forward pass computes; never changed after it is made.

    The first `num_decodes` spans are decodes, longer than 1 where they verify drafts, the others
    prefill chunks in the order in which they were granted. `reason` says where `budget` came from;
    `blocked` says why a prompt that waits got nothing ("" when none does): "kv", "lanes", "seqs",
    "prefix", "policy" or "budget".
    `preempted` are the ids of the requests that lost their blocks to make this plan possible.
    """

    serial: int
    spans: list[Span]
    num_decodes: int
    budget: int
    reason: str
    blocked: str
    preempted: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Positions computed by the step, decodes and chunks together."""
        return sum(span.length for span in self.spans)


class TokenLogprobs(NamedTuple):
    """How likely a token was, by the model's own distribution: before any option of sampling.

    `logprob` is natural; `rank` is 1 for the likeliest token (ties share the best rank); `top` are
    the likeliest tokens, as many as were asked for, best first, each (id, logprob).
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class MaskSource(Protocol):
    """Says which tokens may follow what a request has generated so far."""

    def allowed(self, generated: Sequence[int]) -> bytes:
        """A bit per token id, in native 32-bit words, id 0 lowest; set where it may be drawn.

        A function of `generated` alone, asked for by position, in any order.

        Raises:
            InvalidRequestError: what was asked for turned out too complex; the request ends.
        """
        ...

    def copy(self) -> MaskSource:
        """The same for another answer, from its beginning."""
        ...


class StepResult(NamedTuple):
    """What a runner returns for a plan.

    `tokens[i]` are the tokens sampled for span i (empty for a middle chunk). `logprobs` is empty
    where nobody asked; else `logprobs[i]` runs beside `tokens[i]`, with None where it was not asked
    for. `seconds` is the time the step took. `prompt_logprobs[i]` scores the prompt's tokens that
    follow those rows of span i which are not sampled from. `failed[i]` says why no token can be
    drawn for span i: its request ends, the others go on.
    """

    serial: int
    tokens: list[tuple[int, ...]]
    logprobs: list[tuple[TokenLogprobs | None, ...]]
    seconds: float
    prompt_logprobs: Mapping[int, list[TokenLogprobs]] = MappingProxyType({})
    failed: Mapping[int, EvenflowError] = MappingProxyType({})


class TokenEvent(NamedTuple):
    """One token of one request, or its end.

    `token` is -1 when the event only ends the request. `finish` is None until the terminal event;
    every request gets exactly one.
    """

    request_id: str
    token: int
    logprobs: TokenLogprobs | None
    finish: FinishReason | None


class StreamEvent(NamedTuple):
    """What a caller sees of a token: its id and the text that became certain with it.

    `token_id` is -1 when the event only ends the request. `text` may be empty (half a character,
    or the possible beginning of a stop string). The event with a `finish_reason` is the last one;
    with "error", `error` says what happened. `index` says which of the `n` choices it belongs to,
    each of which has an id of its own. `prompt_logprobs` comes with the first token of a request
    that asked for it (of choice 0): one entry per token of the prompt, the first is None.
    `num_cached_tokens` comes with the first token of each choice: how many of the prompt's tokens
    were in the prefix cache.
    """

    request_id: str
    token_id: int
    text: str
    logprobs: TokenLogprobs | None
    finish_reason: FinishReason | None
    error: Exception | None = None
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody calls on an event
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int | None = None
