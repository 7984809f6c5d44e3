"""What a server said of its own steps, as the judgement uses it.

`StepEvidence` (ours: a record of every step, with the requests in it) settles each stall;
`LogEvidence` (lines of another engine's log, without request ids) confirms or refutes what the
client saw, and says how many prompt tokens a step held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.blame.model import Depth, Episode
    from evenflow.bench.blame.prefills import Prefills
    from evenflow.bench.records import Records


class KnownStep(NamedTuple):
    """A step on the run's clock; `ms` is None where nobody said how long it took."""

    start_s: float
    ms: float | None
    num_decodes: int
    prompt_tokens: int


class Evidence(Protocol):
    """Something that the server left behind.

    `engine` says whose it is, "" when nobody can tell; `known_steps` are there after `apply`.
    """

    engine: str
    problems: list[str]
    known_steps: list[KnownStep]

    def refine(self, prefills: Prefills, records: Records) -> Prefills:
        """Windows made better by what is known of single prefills."""
        ...

    def apply(
        self, episodes: Sequence[Episode], records: Records, prefills: Prefills
    ) -> Depth | None:
        """Change cause, culprits, confidence and evidence of the episodes it knows about.

        Returns:
            The depth reached; None when nothing of it falls into the run.
        """
        ...
