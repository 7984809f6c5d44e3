"""Experiment F: does the answer depend on how its prompt was cut?

Sends the same prompts under each setting, alone and side by side, and compares the texts. Lengths
lie around multiples of the budgets, where faults of this kind live.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.conduct import Clock
from evenflow.bench.drivers.interface import Turn
from evenflow.bench.records import RequestRecord
from evenflow.bench.workload.plan import Segment
from evenflow.bench.workload.prompts import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.session import Session

OUTPUT_TOKENS = 24
AT_ONCE = 4


class Answers(NamedTuple):
    """The texts of one setting, by prompt length; `errors` likewise."""

    setting: str
    texts: dict[int, str]
    errors: dict[int, str]


class Difference(NamedTuple):
    """A prompt whose answer differs from the first setting's, and from which character on."""

    setting: str
    prompt_tokens: int
    at_char: int
    expected: str
    got: str


def prompt_lengths(budgets: Sequence[int], longest: int) -> list[int]:
    """Lengths one below, at and one above once and twice each budget, as far as they fit."""
    edges = {k * b + d for b in budgets for k in (1, 2) for d in (-1, 0, 1)}
    return sorted(n for n in edges | {1, longest} if 1 <= n <= longest)


async def ask_all(session: Session, setting: str, lengths: Sequence[int], seed: int) -> Answers:
    """Answers to one prompt of each length, a few at a time so that they share steps."""
    clock = Clock()
    places = asyncio.Semaphore(AT_ONCE)
    answers = Answers(setting, {}, {})

    async def ask(length: int) -> None:
        text = text_of([Segment(seed + length, length)], session.calibration)
        prepared = session.driver.prepare(Turn(text, OUTPUT_TOKENS, length))
        record = RequestRecord(id=f"equal-{length}")
        async with places:
            answers.texts[length] = await session.driver.send(prepared, record, clock)
        if record.error:
            answers.errors[length] = record.error

    await asyncio.gather(*(ask(length) for length in lengths))
    return answers


def differences(answers: Sequence[Answers]) -> list[Difference]:
    """Where later settings' texts differ from the first one's."""
    found = []
    first = answers[0]
    for other in answers[1:]:
        for length, text in sorted(other.texts.items()):
            expected = first.texts.get(length)
            if length in first.errors or length in other.errors:
                continue  # what failed has no answer to compare
            if expected is None or expected == text:
                continue
            shorter = min(len(expected), len(text))
            at = next((i for i in range(shorter) if expected[i] != text[i]), shorter)
            shown = slice(max(0, at - 10), at + 20)
            found.append(Difference(other.setting, length, at, expected[shown], text[shown]))
    return found
