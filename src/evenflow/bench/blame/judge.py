"""The way from records to a verdict.

In: the records of a run and, where there are any, the steps that the server recorded or logged.
Out: a `Blame`. A pure function; it reads no file and no clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evenflow.bench.blame.attribute import attribute
from evenflow.bench.blame.causes import name_causes
from evenflow.bench.blame.chance import against_chance, exposure_of
from evenflow.bench.blame.find import find_episodes
from evenflow.bench.blame.knobs import guess_engine
from evenflow.bench.blame.model import Blame, BlameOptions
from evenflow.bench.blame.prefills import prefills_of
from evenflow.bench.blame.verdict import advise, causes_of, judge, offenders_of
from evenflow.bench.measure import window_of

if TYPE_CHECKING:
    from evenflow.bench.blame.evidence import Evidence
    from evenflow.bench.blame.model import Depth
    from evenflow.bench.records import Records


def blame(
    records: Records, options: BlameOptions | None = None, evidence: Evidence | None = None
) -> Blame:
    """Find the stalls of a run, who caused them, and whether that could be chance.

    Args:
        records: what a client saw.
        options: how to look.
        evidence: what the server said of its steps; see `evidence.py`.
    """
    options = options or BlameOptions()
    if not options.engine:
        known = evidence.engine if evidence is not None else ""
        options = replace(options, engine=known or guess_engine(records))
    requests = records.requests
    found = find_episodes(requests, options, window_of(records))
    episodes = found.episodes
    problems = [*records.problems, *_failures(records)]
    prefills = prefills_of(requests, found)
    if evidence is not None:
        prefills = evidence.refine(prefills, records)
    if records.header.get("aligned", True):
        attribute(episodes, prefills, requests)
    else:
        problems.append("streams cannot be laid side by side, so no prefill can be blamed")
    chance = against_chance(
        [e for e in episodes if not e.alone],
        prefills,
        exposure_of(found.gaps),
        permutations=options.permutations,
        seed=options.seed,
    )
    together = iter(chance.per_episode)
    for episode in episodes:
        episode.chance = 1.0 if episode.alone else next(together)
        if episode.cause == "prefill":
            episode.confidence *= 1.0 - episode.chance
    name_causes(episodes, records)
    depth: Depth = "metrics" if records.scrapes else "records"
    if evidence is not None:
        depth = evidence.apply(episodes, records, prefills) or depth
        problems += evidence.problems
    offenders = offenders_of(episodes, requests, prefills)
    stalled_ms = sum(episode.stream_ms for episode in episodes)
    causes = causes_of(episodes)
    result = Blame(
        verdict="inconclusive",
        looks_like=None,
        summary="",
        p_value=chance.p_value,
        explained_share=causes.get("prefill", 0.0) / stalled_ms if stalled_ms else 0.0,
        episodes=episodes,
        offenders=offenders,
        causes=causes,
        num_streams=sum(r.ok and len(r.messages) > 1 for r in requests),
        num_gaps=len(found.gaps.start_s),
        stalled_ms=stalled_ms,
        decoding_ms=float(found.gaps.ms.sum()) if found.gaps else 0.0,
        normal_ms=found.pace_ms,
        ms_per_token=prefills.ms_per_token,
        budget=advise(episodes, offenders, found.pace_ms, options),
        depth=depth,
        options=options,
        problems=problems,
    )
    judge(result)
    return result


def _failures(records: Records) -> list[str]:
    """A word on the requests that failed, whose gaps nobody looks at."""
    errors = [r.error for r in records.requests if not r.ok]
    if not errors:
        return []
    count = f"{len(errors):,} of {len(records.requests):,} requests"
    return [f"{count} failed and are left out: {max(errors, key=errors.count)}"]
