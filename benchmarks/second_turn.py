"""How long the second turn of a long chat takes to its first token, against its new tokens alone.

    python benchmarks/second_turn.py [--rounds 10] [--context 4096] [--model smollm2]

Each round is a chat of its own. Its first turn, of about `--context` tokens, is answered. Then, in
turns on the same runner:

* A: the whole second turn (history and a new question, rendered and tokenised anew from text) is
  submitted to the engine; the time from `submit` to its first token;
* B: the runner alone computes the new tokens, in the same chunks, with the history's keys and values
  given: no queue, no thread, no cache to look into.

New tokens are those behind the first turn's prompt and answer. Printed are both times, their ratio with
its 95 % interval, that of B against B for the noise, and how many tokens A found in the cache. Rendering
and tokenising the text is timed by itself: it is not part of A.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from evenflow import LLM, SamplingParams
from evenflow.bench.paired import interval
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from evenflow.types import StreamEvent

LIMIT = 1.1
WORDS = (
    "harbour", "winter", "ledger", "copper", "meadow", "signal", "lantern", "orchard", "granite",
    "ferry", "market", "valley", "engine", "letter", "river", "garden", "window", "station",
)  # fmt: skip
QUESTION = (
    "Thank you. Now go back to the list, and tell me which three of its words you would choose for "
    "the title of a short story about a journey by night, in which order you would put them, and why "
    "the first of them should come first. Answer in two sentences, plainly, and do not repeat the list."
)


class Round(NamedTuple):
    """Seconds of one round, and what was found."""

    engine_s: float
    alone_s: float
    again_s: float
    text_s: float
    num_prompt_tokens: int
    num_new_tokens: int
    num_cached_tokens: int
    extends: bool


def main() -> None:
    """Run all rounds and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--context", type=int, default=4096, help="tokens of the first turn")
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    with LLM(arguments.model, progress=False, kv_cache_memory_bytes="1G") as llm:
        play(llm, 256, 0)  # warms up
        rounds = [play(llm, arguments.context, 1 + i) for i in range(arguments.rounds)]
    report(rounds)


def play(llm: LLM, context: int, seed: int) -> Round:
    """One chat of two turns."""
    rng = random.Random(seed)
    size = len(llm.tokenizer.encode(" ".join(WORDS))) / len(WORDS)
    words = " ".join(rng.choice(WORDS) for _ in range(int(context / size)))
    messages = [{"role": "user", "content": f"List {seed}: {words}\n\nSay that you have read it."}]
    first = llm.tokenizer.encode_chat(llm.render_chat(messages))
    answer = list(first)
    text = ""
    for event in run(llm, first, max_tokens=24):
        text += event.text
        answer += [event.token_id] if event.token_id >= 0 else []
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": QUESTION}]
    start = perf_counter()
    second = llm.tokenizer.encode_chat(llm.render_chat(messages))
    text_s = perf_counter() - start

    seen = Cached()
    llm.trace(seen)
    start = perf_counter()
    run(llm, second, max_tokens=1)
    engine_s = perf_counter() - start
    num_new = len(second) - len(answer)
    alone = [runner_alone(llm, second, num_new) for _ in range(2)]
    extends = second[: len(answer)] == answer
    return Round(
        engine_s, alone[0], alone[1], text_s, len(second), num_new, seen.num_tokens, extends
    )


class Cached:
    """Hears how many tokens the newest request found."""

    num_tokens = 0

    def step(self, record: object) -> None:
        """Steps say nothing of it."""

    def request(self, record: object) -> None:
        """A request has ended."""
        self.num_tokens = record.cached_tokens  # type: ignore[attr-defined]


def run(llm: LLM, ids: list[int], max_tokens: int) -> list[StreamEvent]:
    """The events of one request that runs by itself."""
    inbox: SimpleQueue[list[StreamEvent]] = SimpleQueue()
    llm.engine.submit(ids, SamplingParams(max_tokens=max_tokens, temperature=0), inbox.put)
    events: list[StreamEvent] = []
    while not events or events[-1].finish_reason is None:
        events += inbox.get()
    return events


def runner_alone(llm: LLM, ids: list[int], num_new: int) -> float:
    """Seconds of the last `num_new` tokens on the runner, the keys and values before them given.

    The engine is idle, so its runner may be used from here. The tokens go into the very slots that
    the engine's request put them into, where they leave the same bits.
    """
    kv = llm.engine._scheduler.kv  # noqa: SLF001 - no public way to a block
    params = SamplingParams(max_tokens=1, temperature=0)
    request = Request("alone", ids, params, max_tokens=1, stop_ids=frozenset())
    kv.match(request)
    request.block_ids = [kv._cache.block(node) for node in request.cache_nodes]  # noqa: SLF001
    tail = kv._find_tail(request)  # noqa: SLF001
    if tail is not None:
        request.block_ids.append(tail.block)
    if len(request.block_ids) < kv.blocks_for(len(ids)):
        sys.exit("the second turn left no blocks to compute in")
    budget = llm.config.max_num_batched_tokens
    runner = llm.engine._runner  # noqa: SLF001
    begin = perf_counter()
    for start in range(len(ids) - num_new, len(ids), budget):
        length = min(budget, len(ids) - start)
        span = Span(request, start, length, int(start + length == len(ids)))
        runner.submit(StepPlan(0, [span], 0, budget, "", "", ())).result()
    return perf_counter() - begin


def report(rounds: list[Round]) -> None:
    """Print the table and the JSON line."""
    ratio, low, high = ratio_of([(r.engine_s, r.alone_s) for r in rounds])
    noise, noise_low, noise_high = ratio_of([(r.again_s, r.alone_s) for r in rounds])
    median = statistics.median
    print(
        f"{len(rounds)} chats; the second turn has {median(r.num_prompt_tokens for r in rounds):,.0f}"
        f" tokens, {median(r.num_new_tokens for r in rounds):.0f} of them new; found in the cache: "
        f"{median(r.num_cached_tokens for r in rounds):,.0f}"
    )
    print(f"history tokenised as it was generated: {sum(r.extends for r in rounds)}")
    print(f"A  submit to first token   {median(r.engine_s for r in rounds) * 1e3:8.1f} ms (median)")
    print(f"B  new tokens alone        {median(r.alone_s for r in rounds) * 1e3:8.1f} ms (median)")
    print(f"text to tokens, beside A   {median(r.text_s for r in rounds) * 1e3:8.1f} ms (median)")
    print(f"A / B  {ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}; the limit is {LIMIT}")
    print(f"B / B  {noise:.3f}, 95 % interval {noise_low:.3f} to {noise_high:.3f}")
    print(
        json.dumps(
            {
                "benchmark": "second_turn",
                "ratio": ratio,
                "low": low,
                "high": high,
                "noise": noise,
                "rounds": [r._asdict() for r in rounds],
            }
        )
    )


def ratio_of(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """The geometric mean of the ratios and its 95 % interval."""
    mean, low, high = interval([math.log(a / b) for a, b in pairs])
    nan = math.nan
    return (
        math.exp(mean),
        math.exp(low if low is not None else nan),
        math.exp(high if high is not None else nan),
    )


if __name__ == "__main__":
    main()
