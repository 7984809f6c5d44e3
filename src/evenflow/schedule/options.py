"""What a scheduler is told, and what it tells: the rules' numbers, and counts for records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from evenflow.schedule.kv import KvUsage
    from evenflow.types import Policy


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """The rules' numbers; see `EngineConfig` for what each means to a person."""

    max_num_batched_tokens: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    enable_prefix_caching: bool = True
    policy: Policy = "chunked"
    long_prefill_token_threshold: int = 0
    max_partial_prefills: int = 4
    min_prefill_tokens: int = 16
    priority_aging_steps: int = 1000
    max_admission_skips: int = 64
    max_preemptions: int = 3
    plan_depth: int = 1
    num_speculative_tokens: int = 0  # 0: nothing is drafted
    prompt_lookup_max: int = 0
    prompt_lookup_min: int = 0
    speculative_disable_by_batch_size: int = 0


class SchedulerStats(NamedTuple):
    """Counts for records and metrics; those from `num_recomputed_tokens` on only grow.

    `num_drafts` are decodes that were lengthened, `num_draft_tokens` what they were lengthened by,
    `num_accepted_tokens` the tokens that came of it: each one saved a step of its request.
    `accepted_by_place[i]` counts those at place i of their draft.
    """

    num_waiting: int
    num_running: int
    kv: KvUsage
    num_preemptions: int
    num_recomputed_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_place: tuple[int, ...] = ()
