"""Workloads drawn from a seed: arrivals, mixtures, shared prefixes, conversations, attacks.

Everything random comes from the generator that is handed in, so the same seed draws the same
workload on any machine.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.bench.counting import spread
from evenflow.bench.measure import ATTACKER
from evenflow.bench.workload.plan import PlannedRequest, Segment, Workload
from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

VICTIM = "victim"
_LENGTH = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+)|~(?P<sd>\d+))?")
_INJECT = re.compile(r"(?P<prompt>\d+)(?:/(?P<output>\d+))?@(?P<at>\d+(?:\.\d+)?)s?")


class Length(NamedTuple):
    """A number of tokens: fixed, uniform from `low` to `high`, or normal around `low`."""

    low: int
    high: int
    sd: int

    def draw(self, rng: np.random.Generator) -> int:
        """One length, at least 1."""
        if self.sd:
            return max(1, round(rng.normal(self.low, self.sd)))
        return int(rng.integers(self.low, self.high + 1))


class RequestClass(NamedTuple):
    """One kind of request in a mixture."""

    name: str
    prompt: Length
    output: Length
    weight: float


class Injection(NamedTuple):
    """A long prompt and when it lands, in seconds after every stream is decoding."""

    prompt_tokens: int
    output_tokens: int
    at_s: float


class Shape(NamedTuple):
    """What goes beyond single requests: shared prefixes and conversations."""

    prefix_tokens: int = 0
    num_prefixes: int = 1
    turns: int = 1
    turn_tokens: int = 64
    think_s: float = 0.0


def parse_length(text: str, what: str = "a length") -> Length:
    """Read "500", "400-600" or "500~100".

    Raises:
        ConfigError: it is none of these.
    """
    match = _LENGTH.fullmatch(text.strip())
    low = int(match["low"]) if match else 0
    high = int(match["high"]) if match and match["high"] else low
    if match is None or low < 1 or high < low:
        raise ConfigError(
            f"{what} is {text!r}",
            hint="write 500, or 400-600 (uniform), or 500~100 (normal, its deviation after ~)",
        )
    return Length(low, high, int(match["sd"] or 0))


def parse_mix(text: str) -> list[RequestClass]:
    """Read a mixture such as "short:500/128@0.9,long:24000/64@0.1".

    Raises:
        ConfigError: it cannot be read, a name is given twice, or the weights do not add up to 1.
    """
    hint = 'write it as "short:500/128@0.9,long:24000/64@0.1": name:prompt/output@weight'
    classes = []
    for part in text.split(","):
        name, colon, rest = part.strip().partition(":")
        sizes, at, weight = rest.partition("@")
        prompt, slash, output = sizes.partition("/")
        if not (name and colon and at and slash):
            raise ConfigError(f"cannot read {part.strip()!r} in the mixture", hint=hint)
        try:
            share = float(weight)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ConfigError(f"the weight of {name!r} is {weight!r}", hint=hint)
        classes.append(
            RequestClass(name, parse_length(prompt), parse_length(output), share),
        )
    if len({c.name for c in classes}) < len(classes):
        raise ConfigError("a class of the mixture is named twice", hint=hint)
    total = sum(c.weight for c in classes)
    if abs(total - 1) > 1e-3:
        raise ConfigError(f"the weights of the mixture add up to {total:g}, not to 1", hint=hint)
    return classes


def parse_injection(text: str, default_output: int) -> Injection:
    """Read "24000@5s" or "24000/64@5s".

    Raises:
        ConfigError: it is neither.
    """
    match = _INJECT.fullmatch(text.strip())
    if match is None or int(match["prompt"]) < 1:
        raise ConfigError(
            f"cannot read the injection {text!r}",
            hint="write TOKENS@SECONDSs, such as 24000@5s, or 24000/64@5s with its output tokens",
        )
    output = int(match["output"] or default_output)
    return Injection(int(match["prompt"]), output, float(match["at"]))


def arrivals(count: int, rate: float, burstiness: float, rng: np.random.Generator) -> list[float]:
    """Moments of arrival from 0: gamma gaps of mean 1/rate; a shape of 1 is a Poisson process.

    They are stretched so that the last one is where the rate says (vLLM's client does so too): a
    short run would otherwise miss its own rate by chance.

    Raises:
        ConfigError: a rate or burstiness that is not above 0.
    """
    if not rate > 0 or not burstiness > 0:
        raise ConfigError(
            f"the request rate is {rate:g} and the burstiness {burstiness:g}",
            hint="both are above 0; a rate of inf sends everything at once",
        )
    if math.isinf(rate):
        return [0.0] * count
    steps = rng.gamma(burstiness, 1 / (rate * burstiness), max(0, count - 1))
    times = np.concatenate([[0.0], np.cumsum(steps)])
    if count > 1 and times[-1] > 0:
        times *= (count - 1) / rate / times[-1]
    return [float(t) for t in times[:count]]


def draw_mixture(
    classes: Sequence[RequestClass],
    count: int,
    at_s: Sequence[float | None],
    shape: Shape,
    rng: np.random.Generator,
) -> list[PlannedRequest]:
    """Requests of the classes in their exact proportions, in random order.

    Drawing each request's class by itself would let a short run have no long prompt at all.
    """
    shares = spread(count, [c.weight for c in classes])
    kinds = [c for c, n in zip(classes, shares, strict=True) for _ in range(n)]
    order = rng.permutation(count)
    prefixes = [int(s) for s in rng.integers(0, 2**31, shape.num_prefixes)]
    requests: list[PlannedRequest] = []
    for index, at in enumerate(at_s):
        kind = kinds[order[index]]
        segments = [Segment(int(rng.integers(0, 2**31)), kind.prompt.draw(rng))]
        if shape.prefix_tokens:
            shared = prefixes[int(rng.integers(0, len(prefixes)))]
            segments.insert(0, Segment(shared, shape.prefix_tokens))
        first = PlannedRequest(
            id=f"r{index}",
            class_name=kind.name,
            at_s=at,
            segments=segments,
            output_tokens=kind.output.draw(rng),
            session=f"s{index}" if shape.turns > 1 else "",
        )
        requests.append(first)
        requests += [
            PlannedRequest(
                id=f"{first.id}.{turn}",
                class_name=kind.name,
                segments=[Segment(int(rng.integers(0, 2**31)), shape.turn_tokens)],
                output_tokens=kind.output.draw(rng),
                session=first.session,
                turn=turn,
                think_s=shape.think_s,
            )
            for turn in range(1, shape.turns)
        ]
    return requests


def draw_attack(
    streams: int,
    prompt: Length,
    output_tokens: int,
    injections: Sequence[Injection],
    rng: np.random.Generator,
) -> Workload:
    """Steady streams, and long prompts that land among them once all of them are decoding."""
    requests = [
        PlannedRequest(
            id=f"{VICTIM}-{i}",
            class_name=VICTIM,
            at_s=0.0,
            segments=[Segment(int(rng.integers(0, 2**31)), prompt.draw(rng))],
            output_tokens=output_tokens,
            steady=True,
        )
        for i in range(streams)
    ]
    requests += [
        PlannedRequest(
            id=f"{ATTACKER}-{i}",
            class_name=ATTACKER,
            at_s=one.at_s,
            segments=[Segment(int(rng.integers(0, 2**31)), one.prompt_tokens)],
            output_tokens=one.output_tokens,
            after_ready=True,
        )
        for i, one in enumerate(sorted(injections, key=lambda one: one.at_s))
    ]
    return Workload(requests)
