"""What blame finds: stalls, the moments they share, who caused them, and the verdict.

Plain values without behaviour beyond simple sums. All times are seconds of the records' clock;
durations end in `_ms`. "Stream time" counts a stall once for each stream that stood still.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from evenflow.bench.gaps import STALL_FACTOR

Cause = Literal[
    "prefill", "preemption", "queueing", "server_pause", "client", "buffering", "unknown"
]
Verdict = Literal[
    "chunked_prefill_off", "budget_too_large", "not_prefill", "no_stalls", "inconclusive"
]
# records alone; with the server's /metrics; with lines of its log; with a record of every step
Depth = Literal["records", "metrics", "log", "steps"]


@dataclass(frozen=True, slots=True)
class BlameOptions:
    """How to look.

    Attributes:
        factor: a gap is a stall when it is longer than so many of the stream's own median gap...
        min_excess_ms: ...and longer than that median by this, below which timers are not trusted.
        limit_ms: instead of the factor, a gap is a stall when it is longer than this.
        target_ms: the longest gap that the advised budget should allow; None takes `limit_ms`, or
            what counts as a stall.
        permutations: how many random shifts the test against chance makes.
        level: the p-value under which chance is ruled out.
        seed: of the shifts.
        engine: whose knobs the advice names; "" names those of the common ones.
    """

    factor: float = STALL_FACTOR
    min_excess_ms: float = 5.0
    limit_ms: float | None = None
    target_ms: float | None = None
    permutations: int = 999
    level: float = 0.05
    seed: int = 0
    engine: str = ""


class Stall(NamedTuple):
    """One gap of one stream that was too long.

    `normal_ms` is the stream's usual gap, and `expected_ms` what a message with as many tokens
    takes when nothing is in the way.
    """

    request_id: str
    start_s: float
    end_s: float
    normal_ms: float
    expected_ms: float
    tokens: int

    @property
    def gap_ms(self) -> float:
        """How long the stream stood still."""
        return (self.end_s - self.start_s) * 1e3

    @property
    def excess_ms(self) -> float:
        """How much longer than usual that is."""
        return max(0.0, self.gap_ms - self.normal_ms)


class Culprit(NamedTuple):
    """A request whose prefill was in the way, and the milliseconds it cost each stalled stream."""

    request_id: str
    ms: float
    tokens: float  # prompt tokens computed meanwhile, as far as can be told


@dataclass(slots=True)
class Episode:
    """A moment at which one or more streams stood still together: a step of the server, mostly.

    Attributes:
        start_s, end_s: while all of them stood still.
        stalls: one per stream that did.
        num_decoding: streams that were in the middle of their output then.
        num_progressing: of those, the ones that got messages all the same.
        cause: what it was, or looks like.
        confidence: from 0 to 1, how sure that is.
        culprits: whose prefill, largest share first; empty for other causes.
        share: of its loss, what the culprits explain; the rest had another reason.
        evidence: why, in one line.
        chance: how often a stall of this length at a random time would be explained as well.
    """

    start_s: float
    end_s: float
    stalls: list[Stall]
    num_decoding: int
    num_progressing: int
    cause: Cause = "unknown"
    confidence: float = 0.0
    culprits: list[Culprit] = field(default_factory=list)
    share: float = 1.0
    evidence: str = ""
    chance: float = 1.0

    @property
    def excess_ms(self) -> float:
        """The typical loss of one of its streams."""
        values = sorted(stall.excess_ms for stall in self.stalls)
        return values[len(values) // 2]

    @property
    def stream_ms(self) -> float:
        """The loss of all its streams together."""
        return sum(stall.excess_ms for stall in self.stalls)

    @property
    def explained_ms(self) -> float:
        """The part of the loss of all its streams that the culprits explain."""
        return self.share * self.stream_ms if self.culprits else 0.0

    def part_of(self, request_id: str) -> float:
        """The share of a request in what prefills cost here, from 0 to 1."""
        total = sum(culprit.ms for culprit in self.culprits)
        mine = sum(culprit.ms for culprit in self.culprits if culprit.request_id == request_id)
        return mine / total if total > 0 else 0.0

    @property
    def alone(self) -> bool:
        """Whether most streams went on meanwhile, which no prefill in the same engine allows."""
        stood = len(self.stalls)
        others = self.num_progressing
        return others > 0 and (stood < 2 or stood < 0.25 * (stood + others))


@dataclass(frozen=True, slots=True)
class Offender:
    """A request whose prefill made others wait.

    Attributes:
        stalls: gaps of other streams that it had a part in, a tenth at least.
        episodes: the moments these belong to.
        stream_ms: milliseconds it cost, summed over streams.
        worst_ms: the longest such gap.
        share: of all stalled time in the run.
        confidence: of its episodes, weighted by what they cost.
        whole: its prefill was one single gap; None when that cannot be told.
    """

    request_id: str
    class_name: str
    prompt_tokens: int | None
    send_s: float
    stalls: int
    episodes: int
    stream_ms: float
    worst_ms: float
    share: float
    confidence: float
    whole: bool | None


@dataclass(frozen=True, slots=True)
class BudgetAdvice:
    """The step budget that would have kept gaps under a target, from the run's own figures.

    `tokens` is None where not even a decode-only step stays under the target. `chunk_tokens` is
    the largest number of prompt tokens that one gap held, as far as can be told.
    """

    tokens: int | None
    target_ms: float
    decode_ms: float
    ms_per_token: float
    chunk_tokens: int
    knob: str


@dataclass(slots=True)
class Blame:
    """The outcome.

    Attributes:
        verdict: one of five words; `summary` says it in sentences.
        looks_like: the leading other cause, when prefill is not it.
        explained_share: of all stalled time, the part that prefills explain.
        causes: stalled stream time by cause, in ms.
        p_value: how often random shifts of the prefills in time explain as much.
        depth: what the judgement rests on.
        problems: what could not be read, matched or told; one line each.
    """

    verdict: Verdict
    looks_like: Cause | None
    summary: str
    p_value: float
    explained_share: float
    episodes: list[Episode]
    offenders: list[Offender]
    causes: dict[Cause, float]
    num_streams: int
    num_gaps: int
    stalled_ms: float
    decoding_ms: float
    normal_ms: float | None
    ms_per_token: float | None
    budget: BudgetAdvice | None
    depth: Depth
    options: BlameOptions
    problems: list[str] = field(default_factory=list)

    @property
    def num_stalls(self) -> int:
        """Gaps that were too long, over all streams."""
        return sum(len(episode.stalls) for episode in self.episodes)
