"""Text for a prompt of a wanted length, without the model's tokenizer.

The words are common enough to be one token each in the usual vocabularies. What a server really
counts is found by asking it twice (`Calibration`), and every request's own count is what the
records hold in the end.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.workload.plan import Segment

WORDS = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face level office door health person
art war history party result change morning reason research moment air teacher force education foot
boy age policy music market sense nation plan college interest death experience effect use class
control field development role effort rate heart show leader light voice wife police mind price
report decision son view relationship town road arm difference value building action season society
tax director position player record paper space ground form event official matter center couple site
project activity star table need court oil situation cost industry figure street image phone data
picture practice piece land product doctor wall worker news test movie north love support technology
""".split()  # noqa: SIM905 - a list of two hundred strings is no easier to read


class Calibration(NamedTuple):
    """What a server makes of our words: tokens per word, and tokens that it adds to each prompt."""

    tokens_per_word: float = 1.0
    overhead_tokens: int = 0
    measured: bool = False


def calibrate(small: tuple[int, int], large: tuple[int, int]) -> Calibration:
    """From two prompts, each as (words, tokens counted by the server), to the line through them."""
    rate = (large[1] - small[1]) / (large[0] - small[0])
    if rate <= 0:
        return Calibration()
    return Calibration(rate, max(0, round(small[1] - rate * small[0])), measured=True)


def words_of(seed: int, count: int) -> str:
    """`count` words that only `seed` decides."""
    draw = Random(seed).random  # noqa: S311 - text to fill a prompt with, no secret
    return " ".join([WORDS[int(draw() * len(WORDS))] for _ in range(count)])


def text_of(segments: Sequence[Segment], calibration: Calibration) -> str:
    """The text of a prompt; what the server adds is taken off the last segment."""
    sizes = [s.tokens for s in segments]
    if sizes:
        sizes[-1] = max(1, sizes[-1] - calibration.overhead_tokens)
    parts = [
        words_of(s.seed, max(1, round(size / calibration.tokens_per_word)))
        for s, size in zip(segments, sizes, strict=True)
    ]
    return " ".join(parts)
