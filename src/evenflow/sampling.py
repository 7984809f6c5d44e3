"""What a request asks of the sampler: names and defaults as in vLLM, checked when made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evenflow.errors import InvalidRequestError

MAX_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when it ends.

    Args:
        max_tokens: tokens to generate at most; None means up to the context's end.
        min_tokens: end-of-sequence and stop tokens cannot be drawn before this many tokens.
        temperature: 0 is greedy (the largest logit, the lowest id on a tie).
        top_k: keep the k largest logits; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this.
        min_p: drop tokens whose probability is below this share of the largest one.
        seed: the draw is a function of (seed, position) alone; None lets the engine choose.
        stop: strings that end the request; they are not part of the text.
        stop_token_ids: token ids that end the request, besides the model's own.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the model's end-of-sequence tokens.
        skip_special_tokens: leave special tokens out of the text.
        priority: lower is earlier, as in vLLM.

    Raises:
        InvalidRequestError: a value is out of its range, which the message states.
    """

    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())
    stop_token_ids: tuple[int, ...] = field(default=())
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    priority: int = 0

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen; this is its constructor
        put(self, "stop", (self.stop,) if isinstance(self.stop, str) else _tuple(self, "stop"))
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
        self._check_stops()

    def _check_numbers(self) -> None:
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

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidRequestError(
                    f"stop holds {text!r}", hint="every stop string has at least one character"
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
