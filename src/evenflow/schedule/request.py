"""One request's progress through the scheduler.

Only the scheduler writes these fields; a runner reads `token_ids`, `block_ids`,
`num_cached_tokens` and `params` while it takes a plan.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenflow.sampling import SamplingParams


class Stage(IntEnum):
    """Where a request stands; stored, never inferred from a length."""

    WAITING = 0  # holds no blocks
    PREFILL = 1  # admitted; its prompt (and, after a preemption, its output) is being computed
    DECODE = 2  # one position a step
    FINISHED = 3


class Request:
    """A prompt and what became of it.

    Token counts, all in positions from the start of the sequence:

    * `num_prompt_tokens` <= `len(token_ids)`: the prompt, then the generated tokens;
    * `num_planned_tokens`: positions handed to a runner, moved by `plan`;
    * `num_computed_tokens` <= planned: positions whose step was committed;
    * `num_cached_tokens`: positions found in the prefix cache. They live in shared blocks, so when
      the last of them must be computed again (a full hit), nothing is written for it.
    """

    __slots__ = (
        "arrival",
        "block_ids",
        "cache_nodes",
        "cancelled",
        "hard_claim",
        "id",
        "last_step",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight",
        "num_lost_tokens",
        "num_planned_tokens",
        "num_preemptions",
        "num_prefill_tokens",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_reserved_blocks",
        "num_skips",
        "order_key",
        "params",
        "pending_key",
        "stage",
        "stop_ids",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        max_tokens: int,
        stop_ids: frozenset[int],
    ) -> None:
        self.id = request_id
        self.token_ids = list(prompt_token_ids)
        self.params = params
        self.max_tokens = max_tokens  # resolved: never more than the context leaves
        self.stop_ids = stop_ids  # ids that end the request, the model's own included
        self.stage = Stage.WAITING
        self.cancelled = False
        self.block_ids: list[int] = []
        self.cache_nodes: list[int] = []  # chain of published nodes, one per full block
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_prefill_tokens = len(prompt_token_ids)  # positions to compute before decoding
        self.num_planned_tokens = 0
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_reserved_blocks = 0  # blocks claimed and not yet taken
        self.hard_claim = False  # whether nobody may eat into that claim
        self.num_in_flight = 0  # plans that hold a span of it and are not committed
        self.num_preemptions = 0
        self.num_lost_tokens = 0  # computed before a preemption, not yet found again
        self.num_recomputed_tokens = 0
        self.num_skips = 0  # times a later request was admitted past it
        self.last_step = -1  # serial of the step that last advanced it
        self.arrival = -1
        self.order_key: tuple[int, int] = (0, 0)
        self.pending_key: tuple[int, tuple[int, ...]] | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.id!r}, {self.stage.name}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )
