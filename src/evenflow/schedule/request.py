"""One request's progress through the scheduler.

Only the scheduler writes these fields; a runner reads `token_ids`, `draft_ids`, `block_ids`,
`num_cached_tokens`, `params`, `bad_words` and `masks` while it takes a plan.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.sampling import SamplingParams
    from evenflow.types import FinishReason, MaskSource, TokenLogprobs


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
    * `draft_ids`: guesses that stand behind `token_ids` while the decode that verifies them is in
      flight; empty otherwise, so planned may exceed the known tokens by as many;
    * `num_cached_tokens`: positions found in the prefix cache. They live in shared blocks, so when
      the last of them must be computed again (a full hit), nothing is written for it;
    * `num_scored_tokens`: positions whose logits have scored the prompt's next token, committed;
      they are never scored twice. Only a request that wants `prompt_logprobs` has any.
    """

    __slots__ = (
        "_history",
        "arrival",
        "bad_words",
        "block_ids",
        "cache_nodes",
        "cancelled",
        "draft_ids",
        "hard_claim",
        "id",
        "is_plain",
        "last_step",
        "masks",
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
        "num_scored_tokens",
        "num_skips",
        "order_key",
        "params",
        "pending_key",
        "prompt_logprobs",
        "scores_prompt",
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
        bad_words: tuple[tuple[int, ...], ...] = (),
        masks: MaskSource | None = None,
    ) -> None:
        self.id = request_id
        self.token_ids = list(prompt_token_ids)
        self.params = params
        self.max_tokens = max_tokens  # resolved: never more than the context leaves
        self.stop_ids = stop_ids  # ids that end the request, the model's own included
        self.bad_words = bad_words  # sequences of ids that may not be generated
        self.masks = masks  # says which tokens may follow; None where all may
        # whether a draw needs no more than temperature, top_k, top_p and min_p
        self.is_plain = (
            params.logprobs is None
            and params.prompt_logprobs is None
            and masks is None
            and not (params.has_penalties or params.logit_bias or params.min_tokens or bad_words)
        )
        self.scores_prompt = params.prompt_logprobs is not None
        # how likely the prompt's tokens were, as far as they are scored; None where nobody asked
        # or they were taken already
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            [None] if self.scores_prompt else None
        )
        self.stage = Stage.WAITING
        self.cancelled = False
        self.draft_ids: list[int] = []
        self.block_ids: list[int] = []
        self.cache_nodes: list[int] = []  # chain of published nodes, one per full block
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_prefill_tokens = len(prompt_token_ids)  # positions to compute before decoding
        self.num_planned_tokens = 0
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_scored_tokens = 0
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
        self._history = array("i")

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens known so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_shareable_tokens(self) -> int:
        """Positions that need not be computed here when another request has computed them."""
        if self.scores_prompt and self.num_scored_tokens < self.num_prompt_tokens - 1:
            return self.num_scored_tokens
        return self.num_prefill_tokens

    def finish_with(self, token: int) -> FinishReason | None:
        """Whether the token just appended ends the request, and how."""
        num_output = len(self.token_ids) - self.num_prompt_tokens
        if token in self.stop_ids and num_output >= self.params.min_tokens:
            return "stop"
        if num_output >= self.max_tokens:
            return "length"
        return None

    def keep_scores(self, scores: Sequence[TokenLogprobs]) -> None:
        """Add what a committed step found of the prompt's tokens."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs.extend(scores)
            self.num_scored_tokens += len(scores)

    def take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """The finished list, to whoever comes first; None for everybody after."""
        taken, self.prompt_logprobs = self.prompt_logprobs, None
        return taken

    def history(self) -> array[int]:
        """`token_ids` as C ints, for those who need all of them at every step.

        The same array every time, longer by what is new: no view of it may be kept.
        """
        kept = self._history
        kept.extend(self.token_ids[len(kept) :])
        return kept

    def __repr__(self) -> str:
        return (
            f"Request({self.id!r}, {self.stage.name}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )
