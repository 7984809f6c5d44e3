"""What drafts may take and must give back, as a watcher of the scheduler's worlds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from helpers.schedule_world import Watcher

if TYPE_CHECKING:
    from evenflow.types import StepPlan, TokenEvent


class DraftsDelayNobody(Watcher):
    """Drafts take what is left: of the budget, of the blocks, and give it back."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.counts: Counter[str] = Counter()
        self.num_blocks = {}  # before a plan
        self.num_own = {}  # blocks that nobody else may take, before a plan
        self.num_plans_with_drafts = 0

    def planning(self) -> None:
        decodes = self.world.scheduler._decodes
        self.num_blocks = {r.id: len(r.block_ids) for r in decodes}
        self.num_own = {r.id: r.num_reserved_blocks for r in decodes if r.hard_claim}

    def planned(self, plan: StepPlan) -> None:
        scheduler, options = self.world.scheduler, self.world.options
        decodes, chunks = plan.spans[: plan.num_decodes], plan.spans[plan.num_decodes :]
        lengthened = [s for s in decodes if s.length > 1]
        assert not any(s.request.draft_ids for s in chunks), "drafts in a chunk"
        for span in lengthened:
            request, num_drafts = span.request, span.length - 1
            assert num_drafts <= options.num_speculative_tokens
            assert request.num_output_tokens + num_drafts < request.max_tokens
        if not lengthened:
            return
        self.num_plans_with_drafts += 1
        assert plan.num_tokens <= plan.budget, "drafts went over the budget"
        assert plan.num_decodes <= (options.speculative_disable_by_batch_size or 10_000)
        # nobody else could have used the room, so nobody was delayed
        left_out = [
            r
            for r in scheduler._decodes
            if r.last_step != plan.serial
            and not r.num_in_flight
            and r.num_planned_tokens < len(r.block_ids) * options.block_size
        ]
        assert not left_out, f"{left_out} could decode, but drafts had the room"
        kv = scheduler.kv
        for span in lengthened:
            old = max(self.num_blocks.get(span.request.id, 0), kv.blocks_for(span.start + 1))
            if len(span.request.block_ids) > old:
                assert options.plan_depth == 1, "drafts hold blocks while others may be planned"
                taken = len(span.request.block_ids) - self.num_blocks.get(span.request.id, 0)
                if taken <= self.num_own.get(span.request.id, 0):
                    continue  # its own hard claim: what others may take is as it was
                assert kv.has_room(), "drafts hold blocks that others have claimed"

    def called(self) -> None:
        for request in self.world.scheduler._decodes:
            if not request.draft_ids:
                most = self.world.scheduler.kv.blocks_for(request.num_tokens)
                assert len(request.block_ids) <= most, f"{request} kept the blocks of wrong drafts"

    def events(self, events: list[TokenEvent]) -> None:
        self.counts.update(e.request_id for e in events if e.finish is not None)

    def ended(self) -> None:
        stats, runner = self.world.scheduler.stats(), self.world.runner
        assert sum(stats.accepted_by_place) == stats.num_accepted_tokens
        assert stats.num_draft_tokens == runner.num_right + runner.num_wrong
        assert stats.num_accepted_tokens <= runner.num_right
        if self.world.options.num_speculative_tokens:
            assert Counter(self.world.drafter.forgotten) == self.counts
        assert not any(r.draft_ids for r in self.world.scheduler._requests.values())
