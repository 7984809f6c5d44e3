"""The seam between the engine and whatever computes a step.

A runner turns a `StepPlan` into a `StepResult`. It reads the plan's requests (token ids, block
ids, sampling parameters) inside `submit`, before that returns, and never changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from evenflow.errors import RunnerError

if TYPE_CHECKING:
    from evenflow.types import StepPlan, StepResult


class StepHandle(Protocol):
    """A step that was submitted."""

    def result(self) -> StepResult:
        """Wait for the step and return its tokens.

        Raises:
            RunnerError: the step failed; nothing of it may be committed.
        """
        ...


class Done(NamedTuple):
    """The handle of a runner that computes inside `submit`."""

    outcome: StepResult | RunnerError

    def result(self) -> StepResult:
        """What came of the step."""
        if isinstance(self.outcome, RunnerError):
            raise self.outcome
        return self.outcome


class Runner(Protocol):
    """Computes steps, strictly in the order of `submit`.

    The KV pool (`num_blocks` blocks of `block_size` slots) belongs to the runner; which slot holds
    what is decided by the scheduler alone.
    """

    @property
    def name(self) -> str:
        """What the person asked for or got, such as "reference"."""
        ...

    def submit(self, plan: StepPlan) -> StepHandle:
        """Take a plan; the spans' requests are read before this returns."""
        ...

    def close(self) -> None:
        """Give back memory and threads; further submits raise `RunnerError`."""
        ...
