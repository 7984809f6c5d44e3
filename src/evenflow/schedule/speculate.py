"""Speculation: a decode is lengthened by drafts, and the step says which of them are right.

In: the spans of a step and the room that is left in it. Out: longer spans; and, once the step is
committed, the run of tokens that it yielded. Where drafts come from is a `Drafter`'s business.

**The rule.** A span of 1 + d positions holds the last known token and d drafts, and has 1 + d rows
of logits. Row j draws as it would alone: from the distribution behind the drafts before it, with the
random number of (seed, position). Tokens are taken from row 0 on, up to and with the first that
differs from the draft at its place. docs/speculation.md shows why every token is the very one that
decoding one by one would have drawn.

**Who pays.** Drafts get what a step's decodes and prompts leave of the budget, so they delay nobody,
and blocks that nobody has claimed, so nobody gives way for them. What a wrong draft took is given
back at the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from evenflow.types import Span, TokenEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.schedule.kv import KvLedger
    from evenflow.schedule.options import SchedulerOptions
    from evenflow.schedule.request import Request
    from evenflow.types import FinishReason, TokenLogprobs


class Drafter(Protocol):
    """Guesses tokens; a wrong guess costs room in a step and nothing else."""

    def propose(self, request: Request, most: int) -> list[int]:
        """At most `most` tokens that may come after `request.token_ids`."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended."""
        ...


class DraftCounts(NamedTuple):
    """What speculation did so far; the fields are those of `SchedulerStats`."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_by_place: tuple[int, ...]


class Speculation:
    """Plans drafts and settles them; writes `draft_ids` of requests, and nobody else does."""

    __slots__ = (
        "_accepted",
        "_drafter",
        "_kv",
        "_most",
        "_most_decodes",
        "_num_draft_tokens",
        "_num_drafts",
        "_own_slots_only",
    )

    def __init__(self, options: SchedulerOptions, kv: KvLedger, drafter: Drafter) -> None:
        self._kv = kv
        self._drafter = drafter
        self._most = options.num_speculative_tokens
        self._most_decodes = options.speculative_disable_by_batch_size or options.max_num_seqs
        # a block taken now could be missed by a plan that is made before this step is committed
        self._own_slots_only = options.plan_depth > 1
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._accepted = [0] * self._most  # by place in the draft

    @property
    def counts(self) -> DraftCounts:
        """What was drafted and accepted so far."""
        accepted = tuple(self._accepted)
        return DraftCounts(self._num_drafts, self._num_draft_tokens, sum(accepted), accepted)

    def lengthen(self, spans: list[Span], num_decodes: int, room: int, serial: int) -> None:
        """Add drafts to the first `num_decodes` spans, at most `room` tokens in all.

        Where they do not all fit, everybody gets an equal share; whoever comes first in one step
        comes later in the next.
        """
        if room <= 0 or not 0 < num_decodes <= self._most_decodes:
            return
        proposals = []
        for index in range(num_decodes):
            request = spans[index].request
            if request.masks is not None:
                continue  # a grammar's masks are made for known tokens only
            # the last token of a request is never stored, so no slot exists for it
            most = min(self._most, room, request.max_tokens - request.num_output_tokens - 1)
            if most > 0 and (drafts := self._drafter.propose(request, most)):
                proposals.append((index, drafts))
        count = len(proposals)
        for place in range(count):
            index, drafts = proposals[(place + serial) % count]
            share = -(-room // (count - place))
            room -= self._add(spans, index, drafts[:share])

    def _add(self, spans: list[Span], index: int, drafts: list[int]) -> int:
        """Lengthen one span as far as there are slots; returns by how many tokens."""
        request, start, _, _ = spans[index]
        end = start + 1 + len(drafts)
        reached = self._kv.stretch(request, end, own_slots_only=self._own_slots_only)
        length = reached - start
        if length > 1:
            request.draft_ids = drafts[: length - 1]
            request.num_planned_tokens = reached
            spans[index] = Span(request, start, length, length)
            self._num_drafts += 1
            self._num_draft_tokens += length - 1
        return length - 1

    def commit(
        self,
        span: Span,
        tokens: tuple[int, ...],
        scored: Sequence[TokenLogprobs | None] | None,
        events: list[TokenEvent],
    ) -> FinishReason | None:
        """Append what a lengthened decode yielded, up to the token that ends the request.

        Args:
            span: it.
            tokens: one for each of its rows.
            scored: beside the tokens; None where nobody asked.
            events: one is added for each token that is taken.

        Returns:
            How the request ended, or None.
        """
        request = span.request
        finish = None
        num_taken = 0
        for token in self.verified(request, tokens):
            request.token_ids.append(token)
            entry = scored[num_taken] if scored else None
            num_taken += 1
            finish = request.finish_with(token)
            events.append(TokenEvent(request.id, token, entry, finish))
            if finish is not None:
                break
        self._settle(request, span.start, num_taken)
        return finish

    def verified(self, request: Request, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """What a span's rows yielded: the right drafts, and the first token that was none."""
        num_right = 0
        for draft, token in zip(request.draft_ids, tokens, strict=False):
            if draft != token:
                break
            num_right += 1
        return tokens[: num_right + 1]

    def _settle(self, request: Request, start: int, num_taken: int) -> None:
        """`num_taken` tokens of a lengthened span from `start` were appended to the request.

        Publishes what is full now and gives back the blocks that only wrong drafts needed.
        """
        request.draft_ids = []
        request.num_computed_tokens = request.num_planned_tokens = start + num_taken
        for place in range(num_taken - 1):
            self._accepted[place] += 1
        self._kv.publish(request)
        self._kv.shrink(request, start + num_taken + 1)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._drafter.forget(request)
