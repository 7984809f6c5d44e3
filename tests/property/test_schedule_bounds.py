"""The bounds of the scheduling rules, each against the arrivals that hurt it most."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.schedule.request import Stage
from helpers.scheduling import FakeRunner, KvRunner, alone, make_request, make_scheduler, run_to_end

SEEDS = st.integers(0, 2**32 - 1)
QUICK = settings(max_examples=40, deadline=None)


class Bench:
    """A scheduler kept `plan_depth` plans ahead, and the steps at which prompts were done."""

    def __init__(self, *, looks: bool = True, **options) -> None:
        self.scheduler = make_scheduler(**options)
        self.looks = looks  # at the KV and the blocks, in every step
        self.runner = KvRunner(self.scheduler) if looks else FakeRunner()
        self.plans = []
        self.first_step: dict[str, int] = {}  # serial of a request's first chunk
        self.last_step: dict[str, int] = {}  # serial of the chunk that ends its prompt
        self._flying = []

    def add(self, request_id, prompt, **params):
        request = make_request(request_id, prompt, stop_ids=frozenset(), **params)
        self.scheduler.add(request)
        return request

    def step(self) -> bool:
        while len(self._flying) < self.scheduler.options.plan_depth:
            plan = self.scheduler.plan()
            if plan is None:
                break
            if self.looks:
                self.runner.submit(plan)
            self._flying.append(plan)
            self.plans.append(plan)
            for span in plan.spans[plan.num_decodes :]:
                self.first_step.setdefault(span.request.id, plan.serial)
                if span.num_logits:
                    self.last_step[span.request.id] = plan.serial
        if not self._flying:
            return False
        plan = self._flying.pop(0)
        if self.looks:
            self.scheduler.commit(self.runner.result(plan.serial))
            self.scheduler.check()
        else:
            self.scheduler.commit(self.runner.run(plan))
        return True

    def run_until_prompt_is_done(self, request_id: str, before_each=lambda: None) -> None:
        while request_id not in self.last_step:
            before_each()
            assert self.step(), "stuck"

    def run_to_end(self) -> None:
        while self.step():
            pass
        assert not self.scheduler.has_unfinished


def busy_bench(rng: Random, **fixed) -> tuple[Bench, int]:
    """More decodes than fit, so that prompts get their floor and no more; and that floor."""
    budget = rng.choice([4, 8, 20])
    floor = rng.randint(1, budget - 1)
    bench = Bench(
        looks=False,
        **{
            "max_num_batched_tokens": budget,
            "min_prefill_tokens": floor,
            "max_num_seqs": 10_000,
            "num_blocks": 100_000,
            "max_partial_prefills": rng.choice([1, 2, 3, 4]),
            "enable_prefix_caching": False,
            "plan_depth": rng.choice([1, 2, 3]),
        }
        | fixed,
    )
    budget = bench.scheduler.options.max_num_batched_tokens
    for i in range(budget * 2):
        bench.add(f"stream{i}", 1, max_tokens=5000, priority=-1000)
    while len(bench.scheduler._decodes) < budget * 2:
        bench.step()
    return bench, bench.scheduler.options.min_prefill_tokens


@QUICK
@given(seed=SEEDS)
def test_a_prompt_is_done_within_the_stated_steps_whatever_arrives_later(seed):
    """ceil(2 x (tokens of older prompts and its own) / min_prefill_tokens)."""
    rng = Random(seed)
    bench, floor = busy_bench(rng)
    budget = bench.scheduler.options.max_num_batched_tokens
    tokens = 0
    for i in range(rng.randint(0, 6)):
        length = rng.choice([1, budget, 3 * budget, rng.randint(1, 60)])
        bench.add(f"older{i}", length, max_tokens=1)
        tokens += length
    length = rng.choice([1, budget + 1, 5 * budget, rng.randint(1, 80)])
    bench.add("it", length, max_tokens=1)
    start = bench.plans[-1].serial
    count = 0

    def adversary():
        nonlocal count
        for _ in range(rng.randint(0, 3)):
            count += 1
            bench.add(f"later{count}", rng.choice([1, 2, budget, 4 * budget]), max_tokens=1)

    bench.run_until_prompt_is_done("it", adversary)
    assert bench.last_step["it"] - start <= -(-2 * (tokens + length) // floor)


@QUICK
@given(seed=SEEDS)
def test_a_short_prompt_overtakes_very_long_ones(seed):
    """The second half of the room is the shortest's, and one lane is kept for such as it."""
    rng = Random(seed)
    lanes = rng.choice([2, 3, 4])
    bench, floor = busy_bench(
        rng, min_prefill_tokens=rng.choice([2, 3]), max_partial_prefills=lanes
    )
    budget = bench.scheduler.options.max_num_batched_tokens
    for i in range(lanes + 2):
        bench.add(f"long{i}", 500 * budget, max_tokens=1)
    for _ in range(5):
        bench.step()
    length = rng.randint(1, budget)
    bench.add("short", length, max_tokens=1)
    start = bench.plans[-1].serial
    bench.run_until_prompt_is_done("short")
    assert bench.last_step["short"] - start <= -(-length // (floor // 2))
    assert not any(name.startswith("long") for name in bench.last_step)


@QUICK
@given(seed=SEEDS)
def test_a_lower_class_is_passed_only_by_what_arrives_within_the_aging_steps(seed):
    """A steady flow of higher classes: W counts what arrives within levels x aging steps."""
    rng = Random(seed)
    aging, levels = rng.choice([3, 10]), rng.choice([1, 2, 3])
    bench, floor = busy_bench(rng, priority_aging_steps=aging)
    bench.add("low", rng.randint(1, 20), max_tokens=1, priority=levels)
    low = bench.scheduler._requests["low"]
    start = bench.plans[-1].serial
    ahead, count = low.num_prompt_tokens, 0

    def flow():
        nonlocal ahead, count
        count += 1
        request = bench.add(f"high{count}", rng.randint(1, 2 * floor), max_tokens=1)
        if bench.scheduler._serial + 1 <= start + 1 + levels * aging:
            ahead += request.num_prompt_tokens
            assert request.order_key < low.order_key or request.order_key[0] == low.order_key[0]
        else:
            assert request.order_key > low.order_key, "a late one of a higher class came before"

    bench.run_until_prompt_is_done("low", flow)
    assert bench.last_step["low"] - start <= -(-2 * ahead // floor)


@QUICK
@given(seed=SEEDS)
def test_more_decodes_than_room_wait_no_longer_than_stated(seed):
    """gap <= ceil(decodes / (budget - floor)) + plan_depth - 1, and the turns are used."""
    rng = Random(seed)
    budget = rng.choice([4, 8, 20])
    floor = rng.randint(1, budget - 1)
    depth = rng.choice([1, 2, 3])
    bench, _ = busy_bench(
        rng, max_num_batched_tokens=budget, min_prefill_tokens=floor, plan_depth=depth
    )
    num_decodes = len(bench.scheduler._decodes)
    bound = -(-num_decodes // (budget - floor)) + depth - 1
    bench.add("long", (4 * bound + depth) * budget, max_tokens=1, priority=-2000)
    start = bench.plans[-1].serial
    last = {r.id: r.last_step for r in bench.scheduler._decodes}
    worst = 0
    for _ in range(4 * bound):
        bench.step()
    for plan in bench.plans:
        if plan.serial <= start:
            continue
        assert plan.num_decodes <= budget - floor
        for span in plan.spans[: plan.num_decodes]:
            worst = max(worst, plan.serial - last[span.request.id])
            last[span.request.id] = plan.serial
    waiting = max(bench.plans[-1].serial - serial for serial in last.values())
    assert max(worst, waiting) <= bound
    assert worst >= -(-num_decodes // budget), "the decodes all fitted: nothing was shown"


@QUICK
@given(seed=SEEDS)
def test_nobody_is_passed_more_often_than_stated(seed):
    """A prompt that needs the whole pool, under a stream of small ones that would fit."""
    rng = Random(seed)
    skips = rng.randint(0, 6)
    bench = Bench(num_blocks=8, block_size=4, max_admission_skips=skips, max_num_seqs=2)
    bench.add("small0", 4, max_tokens=9)
    bench.step()
    bench.add("big", 32, max_tokens=1)
    count = 0

    def stream():
        nonlocal count
        count += 1
        bench.add(f"small{count}", rng.randint(1, 4), max_tokens=9)

    bench.run_until_prompt_is_done("big", stream)
    passed = [n for n, step in bench.first_step.items() if n not in {"big", "small0"}]
    before = [n for n in passed if bench.first_step[n] < bench.first_step["big"]]
    assert len(before) == skips, "passed less often than allowed, or more"
    bench.run_to_end()


@QUICK
@given(seed=SEEDS)
def test_two_that_fit_alone_but_not_together_come_to_an_end(seed):
    """No livelock: preemptions stay within their number, steps within work x (number + 1)."""
    rng = Random(seed)
    most = rng.randint(0, 3)
    bench = Bench(
        num_blocks=6,
        block_size=4,
        max_num_batched_tokens=rng.choice([2, 8, 64]),
        min_prefill_tokens=1,
        max_preemptions=most,
        plan_depth=rng.choice([1, 2, 3]),
        enable_prefix_caching=rng.random() < 0.5,
    )
    requests = []
    for i in range(rng.randint(2, 6)):
        prompt = rng.randint(1, 20)
        requests.append(bench.add(f"r{i}", prompt, max_tokens=25 - prompt))
    bench.run_to_end()
    assert all(r.num_preemptions <= most for r in requests)
    assert all(r.token_ids[r.num_prompt_tokens :] == alone(r) for r in requests)
    work = sum(r.num_prompt_tokens + r.max_tokens for r in requests)
    assert len(bench.plans) <= (most + 1) * work


@QUICK
@given(seed=SEEDS)
def test_followers_compute_no_shared_block_twice(seed):
    """However they arrive, each block of a common prefix is written once."""
    rng = Random(seed)
    size, depth = 4, rng.choice([1, 2, 3])
    bench = Bench(
        block_size=size,
        num_blocks=1000,
        max_num_batched_tokens=rng.choice([3, 16, 64]),
        min_prefill_tokens=2,
        max_partial_prefills=8,
        plan_depth=depth,
    )
    shared = [rng.randrange(100) for _ in range(size * rng.randint(1, 5))]
    for i in range(rng.randint(2, 6)):
        tail = [1000 * (i + 1) + j for j in range(rng.randint(0, 6))]
        bench.add(f"r{i}", shared + tail, max_tokens=rng.randint(1, 4))
        for _ in range(rng.randint(0, 2)):
            bench.step()
    bench.run_to_end()
    writes = Counter()
    for plan in bench.plans:
        for span in plan.spans[plan.num_decodes :]:
            full_hit = span.request.num_prompt_tokens == len(shared) and span.length == 1
            if not (full_hit and span.start == len(shared) - 1):
                writes.update(range(span.start, min(span.start + span.length, len(shared))))
    assert max(writes.values()) == 1, f"computed more than once: {writes}"


@QUICK
@given(seed=SEEDS)
def test_when_a_leader_goes_the_oldest_follower_leads(seed):
    """Cancelled at any chunk boundary, in flight or not; the others go on from what is there."""
    rng = Random(seed)
    bench = Bench(
        block_size=4,
        num_blocks=200,
        max_num_batched_tokens=8,
        plan_depth=rng.choice([1, 2, 3]),
    )
    prompt = [rng.randrange(100) for _ in range(64)]
    requests = [bench.add(f"r{i}", prompt, max_tokens=2) for i in range(4)]
    for _ in range(rng.randint(1, 6)):
        bench.step()
    assert requests[0].stage is Stage.PREFILL
    assert all(r.stage is Stage.WAITING for r in requests[1:])
    bench.scheduler.cancel("r0")
    while requests[1].stage is Stage.WAITING:
        bench.step()
        assert requests[2].stage is requests[3].stage is Stage.WAITING, "a younger one led"
    assert requests[1].num_cached_tokens >= 8, "what the leader had published was lost"
    bench.run_to_end()
    assert all(r.token_ids[64:] == alone(r) for r in requests[1:])


@QUICK
@given(seed=SEEDS)
def test_the_same_tokens_under_every_policy_budget_and_depth(seed):
    """One set of requests, many engines."""
    rng = Random(seed)
    prompts = [[rng.randrange(3) for _ in range(rng.randint(1, 40))] for _ in range(6)]
    outputs = []
    for policy in ("chunked", "prefill-first", "decode-first"):
        for cached in (True, False):
            bench = Bench(
                policy=policy,
                enable_prefix_caching=cached,
                max_num_batched_tokens=rng.choice([2, 7, 64]),
                min_prefill_tokens=1,
                num_blocks=rng.choice([16, 200]),
                plan_depth=rng.choice([1, 2, 3]),
            )
            requests = [bench.add(f"r{i}", p, max_tokens=1 + i) for i, p in enumerate(prompts)]
            bench.run_to_end()
            outputs.append([r.token_ids for r in requests])
    assert all(output == outputs[0] for output in outputs)


def test_running_alone_is_what_the_tests_take_it_for():
    """`alone` against a real run of one request."""
    for length in (1, 4, 9, 33):
        request = make_request("r", length, max_tokens=12)
        bench = Bench()
        bench.scheduler.add(request)
        bench.run_to_end()
        assert request.token_ids[length:] == alone(request)
    assert list(run_to_end(make_scheduler())) == []
