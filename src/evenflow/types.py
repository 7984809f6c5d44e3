"""The items that travel through the engine: spans, plans, results, events.

A step is a list of spans. A prefill chunk and a decode are the same thing with different lengths,
so nothing here says which of the two a span is, and nothing may infer it from a length.

They are NamedTuples: making one costs a quarter of what a frozen dataclass does, and the step loop
makes hundreds per step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from evenflow.schedule.request import Request

FinishReason = Literal["stop", "length", "abort", "error"]
Policy = Literal["chunked", "prefill-first", "decode-first"]


class Span(NamedTuple):
    """`length` positions of one request, from `start`, computed in one step.

    `num_logits` counts the trailing positions whose logits are wanted: 0 in a middle chunk, 1 for a
    decode or the last chunk of a prompt.
    """

    request: Request
    start: int
    length: int
    num_logits: int


class StepPlan(NamedTuple):
    """What one forward pass computes; never changed after it is made.

    The first `num_decodes` spans are decodes, the others prefill chunks in the order in which they
    were granted. `reason` says where `budget` came from; `blocked` says why a prompt that waits got
    nothing ("" when none does): "kv", "lanes", "seqs", "prefix", "policy" or "budget".
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


class StepResult(NamedTuple):
    """What a runner returns for a plan.

    `tokens[i]` are the tokens sampled for span i (empty for a middle chunk); `logprobs[i]` runs
    beside it where asked for, else the list is empty. `seconds` is the time the step took.
    """

    serial: int
    tokens: list[tuple[int, ...]]
    logprobs: list[object]
    seconds: float


class TokenEvent(NamedTuple):
    """One token of one request, or its end.

    `token` is -1 when the event only ends the request. `finish` is None until the terminal event;
    every request gets exactly one.
    """

    request_id: str
    token: int
    logprob: float | None
    finish: FinishReason | None


class StreamEvent(NamedTuple):
    """What a caller sees of a token: its id and the text that became certain with it.

    `token_id` is -1 when the event only ends the request. `text` may be empty (half a character,
    or the possible beginning of a stop string). The event with a `finish_reason` is the last one;
    with "error", `error` says what happened.
    """

    request_id: str
    token_id: int
    text: str
    logprob: float | None
    finish_reason: FinishReason | None
    error: Exception | None = None
