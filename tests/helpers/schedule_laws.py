"""The scheduler's laws as watchers: each says one thing that must hold in every world."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from evenflow.schedule.prefill import SCAN_LIMIT
from evenflow.schedule.request import Request, Stage
from helpers.draft_laws import DraftsDelayNobody
from helpers.schedule_world import Watcher
from helpers.scheduling import alone

if TYPE_CHECKING:
    from evenflow.types import StepPlan, TokenEvent


class BlocksAddUp(Watcher):
    """free + held + cached = total and all of `check()`, after every call; idle at the end."""

    def called(self) -> None:
        self.world.scheduler.check()
        usage = self.world.scheduler.stats().kv
        assert sum(usage) == self.world.options.num_blocks

    def ended(self) -> None:
        assert self.world.scheduler.stats().kv.held == 0
        assert self.world.scheduler.kv._soft == self.world.scheduler.kv._hard == 0
        if self.world.scheduler.kv._cache is not None:
            assert not self.world.scheduler.kv._cache.leaders


class OneEnd(Watcher):
    """Every request ends in exactly one terminal event, and nothing comes after it."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.ends: Counter[str] = Counter()

    def events(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert event.request_id in self.world.requests, "an event for nobody"
            assert not self.ends[event.request_id], "an event after the end"
            assert event.token >= 0 or event.finish is not None, "an event that says nothing"
            self.ends[event.request_id] += event.finish is not None

    def ended(self) -> None:
        assert self.ends == Counter(dict.fromkeys(self.world.requests, 1))


class TokensAsAlone(Watcher):
    """A request's tokens are those of running alone, up to the very last one."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.output: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}

    def events(self, events: list[TokenEvent]) -> None:
        for event in events:
            tokens = self.output.setdefault(event.request_id, [])
            if event.token >= 0:
                tokens.append(event.token)
            if event.finish is not None:
                self.finish[event.request_id] = event.finish

    def ended(self) -> None:
        for request in self.world.requests.values():
            expected, got = alone(request), self.output[request.id]
            finish = self.finish[request.id]
            if finish in ("stop", "length"):
                assert got == expected, f"{request} differs from running alone"
                assert finish == ("stop" if expected[-1] in request.stop_ids else "length")
            else:
                assert got == expected[: len(got)], f"{request} differs before it was cancelled"
                assert len(got) < len(expected)


class PlanShape(Watcher):
    """Decodes first, one span a request, within the budget; never changed once made."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.made: dict[int, tuple[StepPlan, tuple]] = {}
        self.last_serial = -1

    def planned(self, plan: StepPlan) -> None:
        assert plan.serial == self.last_serial + 1
        self.last_serial = plan.serial
        assert self.world.scheduler.num_in_flight <= self.world.options.plan_depth
        spans = plan.spans
        assert spans
        assert len({s.request.id for s in spans}) == len(spans), "a request twice in a plan"
        for span in spans[: plan.num_decodes]:
            assert span.request.stage is Stage.DECODE
            drafts = len(span.request.draft_ids)
            assert (span.length, span.num_logits) == (1 + drafts, 1 + drafts)
        for span in spans[plan.num_decodes :]:
            assert span.request.stage is Stage.PREFILL
            last = span.start + span.length == span.request.num_prefill_tokens
            assert span.num_logits == last
        self._check_size(plan)
        assert self.world.scheduler.stats().num_running <= self.world.options.max_num_seqs
        self.made[plan.serial] = (plan, tuple(spans))

    def _check_size(self, plan: StepPlan) -> None:
        chunks = plan.spans[plan.num_decodes :]
        if self.world.options.policy == "chunked":
            assert plan.num_tokens <= plan.budget
            return
        assert not (chunks and plan.num_decodes), "whole prompts have steps of their own"
        assert plan.num_tokens <= plan.budget or len(chunks) == 1
        for span in chunks:
            assert span.num_logits == 1, "a prompt was cut"

    def called(self) -> None:
        for plan, spans in self.made.values():
            assert tuple(plan.spans) == spans, "a plan changed after it was made"
        alive = {plan.serial for plan in self.world.in_flight}
        self.made = {s: made for s, made in self.made.items() if s in alive}


class NoDecodeMisses(Watcher):
    """Chunked: who can decode does, if all fit beside the floor; else the gaps are bounded.

    With `rest = budget - floor` and n decodes, a plan that leaves out a runnable decode serves
    `rest` others whose gap is older. Each of the n - 1 others is served at most once before it,
    so it waits for at most floor((n - 1) / rest) such plans; its own last step keeps it from being
    runnable for `plan_depth` plans. Hence gap <= ceil(n / rest) + plan_depth - 1.
    """

    def __init__(self, world) -> None:
        super().__init__(world)
        self.before: list[Request] = []
        self.last_step: dict[str, int] = {}
        self.wanted = False
        self.num_turns = 0  # steps in which somebody had to wait for its turn
        self.last: dict[str, tuple[int, int]] = {}  # serial of the last step; most decodes since

    def planning(self) -> None:
        scheduler = self.world.scheduler
        self.before = list(scheduler._decodes)
        self.last_step = {r.id: r.last_step for r in self.before}
        self.wanted = scheduler._prefill.is_wanted()

    def planned(self, plan: StepPlan) -> None:
        options = self.world.options
        if options.policy != "chunked":
            return
        rest = plan.budget - min(options.min_prefill_tokens, plan.budget - 1)
        room = rest if self.wanted else plan.budget
        served = {s.request.id for s in plan.spans[: plan.num_decodes]}
        short = bool(plan.preempted) or self.world.scheduler.kv.num_takeable() == 0
        missed = [
            r
            for r in self.before
            if r.stage is Stage.DECODE and r.id not in served and not self._flies(r, plan)
        ]
        if not short:
            if len(self.before) <= room:
                assert not missed, f"{missed} missed step {plan.serial} though all would fit"
            if missed:
                self.num_turns += 1
                assert len(served) >= room, "a decode missed a step that had room for it"
                assert plan.num_tokens == plan.budget, "what the prompts left was not given back"
                newest = max(self.last_step[request_id] for request_id in served)
                oldest = min(self.last_step[r.id] for r in missed)
                assert newest <= oldest, "turns were not taken by oldest gap"
        self._check_gaps(plan, rest, served, short=short)

    def _flies(self, request: Request, plan: StepPlan) -> bool:
        return any(
            s.request is request for p in self.world.in_flight if p is not plan for s in p.spans
        )

    def _check_gaps(self, plan: StepPlan, rest: int, served: set[str], *, short: bool) -> None:
        depth = self.world.options.plan_depth
        known = {} if short else self.last  # blocks were missing: the bound counts from here
        self.last = {}
        for request in self.before:
            if request.stage is not Stage.DECODE:
                continue
            serial, most = known.get(request.id, (plan.serial, 0))
            others = sum(r.stage is Stage.PREFILL for r in self.world.scheduler._running.values())
            most = max(most, len(self.before) + (others if depth > 1 else 0))
            if not short:
                gap = plan.serial - serial
                assert gap <= -(-most // rest) + depth - 1, f"{request} waited {gap} steps"
            if request.id in served:
                serial, most = plan.serial, 0
            self.last[request.id] = (serial, most)


class PromptsGetTheirFloor(Watcher):
    """Chunked: fewer than min_prefill_tokens of chunks only if nobody can take more."""

    def planned(self, plan: StepPlan) -> None:
        if self.world.options.policy != "chunked":
            return
        floor = min(self.world.options.min_prefill_tokens, plan.budget - 1)
        chunks = sum(s.length for s in plan.spans[plan.num_decodes :])
        if chunks < floor and not plan.preempted:
            eager = who_could_go_on(self.world, plan)
            assert not eager, f"{eager} got nothing though {floor - chunks} tokens were theirs"


class TheOldestGetsHalf(Watcher):
    """Chunked: the first prompt in order gets half of the room, or all that it still needs."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.before: dict[Request, int] = {}
        self.num_shares = 0

    def planning(self) -> None:
        lanes = self.world.scheduler._prefill._lanes
        self.before = {r: r.num_planned_tokens for r in lanes}

    def planned(self, plan: StepPlan) -> None:
        options, kv = self.world.options, self.world.scheduler.kv
        lanes = self.world.scheduler._prefill._lanes
        starts = {s.request: s.start for s in plan.spans[plan.num_decodes :]}
        prompts = [r for r in {**self.before, **starts} if r in lanes or r in starts]
        short = bool(plan.preempted) or kv.num_takeable() == 0
        if options.policy != "chunked" or not prompts or short:
            return
        oldest = min(prompts, key=lambda r: r.order_key)
        if oldest not in self.before:
            return  # it may have entered in the middle of the step, through a lane just left
        start = self.before[oldest]
        share = -(-(plan.budget - plan.num_decodes) // 2)
        share = min(share, oldest.num_prefill_tokens - start)
        if options.long_prefill_token_threshold:
            share = min(share, options.long_prefill_token_threshold)
        got = oldest.num_planned_tokens - start
        self.num_shares += 1
        assert got >= share, f"{oldest} is the oldest and got {got} of {share} tokens"


class WorkIsConserved(Watcher):
    """A step without chunks names why the prompts got nothing, and the reason is true."""

    def planned(self, plan: StepPlan) -> None:
        scheduler, options = self.world.scheduler, self.world.options
        waiting = list(scheduler._waiting)
        if len(plan.spans) > plan.num_decodes:
            return
        if not waiting and not scheduler._prefill._lanes:
            assert plan.blocked == ""
            return
        if plan.preempted:  # what held when the reason was found may have changed within the step
            assert plan.blocked
            return
        full = plan.num_decodes >= plan.budget
        reasons = {
            "seqs": lambda: len(scheduler._running) >= options.max_num_seqs,
            "kv": lambda: self._short(waiting),
            "lanes": lambda: options.policy == "chunked",
            "prefix": lambda: any(leader_of(self.world, r) for r in waiting),
            "policy": lambda: options.policy == "decode-first",
            "budget": lambda: full,
        }
        assert plan.blocked in reasons, f"step {plan.serial} says {plan.blocked!r}"
        assert reasons[plan.blocked](), f"step {plan.serial} says {plan.blocked!r} falsely"
        if plan.blocked not in ("policy", "budget") and not full:
            eager = who_could_go_on(self.world, plan)
            assert not eager, f"{eager} could go on, but the step says {plan.blocked!r}"

    def _short(self, waiting: list[Request]) -> bool:
        kv, lanes = self.world.scheduler.kv, self.world.scheduler._prefill._lanes
        missing = any(not fits(self.world, r) for r in waiting)
        return missing or (bool(lanes) and kv.num_takeable() == 0)


class GivingWay(Watcher):
    """Skips and preemptions stay within their numbers; the first in order is never a victim."""

    def __init__(self, world) -> None:
        super().__init__(world)
        self.counts: Counter[str] = Counter()
        self.running: dict[str, int] = {}  # preemptions of the running ones before the call
        self.first: Request | None = None
        self.flying: set[str] = set()
        self.num_plans = 0

    def planning(self) -> None:
        running = self.world.scheduler._running
        self.running = {r.id: r.num_preemptions for r in running.values()}
        if self.world.options.policy != "prefill-first":  # there, somebody may enter before
            self.first = min(running.values(), key=lambda r: r.order_key, default=None)
        self.flying = {s.request.id for p in self.world.in_flight for s in p.spans}

    def called(self) -> None:
        running = self.world.scheduler._running.values()
        for request_id, before in self.running.items():
            request = self.world.requests[request_id]
            lost = request.num_preemptions - before
            assert lost in (0, 1), f"{request} was preempted twice in a step"
            if lost:
                earlier = any(r.order_key < request.order_key for r in running)
                first = request is self.first and not earlier  # unless one entered in this step
                assert not first, f"{request} is first, but lost its blocks"
                assert request_id not in self.flying, f"{request} lost its blocks in flight"
                assert request.num_preemptions <= self.world.options.max_preemptions
        self.running = {}
        skips = [r.num_skips for r in self.world.scheduler._requests.values()]
        assert max(skips, default=0) <= self.world.options.max_admission_skips

    def planned(self, plan: StepPlan) -> None:
        self.num_plans += 1
        decodes = {s.request.id for s in plan.spans[: plan.num_decodes]}
        assert not decodes & set(plan.preempted), "a request lost the blocks it is planned with"
        self.counts.update(plan.preempted)

    def ended(self) -> None:
        times = self.world.options.max_preemptions + 1
        work = sum(r.num_prompt_tokens + r.max_tokens for r in self.world.requests.values())
        assert self.num_plans <= times * work, "more steps than tokens to compute"
        for request in self.world.requests.values():
            said = self.counts[request.id]
            assert said == request.num_preemptions, f"the plans name {said} preemptions: {request}"


def leader_of(world, request: Request) -> Request | None:
    """The earlier running request that is about to fill the block this one needs, if any."""
    kv = world.scheduler.kv
    if kv._cache is None:
        return None
    kv.match(request)
    key = kv._next_key(request)
    leader = kv._cache.leaders.get(key)
    return leader if leader is not None and leader.order_key < request.order_key else None


def fits(world, request: Request) -> bool:
    """The admission rule, written once more: unclaimed blocks against those it needs."""
    kv = world.scheduler.kv
    kv.match(request)
    chain = request.cache_nodes
    hits = [kv._cache.block(node) for node in chain]
    tokens = request.num_prefill_tokens
    if request.num_preemptions >= world.options.max_preemptions:
        tokens = request.num_prompt_tokens + request.max_tokens - 1
    holders = world.scheduler._requests.values()
    claimed = sum(r.num_reserved_blocks for r in holders if r.stage is not Stage.WAITING)
    idle = sum(kv._pool.is_idle(block) for block in hits)
    needed = -(-tokens // kv.block_size) - len(hits)
    return needed <= kv._pool.num_available - idle - claimed


def who_could_go_on(world, plan: StepPlan) -> list[Request]:
    """Prompts that could have computed more in a plan that left room, by the stated rules."""
    options, scheduler = world.options, world.scheduler
    lanes = list(scheduler._prefill._lanes)
    granted = {s.request.id: s.length for s in plan.spans[plan.num_decodes :]}
    threshold, size = options.long_prefill_token_threshold, options.block_size
    able = []
    for request in lanes:
        has_slot = request.num_planned_tokens < len(request.block_ids) * size
        limit = scheduler.kv._pool.num_available - (0 if request.hard_claim else scheduler.kv._hard)
        capped = threshold and granted.get(request.id, 0) >= threshold
        if (has_slot or limit > 0) and not capped:
            able.append(request)
    if (
        len(scheduler._running) >= options.max_num_seqs
        or len(lanes) >= options.max_partial_prefills
    ):
        return able
    long = sum(  # as it was when the lanes were filled: before this step's chunks
        r.num_prefill_tokens - r.num_planned_tokens + granted.get(r.id, 0)
        > options.max_num_batched_tokens
        for r in lanes
    )
    for request in islice(scheduler._waiting, SCAN_LIMIT):
        left = request.num_prefill_tokens - scheduler.kv.match(request)
        many = left > options.max_num_batched_tokens and options.max_partial_prefills > 1
        if leader_of(world, request):
            continue
        if not fits(world, request):
            if request.num_skips >= options.max_admission_skips:
                break
        elif not (many and long >= options.max_partial_prefills - 1):
            able.append(request)
    return able


EVERY_LAW = (
    BlocksAddUp,
    OneEnd,
    TokensAsAlone,
    PlanShape,
    NoDecodeMisses,
    PromptsGetTheirFloor,
    TheOldestGetsHalf,
    WorkIsConserved,
    GivingWay,
    DraftsDelayNobody,
)
