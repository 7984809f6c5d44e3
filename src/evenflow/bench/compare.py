"""Two targets, or two recordings, against each other: a verdict for each figure.

Live: A is run against itself first, which shows how much two runs of the same thing differ here and
now; then A and B take turns, so that each pair shares the machine's mood. Recorded: the intervals
come from a block bootstrap of each recording, and there is no noise floor to hold them against.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.bench.gaps import gap_table
from evenflow.bench.measure import MeasureOptions, measure, ttft_ms, window_of
from evenflow.bench.paired import Verdict, decide, percent
from evenflow.bench.quantiles import MIN_BLOCKS, blocks_of, replicate_percentiles
from evenflow.bench.sweep.experiments import ATTACK_TABLE, TABLE, Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from evenflow.bench.measure import Metrics
    from evenflow.bench.records import Records
    from evenflow.bench.run import RunOptions
    from evenflow.bench.session import Outcome, Session
    from evenflow.bench.workload.plan import Workload

FIGURES = (
    *TABLE[:3],
    Figure("p50 TTFT", "ms", lambda m: m.latency("ttft_ms", 50.0)),
    TABLE[4],
    Figure("p50 TPOT", "ms", lambda m: m.latency("tpot_ms", 50.0)),
    *ATTACK_TABLE[:3],
    ATTACK_TABLE[4],
    TABLE[5],
)


class Turn(NamedTuple):
    """One run to do: who, in which pair, and whether the pair is A against itself."""

    who: str
    pair: int
    noise: bool

    @property
    def words(self) -> int:
        """Which words its prompts are of: a pair's are the same, unless one server gets them twice."""
        again = self.noise and self.who == "a2"
        return 3 * self.pair + (1 + again if self.noise else 0)

    @property
    def slug(self) -> str:
        """Its name in files."""
        return f"{'noise' if self.noise else 'pair'}-{self.pair}-{self.who}"


class Compared(NamedTuple):
    """A figure of both sides, as medians over their runs, and the verdict."""

    figure: Figure
    a: float
    b: float
    verdict: Verdict


class Comparison(NamedTuple):
    """All verdicts; `invalid` names the runs that must not be believed."""

    compared: list[Compared]
    invalid: list[str]
    noise_pairs: int
    pairs: int
    interrupted: bool = False


def turns(pairs: int, noise_pairs: int) -> list[Turn]:
    """A against itself first; then A and B in turns, each going first as often as the other."""
    order = [Turn(who, n, noise=True) for n in range(noise_pairs) for who in ("a1", "a2")]
    for n in range(pairs):
        first, second = ("a", "b") if n % 2 == 0 else ("b", "a")
        order += [Turn(first, n, noise=False), Turn(second, n, noise=False)]
    return order


async def compare_live(
    a: Session,
    b: Session,
    workload: Workload,
    folder: Path,
    *,
    pairs: int,
    noise_pairs: int,
    options: RunOptions,
    measuring: MeasureOptions,
    say: Callable[[str], None],
) -> Comparison:
    """Run both in turns and decide.

    Raises:
        RecordError: the folder cannot be written.
    """
    outcomes: dict[Turn, Outcome] = {}
    order = turns(pairs, noise_pairs)
    for number, turn in enumerate(order, start=1):
        say(f"[{number}/{len(order)}] {turn.slug}")
        session = b if turn.who == "b" else a
        prompts = workload.anew(turn.words)  # else a prefix cache would answer for what it has seen
        outcome = await session.run(prompts, folder / f"{turn.slug}.jsonl", options, measuring)
        outcomes[turn] = outcome
        if outcome.interrupted:
            break
    found = {turn: o.metrics for turn, o in outcomes.items() if not o.interrupted}
    invalid = [
        f"{turn.slug}: {f.name}: {f.fact}"
        for turn, outcome in outcomes.items()
        for f in outcome.findings
        if not f.ok
    ]
    stopped = any(outcome.interrupted for outcome in outcomes.values())
    return judge_turns(found, invalid)._replace(interrupted=stopped)


def judge_turns(found: dict[Turn, Metrics], invalid: Sequence[str]) -> Comparison:
    """Verdicts from the figures of all turns; a pair that is not complete does not count."""
    noise_pairs = sorted({t.pair for t in found if t.noise})
    pairs = sorted({t.pair for t in found if not t.noise})
    compared = []
    for figure in FIGURES:

        def of(who: str, pair: int, *, noise: bool, figure: Figure = figure) -> float | None:
            metrics = found.get(Turn(who, pair, noise))
            return None if metrics is None else figure.of(metrics)

        noise = _logs([(of("a1", n, noise=True), of("a2", n, noise=True)) for n in noise_pairs])
        both = [(of("a", n, noise=False), of("b", n, noise=False)) for n in pairs]
        ratios = _logs(both)
        if not ratios:
            continue
        sides = [[v for v in side if v is not None] for side in zip(*both, strict=True)]
        a, b = (float(np.median(side)) for side in sides)
        compared.append(Compared(figure, a, b, decide(ratios, noise)))
    return Comparison(compared, list(invalid), len(noise_pairs), len(pairs))


def _logs(pairs: Sequence[tuple[float | None, float | None]]) -> list[float]:
    return [math.log(b / a) for a, b in pairs if a and b]


def compare_recorded(a: Records, b: Records, measuring: MeasureOptions) -> Comparison:
    """Verdicts on two recordings, by resampling each; figures without an interval are left out."""
    ma, mb = measure(a, measuring), measure(b, measuring)
    compared = []
    sources = ((TABLE[0], "itl", 50.0), (TABLE[1], "itl", 95.0), (TABLE[2], "itl", 99.0))
    more = ((FIGURES[3], "ttft", 50.0), (FIGURES[4], "ttft", 95.0))
    for figure, kind, wanted in (*sources, *more):
        sides = [_replicates(r, kind, wanted, seed) for seed, r in enumerate((a, b))]
        one, other = figure.of(ma), figure.of(mb)
        if sides[0] is None or sides[1] is None or not one or not other:
            continue
        logs = np.log(np.maximum(sides[1], 1e-9) / np.maximum(sides[0], 1e-9))
        low, high = (float(x) for x in np.quantile(logs, [0.025, 0.975]))
        verdict = _recorded_verdict(low, high, other / one)
        compared.append(Compared(figure, one, other, verdict))
    return Comparison(compared, [], 0, 0)


def _recorded_verdict(low: float, high: float, ratio: float) -> Verdict:
    if low <= 0 <= high:
        return Verdict("none", 0.0, percent(max(abs(low), abs(high))), None, ratio, 0)
    bounds = sorted((percent(low), percent(high)))
    return Verdict("lower" if high < 0 else "higher", bounds[0], bounds[1], None, ratio, 0)


def _replicates(records: Records, kind: str, wanted: float, seed: int) -> np.ndarray | None:
    """A percentile in many resampled versions of a recording; None when it is too short."""
    window = window_of(records)
    if kind == "itl":
        gaps = gap_table(records.requests).within(window)
        values, times, longest = gaps.ms, gaps.end_s, float(gaps.ms.max()) / 1e3 if gaps else 0.0
    else:
        sent = [r for r in records.requests if r.ok and window.holds(r.send_s)]
        pairs = [(t, r.send_s) for r in sent if (t := ttft_ms(r)) is not None]
        values = np.array([t for t, _ in pairs])
        times, longest = np.array([s for _, s in pairs], np.float64), 0.0
    if not len(values):
        return None
    used, index = np.unique(blocks_of(times, longest), return_inverse=True)
    if len(used) < MIN_BLOCKS:
        return None
    return replicate_percentiles(values, index, len(used), [wanted], seed=seed)[:, 0]
