"""Small factories for scheduler tests: requests, options, runners that compute nothing.

`FakeRunner` only draws tokens. `KvRunner` also keeps what a real runner would have in every KV
slot, and looks at each step whether the scheduler let it read or write anything wrong.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from evenflow.sampling import SamplingParams
from evenflow.schedule.options import SchedulerOptions
from evenflow.schedule.request import Request
from evenflow.schedule.scheduler import Scheduler
from evenflow.types import StepPlan, StepResult

STOP_TOKEN = 0
NEVER = None  # the content of a slot that was not written since its block was free


def make_options(**changes) -> SchedulerOptions:
    """Options of a small engine; every one can be changed."""
    values = {
        "max_num_batched_tokens": 32,
        "max_num_seqs": 16,
        "num_blocks": 64,
        "block_size": 4,
        "min_prefill_tokens": 4,
    } | changes
    return SchedulerOptions(**values)


def make_scheduler(**changes) -> Scheduler:
    """A scheduler with `make_options(**changes)`."""
    return Scheduler(make_options(**changes))


def make_request(
    request_id: str,
    prompt: int | list[int],
    *,
    max_tokens: int = 4,
    priority: int = 0,
    stop_ids: frozenset[int] = frozenset({STOP_TOKEN}),
    **params,
) -> Request:
    """A request; an integer prompt means that many tokens that no other request has."""
    if isinstance(prompt, int):
        base = 1000 + sum(map(ord, request_id)) * 10_000
        prompt = [base + i for i in range(prompt)]
    return Request(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, priority=priority, **params),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
    )


def fake_token(request: Request, position: int) -> int:
    """The token at `position`: a function of the whole sequence before it, never STOP_TOKEN."""
    prefix = request.token_ids[:position]
    return 1 + hash((tuple(prefix[-8:]), position)) % 997


class FakeRunner:
    """Draws `fake_token` for every span that wants one, drafts aside."""

    def __init__(self, draw=fake_token) -> None:
        self.draw = draw

    def run(self, plan: StepPlan) -> StepResult:
        tokens = []
        for span in plan.spans:
            end = span.start + span.length
            tokens.append((self.draw(span.request, end),) if span.num_logits else ())
        return StepResult(plan.serial, tokens, [], 0.0)


def run_to_end(scheduler: Scheduler, max_steps: int = 10_000):
    """Plan and commit until nothing is left; yields (plan, events) of each step."""
    runner = FakeRunner()
    for _ in range(max_steps):
        plan = scheduler.plan()
        if plan is None:
            assert not scheduler.has_unfinished, "stuck: requests are left, but nothing to do"
            return
        events = scheduler.commit(runner.run(plan))
        yield plan, events
    raise AssertionError("the scheduler did not come to an end")


def chunks_of(plan: StepPlan) -> dict[str, int]:
    """The lengths of a plan's prefill chunks, by request id."""
    return {span.request.id: span.length for span in plan.spans[plan.num_decodes :]}


def decodes_of(plan: StepPlan) -> list[str]:
    """The ids of the requests that decode in a plan."""
    return [span.request.id for span in plan.spans[: plan.num_decodes]]


def stream(request_id: str, max_tokens: int = 100, prompt=1, **params) -> Request:
    """A request that no stop id ends."""
    return make_request(request_id, prompt, max_tokens=max_tokens, stop_ids=frozenset(), **params)


def step(scheduler: Scheduler, runner=None) -> StepPlan:
    """One step, checked; returns its plan."""
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit((runner or FakeRunner()).run(plan))
    scheduler.check()
    return plan


def finish(scheduler: Scheduler, runner: KvRunner) -> None:
    """Run to the end on simulated KV."""
    while scheduler.has_unfinished:
        step(scheduler, runner)


# -- tokens as a function of everything before them -----------------------------------------


def fold(hashes: list[int], tokens: list[int]) -> list[int]:
    """Extend `hashes` so that entry i stands for tokens[: i + 1]; returns it."""
    for i in range(len(hashes), len(tokens)):
        hashes.append(hash((hashes[-1] if hashes else 7, tokens[i])))
    return hashes


def draw(request: Request, prefix_hash: int, num_drawn: int) -> int:
    """The token after a prefix; a stop id now and then, but not before min_tokens."""
    token = prefix_hash % 29
    if token in request.stop_ids and num_drawn < request.params.min_tokens:
        return 29
    return token


def alone(request: Request) -> list[int]:
    """What a request's output must be, found without a scheduler."""
    tokens = request.token_ids[: request.num_prompt_tokens]
    hashes: list[int] = []
    output: list[int] = []
    while len(output) < request.max_tokens:
        token = draw(request, fold(hashes, tokens)[-1], len(output))
        tokens.append(token)
        output.append(token)
        if token in request.stop_ids:
            break
    return output


class OracleDrafter:
    """Drafts what will come, with a mistake at a random place now and then."""

    def __init__(self, rng, *, wrong: float = 0.5) -> None:
        self.rng = rng
        self.wrong = wrong
        self.forgotten: list[str] = []
        self._outputs: dict[str, list[int]] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        output = self._outputs.get(request.id)
        if output is None:
            output = self._outputs[request.id] = alone(request)
        drafts = output[request.num_output_tokens :][: self.rng.randint(0, most)]
        if drafts and self.rng.random() < self.wrong:
            place = self.rng.randrange(len(drafts))
            drafts[place] = (drafts[place] + 1) % 29
        return drafts

    def forget(self, request: Request) -> None:
        self.forgotten.append(request.id)


class _Submitted(NamedTuple):
    """A span as a runner reads it inside `submit`."""

    request: Request
    start: int
    tokens: list[int]  # of the sequence up to the span's end, drafts included
    num_logits: int
    block_ids: list[int]
    num_cached_tokens: int

    @property
    def end(self) -> int:
        return len(self.tokens)


class KvRunner:
    """Executes plans in order on a pool that remembers what every slot holds.

    A slot's content is the hash of the whole sequence up to its position, so a key or value that
    was computed behind another prefix, or not at all, cannot pass for the right one. What is
    wrong raises AssertionError where a real runner would silently read or write garbage.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.kv = scheduler.kv
        self.slots = [[NEVER] * self.kv.block_size for _ in range(self.kv.num_blocks)]
        self._next: dict[str, int] = {}  # where each one's computation goes on
        self._queue: deque[tuple[int, list[_Submitted]]] = deque()
        self._results: dict[int, StepResult] = {}
        self._seen: dict[int, object] = {}  # published blocks whose content was compared
        self.num_right = 0  # drafts
        self.num_wrong = 0
        self.num_hits = 0  # computations that began with cached blocks
        self.num_tails = 0  # computations that went on in a half-full block
        self.num_full_hits = 0  # and those of which nothing but the last position was left

    def submit(self, plan: StepPlan) -> None:
        """Read the requests of a plan, as the seam promises; nothing is computed yet."""
        for request_id in plan.preempted:
            self._next.pop(request_id, None)
        published = self._published()
        spans = []
        for span in plan.spans:
            request = span.request
            cached = request.num_cached_tokens
            if request.id not in self._next:
                first = min(cached, request.num_prefill_tokens - 1)
                assert span.start == first, f"{request} starts at {span.start}, not {first}"
                self.num_hits += cached > 0
                self.num_tails += cached % self.kv.block_size > 0
                self.num_full_hits += cached == request.num_prefill_tokens
            else:
                assert span.start == self._next[request.id], f"{request} left out or did twice"
            end = span.start + span.length
            assert span.length >= 1, f"{request} has an empty span"
            tokens = (request.token_ids + request.draft_ids)[:end]
            assert end == len(tokens), f"{request} reads tokens that do not exist"
            if request.draft_ids:
                assert end == len(request.token_ids + request.draft_ids), f"{request} left drafts"
            self._next[request.id] = end
            for position in range(max(span.start, cached), end):
                block = request.block_ids[position // self.kv.block_size]
                assert block not in published, f"{request} writes to the published block {block}"
                assert self.kv._pool._refs[block] == 1, f"{request} writes to a shared block"
            spans.append(
                _Submitted(
                    request, span.start, tokens, span.num_logits, list(request.block_ids), cached
                )
            )
        self._queue.append((plan.serial, spans))

    def execute(self) -> None:
        """Compute everything that was submitted."""
        while self._queue:
            serial, spans = self._queue.popleft()
            for span in spans:  # a kernel writes the step's keys and values before it reads any
                self._write(span)
            tokens = [self._read(span) for span in spans]
            self._results[serial] = StepResult(serial, tokens, [], 0.0)

    def result(self, serial: int) -> StepResult:
        """The result of a submitted plan."""
        self.execute()
        return self._results.pop(serial)

    def run(self, plan: StepPlan) -> StepResult:
        """Submit and wait."""
        self.submit(plan)
        return self.result(plan.serial)

    def poison(self) -> None:
        """Forget what freed blocks held, and look at the published ones; after every call."""
        for block in self.kv._pool._free:
            if self.slots[block][0] is not NEVER:
                self.slots[block] = [NEVER] * self.kv.block_size
        published = self._published()
        nodes = self.kv._cache._block_of if self.kv._cache is not None else {}
        for block, key in published.items():
            if self._seen.get(block) is not key:
                self._look(block, key, nodes)
                self._seen[block] = key

    def _look(self, block: int, key: tuple[int, tuple[int, ...]], nodes: dict[int, int]) -> None:
        """Whether a block that was published since holds what its key says."""
        parent, tokens = key
        content = self.slots[block]
        assert NEVER not in content, f"block {block} was published before it was computed"
        if parent == 0 or parent in nodes:
            before = [7] if parent == 0 else [self.slots[nodes[parent]][-1]]
            for token in tokens:
                before.append(hash((before[-1], token)))
            assert content == before[1:], f"block {block} is published under a wrong prefix"

    def _published(self):
        return self.kv._cache.published_blocks() if self.kv._cache is not None else {}

    def _write(self, span: _Submitted) -> None:
        size = self.kv.block_size
        hashes = fold([], span.tokens)
        for position in range(max(span.start, span.num_cached_tokens), span.end):
            self.slots[span.block_ids[position // size]][position % size] = hashes[position]

    def _read(self, span: _Submitted) -> tuple[int, ...]:
        size = self.kv.block_size
        hashes = fold([], span.tokens)
        for index in range(-(-span.end // size)):
            first, last = index * size, min(span.end, index * size + size)
            content = self.slots[span.block_ids[index]][: last - first]
            assert content == hashes[first:last], f"{span.request} attends to wrong KV"
        drawn = tuple(
            draw(span.request, hashes[end - 1], end - span.request.num_prompt_tokens)
            for end in range(span.end - span.num_logits + 1, span.end + 1)
        )
        num_right = 0
        if span.num_logits > 1:  # the next span goes on behind the drafts that are right
            drafts = span.tokens[span.start + 1 :]
            while num_right < len(drafts) and drafts[num_right] == drawn[num_right]:
                num_right += 1
            self._next[span.request.id] = span.start + 1 + num_right
            self.num_right += num_right
            self.num_wrong += len(drafts) - num_right
        return drawn
