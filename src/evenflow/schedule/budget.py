"""How many tokens a step may compute, and why.

A budget is asked once a step. Today it is a fixed number; a latency target is another class with
the same method.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Allowance(NamedTuple):
    """What one step may compute: decodes and chunks together."""

    tokens: int
    reason: str


class Budget(Protocol):
    """Decides the size of a step."""

    def allow(self, num_decodes: int) -> Allowance:
        """The allowance of the next step, in which `num_decodes` streams could decode."""
        ...


class FixedBudget:
    """The same number of tokens in every step: `max_num_batched_tokens`."""

    __slots__ = ("_allowance",)

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._allowance = Allowance(max_num_batched_tokens, "fixed")

    def allow(self, num_decodes: int) -> Allowance:
        """The fixed allowance, whatever the number of decodes."""
        del num_decodes
        return self._allowance
