"""What a request asks of the sampler: names and defaults as in vLLM, checked when made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenflow.errors import InvalidRequestError
from evenflow.structured import StructuredOutputs

MAX_SEED = 2**64 - 1
MAX_N = 16_384  # vLLM's own limit
MAX_BIAS = 100.0  # OpenAI's


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when it ends.

    Args:
        n: answers to draw; each is a request of its own, and they share the prompt's blocks.
        max_tokens: tokens to generate at most; None means up to the context's end.
        min_tokens: end-of-sequence and stop tokens cannot be drawn before this many tokens.
        temperature: 0 is greedy (the largest logit, the lowest id on a tie).
        top_k: keep the k largest logits; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens whose probability is below this share of the largest one.
        seed: the draw is a function of (seed, position) alone; None lets the engine choose. Of
            `n` answers, the first is drawn with the seed itself.
        repetition_penalty: logits of tokens seen in prompt or answer are divided by this where they
            are positive, else multiplied; 1 is neutral.
        presence_penalty: taken off the logits of tokens seen in the answer.
        frequency_penalty: taken off as often as the token was seen in the answer.
        logit_bias: token id -> what is added to its logit.
        bad_words: texts that may not be generated.
        structured_outputs: the form that the answer must have.
        logprobs: report each token's log probability, and those of this many likeliest tokens.
        prompt_logprobs: the same for the prompt's tokens.
        stop: strings that end the request; they are not part of the text.
        stop_token_ids: token ids that end the request, besides the model's own.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the model's end-of-sequence tokens.
        skip_special_tokens: leave special tokens out of the text.
        priority: lower is earlier, as in vLLM.

    Raises:
        InvalidRequestError: a value is out of its range, which the message states, or two of them
            contradict each other.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    bad_words: tuple[str, ...] = field(default=())
    structured_outputs: StructuredOutputs | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop: tuple[str, ...] = field(default=())
    stop_token_ids: tuple[int, ...] = field(default=())
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    # set by the constructor, for the step loop: whether a penalty is not neutral
    has_penalties: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen; this is its constructor
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            put(self, name, (value,) if isinstance(value, str) else _tuple(self, name))
        put(self, "stop_token_ids", _tuple(self, "stop_token_ids"))
        if self.top_k == -1:
            put(self, "top_k", 0)
        self._check_numbers()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise InvalidRequestError(
                    f"{name} is {value!r}", hint=f"{name} takes True or False"
                )
        self._check_texts()
        if self.logit_bias is not None:
            put(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_form()
        additive = self.presence_penalty != 0 or self.frequency_penalty != 0
        put(self, "has_penalties", additive or self.repetition_penalty != 1)

    def _check_numbers(self) -> None:
        _check_int("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens:,}, but max_tokens is {self.max_tokens:,}",
                hint="min_tokens may be at most max_tokens",
            )
        _check_int("top_k", self.top_k, 0, 2**31 - 1)
        _check_int("priority", self.priority, -(2**31), 2**31 - 1)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, MAX_SEED)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, 2**31 - 1)
        if self.n > 1 and self.temperature == 0:
            raise InvalidRequestError(
                f"n is {self.n:,}, but temperature 0 gives the same answer every time",
                hint="set temperature above 0, or n to 1",
            )

    def _check_form(self) -> None:
        form = self.structured_outputs
        if form is None:
            return
        if not isinstance(form, StructuredOutputs):
            raise InvalidRequestError(
                f"structured_outputs is a {type(form).__name__}",
                hint="give StructuredOutputs(json=...), or one of its other forms",
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"{name} is {getattr(self, name)}, but structured_outputs decides where the "
                    "answer ends",
                    hint=f"leave {name} out, or state the length in the schema or grammar",
                )

    def _check_texts(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(
                    f"stop holds {text!r}", hint="every stop string has at least one character"
                )
        for text in self.bad_words:
            if not isinstance(text, str) or not text.strip():
                raise InvalidRequestError(
                    f"bad_words holds {text!r}",
                    hint="every bad word has at least one character that is not a space",
                )
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0, 2**31 - 1)


def _tuple(params: SamplingParams, name: str) -> tuple[Any, ...]:
    value = getattr(params, name)
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{name} is {value!r}", hint=f"{name} takes a list")
    return tuple(value)


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidRequestError(
            f"logit_bias is a {type(bias).__name__}", hint="logit_bias maps token ids to numbers"
        )
    for token, value in bias.items():
        _check_int("logit_bias's token id", token, 0, 2**31 - 1)
        _check_float("logit_bias's value", value, -MAX_BIAS, MAX_BIAS)
    return {token: float(value) for token, value in bias.items()}


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(
            f"{name} is {value!r}, which is not a whole number",
            hint=f"{name} takes a whole number from {low} to {high}",
        )
    if not low <= value <= high:
        raise InvalidRequestError(
            f"{name} is {value}, outside its range",
            hint=f"{name} takes a whole number from {low} to {high}",
        )


def _check_float(
    name: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    left = "above" if low_open else "from"
    hint = f"{name} takes a number {left} {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"{name} is {value!r}, which is not a number", hint=hint)
    too_low = value <= low if low_open else value < low
    if math.isnan(value) or too_low or value > high:
        raise InvalidRequestError(f"{name} is {value}, outside its range", hint=hint)
