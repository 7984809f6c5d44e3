"""Plans steps and commits their results; the only code that moves a request.

In: requests, cancellations, step results. Out: step plans and token events. It must not know what
a tensor, a clock or a client is.

A step's work, in this order, within the budget:

1. decodes, one token each, by oldest gap when they do not all fit; `min_prefill_tokens` are kept
   for prompts if any wait;
2. prompts part-way through, in lanes: the first half of the room goes in order, the rest to
   whoever has the least left;
3. new prompts, while budget, lanes, seats and KV last;
4. drafts, which lengthen the decodes by what is left.

Steps 2 and 3 live in `prefill.py`, step 4 in `speculate.py`; who gets blocks in `kv.py`; who gives
way in `order.py`.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from evenflow.errors import InvalidRequestError
from evenflow.schedule.budget import FixedBudget
from evenflow.schedule.kv import KvLedger
from evenflow.schedule.lookup import NgramDrafter
from evenflow.schedule.options import SchedulerOptions, SchedulerStats
from evenflow.schedule.order import OrderedRequests, choose_victim, order_key
from evenflow.schedule.prefill import ChunkedPrefill, WholePrefill
from evenflow.schedule.request import Request, Stage
from evenflow.schedule.speculate import Speculation
from evenflow.types import FinishReason, Span, StepPlan, StepResult, TokenEvent

if TYPE_CHECKING:
    from evenflow.schedule.budget import Budget
    from evenflow.schedule.speculate import Drafter

# Half the cost of calling the NamedTuple, in the two loops that make one per decode and step.
_new = tuple.__new__
_last_step = attrgetter("last_step")


class Scheduler:
    """Turns requests into steps.

    `plan` may be called up to `plan_depth` times before `commit`; commits come in the order of the
    plans. A request whose decode is in flight is not planned again; the next chunk of a prompt may
    be. A `drafter` takes the place of prompt lookup where `num_speculative_tokens` is not 0.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        budget: Budget | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.options = options
        self._budget = budget or FixedBudget(options.max_num_batched_tokens)
        self.kv = KvLedger(
            options.num_blocks, options.block_size, prefix_caching=options.enable_prefix_caching
        )
        self._requests: dict[str, Request] = {}  # everybody who holds or may come to hold blocks
        self._waiting = OrderedRequests()
        self._running: dict[str, Request] = {}  # admitted, in order of admission
        self._decodes: list[Request] = []  # by oldest gap when they do not all fit
        kind = ChunkedPrefill if options.policy == "chunked" else WholePrefill
        self._prefill = kind(options, self.kv, self._waiting, self._running)
        self._speculation = None
        if options.num_speculative_tokens:
            lookup = NgramDrafter(options.prompt_lookup_min, options.prompt_lookup_max)
            self._speculation = Speculation(options, self.kv, drafter or lookup)
        self._in_flight: deque[StepPlan] = deque()
        self._serial = -1
        self._arrivals = 0
        self._preempted: list[str] = []
        self._num_preemptions = 0

    # -- requests come and go ---------------------------------------------------------------

    def check_fits(self, request: Request) -> None:
        """Refuse a request that could never run; changes nothing, so any thread may ask.

        Raises:
            InvalidRequestError: it is empty, or larger than the whole KV pool.
        """
        if not request.token_ids:
            raise InvalidRequestError("the prompt is empty", hint="send at least one token")
        most = request.num_prompt_tokens + request.max_tokens - 1  # the last token is not stored
        capacity = self.kv.num_blocks * self.kv.block_size
        if self.kv.blocks_for(most) > self.kv.num_blocks:
            raise InvalidRequestError(
                f"the prompt's {request.num_prompt_tokens:,} tokens and max_tokens "
                f"{request.max_tokens:,} need {most:,} KV slots, but the pool holds {capacity:,}",
                hint="lower max_tokens, shorten the prompt, or give the pool more memory",
            )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError: as `check_fits`, or its id is taken.
        """
        self.check_fits(request)
        if request.id in self._requests:
            raise InvalidRequestError(
                f"a request with id {request.id!r} is running", hint="use another id"
            )
        request.arrival = self._arrivals
        request.order_key = order_key(
            request.params.priority,
            self._serial + 1,
            self._arrivals,
            self.options.priority_aging_steps,
        )
        self._arrivals += 1
        self._requests[request.id] = request
        self._waiting.add(request)

    def cancel(self, request_id: str, finish: FinishReason = "abort") -> TokenEvent | None:
        """End a request now; its blocks are free by the commit of its last step in flight.

        Returns:
            The terminal event, or None when there is no such request (any more).
        """
        request = self._requests.get(request_id)
        if request is None or request.stage is Stage.FINISHED:
            return None
        return self._end(request, finish)

    # -- plan -------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be computed now.

        Raises:
            RuntimeError: `plan_depth` plans are already in flight.
        """
        if len(self._in_flight) >= self.options.plan_depth:
            raise RuntimeError("every plan in flight must be committed before the next one")
        serial = self._serial + 1
        tokens, reason = self._budget.allow(len(self._decodes))
        policy = self.options.policy
        spans: list[Span] = []
        chunks: list[Span] = []
        blocked = ""
        if policy == "chunked":
            # a small allowance still leaves a decode its turn
            floor = min(self.options.min_prefill_tokens, tokens - 1)
            floor = floor if self._prefill.is_wanted() else 0
            self._plan_decodes(tokens - floor, serial, spans)
            # even with no room: whoever lost its blocks just now waits, and the plan says why
            chunks, blocked = self._prefill.plan(tokens - len(spans), serial)
            if floor and self._decodes:
                left = tokens - len(spans) - sum(s.length for s in chunks)
                self._plan_decodes(left, serial, spans)
        elif policy == "decode-first":
            self._plan_decodes(tokens, serial, spans)
            if not self._decodes:
                chunks, blocked = self._prefill.plan(tokens, serial)
            elif self._waiting:
                blocked = "policy"
        else:
            chunks, blocked = self._prefill.plan(tokens, serial)
            if not chunks:
                self._plan_decodes(tokens, serial, spans)
        num_decodes = len(spans)
        spans += chunks
        if not spans:
            return None
        if self._speculation is not None and num_decodes:
            room = tokens - num_decodes - sum(s.length for s in chunks)
            self._speculation.lengthen(spans, num_decodes, room, serial)
        if self._waiting and not blocked:
            blocked = "kv"  # nobody waited until a decode took somebody's blocks
        preempted = tuple(self._preempted)
        self._preempted.clear()
        plan = StepPlan(serial, spans, num_decodes, tokens, reason, blocked, preempted)
        self._serial = serial
        self._in_flight.append(plan)
        return plan

    def _plan_decodes(self, room: int, serial: int, spans: list[Span]) -> None:
        """Append one span for each runnable decode, oldest gap first, at most `room`."""
        decodes = self._decodes
        if not decodes or room <= 0:
            return
        block_size = self.kv.block_size
        if self.kv.num_takeable() < len(decodes):
            self._secure_first(serial)
            decodes = self._decodes
        if room < len(decodes):
            decodes.sort(key=_last_step)  # turns: the oldest gap first
        last = len(spans) + room
        for request in decodes:
            if request.num_in_flight or request.stage is not Stage.DECODE:
                continue
            start = request.num_planned_tokens
            if start == len(request.block_ids) * block_size and not self._secure(request, serial):
                continue
            spans.append(_new(Span, (request, start, 1, 1)))
            request.num_planned_tokens = start + 1
            request.num_in_flight = 1
            request.last_step = serial
            if len(spans) == last:
                break

    def _secure_first(self, serial: int) -> None:
        """Blocks are short: the first in order among the running ones gets its slot before all."""
        first = min(self._running.values(), key=lambda r: r.order_key)
        if first.stage is Stage.DECODE and not first.num_in_flight:
            self._secure(first, serial)

    def _secure(self, request: Request, serial: int) -> bool:
        """Make sure that a decode's next slot exists; others may lose their blocks for it."""
        end = request.num_planned_tokens + 1
        while self.kv.grow(request, end) < end:
            victim = choose_victim(self._running.values(), serial, self.options.max_preemptions)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits in its old place and computes everything again."""
        self._leave(request)
        self.kv.release(request)
        request.num_lost_tokens = request.num_computed_tokens
        request.num_computed_tokens = request.num_planned_tokens = 0
        request.num_prefill_tokens = request.num_tokens
        request.num_preemptions += 1
        request.stage = Stage.WAITING
        self._waiting.add(request)
        self._preempted.append(request.id)
        self._num_preemptions += 1

    # -- commit -----------------------------------------------------------------------------

    def commit(self, result: StepResult) -> list[TokenEvent]:
        """Take the tokens of the oldest plan in flight.

        Returns:
            One event per token, with `finish` set where a request ended; and the end, with
            "error", of every request that the runner could not draw a token for.

        Raises:
            RuntimeError: the result is not that of the oldest plan in flight.
        """
        plan = self._settle(result.serial)
        block_size = self.kv.block_size
        events: list[TokenEvent] = []
        any_ended = False
        logprobs, failed = result.logprobs, result.failed
        for index, (span, tokens) in enumerate(zip(plan.spans, result.tokens, strict=True)):
            request = span.request
            request.num_in_flight -= 1
            stage = request.stage
            if stage is Stage.FINISHED:  # cancelled while the step ran
                if not request.num_in_flight:
                    self._forget(request)
                continue
            if failed and index in failed:
                events.append(self._end(request, "error"))
                continue
            scored = logprobs[index] if logprobs else None
            if request.draft_ids and self._speculation is not None:
                finish = self._speculation.commit(span, tokens, scored, events)
            else:
                computed = span.start + span.length
                request.num_computed_tokens = computed
                if request.scores_prompt:
                    request.keep_scores(result.prompt_logprobs.get(index, ()))
                if stage is Stage.PREFILL:
                    self.kv.publish(request)
                    if computed < request.num_prefill_tokens:
                        continue
                    request.stage = Stage.DECODE
                    self._decodes.append(request)
                elif computed % block_size == 0:
                    self.kv.publish(request)
                token = tokens[0]
                request.token_ids.append(token)
                finish = request.finish_with(token)
                entry = scored[0] if scored else None
                events.append(_new(TokenEvent, (request.id, token, entry, finish)))
            if finish is not None:
                request.stage = Stage.FINISHED
                any_ended = True
                del self._running[request.id]
                self._forget(request)
        if any_ended:
            self._decodes = [r for r in self._decodes if r.stage is Stage.DECODE]
        return events

    def fail(self, serial: int) -> list[TokenEvent]:
        """The oldest plan in flight could not be computed: end every request in it.

        Returns:
            Their terminal events, with `finish` "error".
        """
        plan = self._settle(serial)
        events = []
        for span in plan.spans:
            request = span.request
            request.num_in_flight -= 1
            event = self.cancel(request.id, "error")
            if event is not None:
                events.append(event)
            elif request.id in self._requests and not request.num_in_flight:
                self._forget(request)
        return events

    def _settle(self, serial: int) -> StepPlan:
        if not self._in_flight or self._in_flight[0].serial != serial:
            raise RuntimeError(f"step {serial} is not the oldest one in flight")
        return self._in_flight.popleft()

    # -- bookkeeping ------------------------------------------------------------------------

    def _leave(self, request: Request) -> None:
        """Take a request off whatever list its stage put it on."""
        if request.stage is Stage.WAITING:
            self._waiting.remove(request)
            return
        del self._running[request.id]
        if request.stage is Stage.DECODE:
            self._decodes = [r for r in self._decodes if r is not request]
        else:
            self._prefill.drop(request)

    def _end(self, request: Request, finish: FinishReason) -> TokenEvent:
        """End a request without a token; what it holds is free once no plan in flight uses it."""
        self._leave(request)
        request.stage = Stage.FINISHED
        if not request.num_in_flight:
            self._forget(request)
        return TokenEvent(request.id, -1, None, finish)

    def _forget(self, request: Request) -> None:
        """Free what a finished request holds."""
        self.kv.release(request)
        del self._requests[request.id]
        if self._speculation is not None:
            self._speculation.forget(request)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request still waits, runs or holds blocks."""
        return bool(self._requests)

    @property
    def num_in_flight(self) -> int:
        """Plans that were made and not committed."""
        return len(self._in_flight)

    def stats(self) -> SchedulerStats:
        """Counts as they stand now."""
        return SchedulerStats(
            len(self._waiting),
            len(self._running),
            self.kv.usage(),
            self._num_preemptions,
            self._prefill.num_recomputed_tokens,
            *(self._speculation.counts if self._speculation is not None else ()),
        )

    def check(self) -> None:
        """Everything that must hold between two calls; for tests.

        Raises:
            AssertionError: it does not.
        """
        self.kv.check(self._requests.values())
        for request in self._requests.values():
            known = request.num_tokens + len(request.draft_ids)
            assert request.num_computed_tokens <= request.num_planned_tokens <= known
            waits = request in self._waiting
            assert waits == (request.stage is Stage.WAITING), f"{request} is on the wrong list"
            runs = request.stage in (Stage.PREFILL, Stage.DECODE)
            assert runs == (request.id in self._running), f"{request} is on the wrong list"
            decodes = sum(r is request for r in self._decodes)
            assert decodes == (request.stage is Stage.DECODE), f"{request} decodes {decodes} times"
        self._prefill.check()
