"""What speculation by prompt lookup gains: the same answers with and without it, in turns.

    python benchmarks/ngram.py [--rounds 6] [--streams 1] [--max-tokens 160] [--model smollm2]

Two engines that differ in `speculative` alone answer the same chats, one after the other in each
round, the order swapped from round to round. Tasks: `repeat` (the text word for word), `summarise` (in
three sentences), `story` (nothing to copy from: the cost of guessing in vain). Greedy; the tokens of
both engines are compared one by one, and a difference is an error.

Printed per task: the tokens that one step of a stream yielded, the share of drafts that were right, and
how many times as long the answers took without speculation, with a 95 % interval over the rounds; then
what a step of 1 + drafts rows costs, measured on the runner alone; and all of it as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from evenflow import LLM, SamplingParams
from evenflow.bench.paired import interval

if TYPE_CHECKING:
    from evenflow.types import StreamEvent

TEXT = (
    "The harbour of Lindal froze in the second week of January. For eleven days no ferry left the "
    "quay, and the islanders on Great Marsk lived on what they had stored in the autumn: dried cod, "
    "barley, and the last of the apples. On the twelfth day the pilot Edda Vorn walked across the ice "
    "with a sledge and two dogs. She carried letters, lamp oil and a box of medicine for the school "
    "teacher, who had a fever. The walk took her nine hours. Halfway across, near the Cormorant Rocks, "
    "the ice had opened, and she had to go two miles to the north before she found a way around. When "
    "she reached Great Marsk it was dark, and the islanders had lit fires along the beach to guide "
    "her. The teacher recovered within a week. In March the ice broke, the ferry came back, and the "
    "harbour master of Lindal wrote a single line into his book: Edda Vorn, on foot, no charge. The "
    "islanders still light fires on the beach on the twelfth day of every frost."
)
TASKS = {
    "repeat": f"Repeat the following text word for word.\n\n{TEXT}",
    "summarise": f"Summarise the following text in three sentences.\n\n{TEXT}",
    "story": "Write a short story about a lighthouse keeper who learns to play the violin.",
}


class Run(NamedTuple):
    """One answer of one engine."""

    seconds: float
    tokens: list[list[int]]
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


def main() -> None:
    """Measure every task and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=1, help="equal requests at once")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--num-speculative-tokens", type=int, default=None)
    parser.add_argument("--model", default="smollm2")
    arguments = parser.parse_args()
    common = {"progress": False, "kv_cache_memory_bytes": "300M", "enable_prefix_caching": False}
    with (
        LLM(arguments.model, **common) as plain,
        LLM(
            arguments.model,
            speculative="ngram",
            num_speculative_tokens=arguments.num_speculative_tokens,
            speculative_disable_by_batch_size=max(8, arguments.streams),
            **common,
        ) as guessing,
    ):
        most = guessing.config.num_speculative_tokens
        print(f"{arguments.streams} streams, at most {most} drafts each")
        results = {name: measure(plain, guessing, task, arguments) for name, task in TASKS.items()}
        costs = step_costs(plain, most)
    print(json.dumps({"benchmark": "ngram", "tasks": results, "step_cost": costs}))


def measure(
    plain: LLM, guessing: LLM, task: str, arguments: argparse.Namespace
) -> dict[str, float]:
    """One task in turns; prints its line."""
    logs, runs = [], []
    for number in range(arguments.rounds + 1):
        first = (plain, guessing) if number % 2 else (guessing, plain)
        pair = {llm: answer(llm, task, arguments.streams, arguments.max_tokens) for llm in first}
        without, with_drafts = pair[plain], pair[guessing]
        if without.tokens != with_drafts.tokens:
            sys.exit("the tokens differ with and without speculation")
        if number:  # the first pair warms up
            logs.append(math.log(without.seconds / with_drafts.seconds))
            runs.append(with_drafts)
    mean, low, high = (math.exp(x) if x is not None else math.nan for x in interval(logs))
    drafted = sum(r.num_draft_tokens for r in runs)
    accepted = sum(r.num_accepted_tokens for r in runs)
    made = sum(len(t) for r in runs for t in r.tokens)
    result = {
        "tokens": made / len(runs),
        "tokens_per_step": made / (made - accepted),
        "acceptance": accepted / drafted if drafted else 0.0,
        "gain": mean,
        "gain_low": low,
        "gain_high": high,
    }
    name = next(n for n, t in TASKS.items() if t == task)
    print(
        f"{name:10} {result['tokens']:5.0f} tokens, the same; {result['tokens_per_step']:.2f} a step; "
        f"{result['acceptance']:.0%} of {drafted / len(runs):.0f} drafts right; "
        f"{mean:.2f} x as fast (95 %: {low:.2f} to {high:.2f})"
    )
    return result


def answer(llm: LLM, task: str, num_streams: int, max_tokens: int) -> Run:
    """The seconds from the first token to the last one, and the tokens."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0)
    ids = llm.tokenizer.encode_chat(llm.render_chat([{"role": "user", "content": task}]))
    before = llm.engine.stats()
    inbox: SimpleQueue[tuple[float, list[StreamEvent]]] = SimpleQueue()
    names = [
        llm.engine.submit(ids, params, lambda events: inbox.put((perf_counter(), events)))
        for _ in range(num_streams)
    ]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    times: list[float] = []
    num_open = num_streams
    while num_open:
        now, events = inbox.get()
        times.append(now)
        for event in events:
            tokens[event.request_id] += [event.token_id] if event.token_id >= 0 else []
            num_open -= event.finish_reason is not None
    after = llm.engine.stats()
    return Run(
        times[-1] - times[0],
        list(tokens.values()),
        after.num_drafts - before.num_drafts,
        after.num_draft_tokens - before.num_draft_tokens,
        after.num_accepted_tokens - before.num_accepted_tokens,
    )


def step_costs(llm: LLM, most: int) -> dict[int, float]:
    """What a step of 1 + drafts rows costs for one stream, as a multiple of a plain decode's."""
    from evenflow.schedule.request import Request  # noqa: PLC0415 - a part by itself
    from evenflow.types import Span, StepPlan  # noqa: PLC0415 - as above

    runner = llm.engine._runner  # noqa: SLF001 - the engine is idle
    size, context = llm.config.block_size, 300
    params = SamplingParams(temperature=0)
    request = Request("r", [5] * (context + most + 1), params, max_tokens=1, stop_ids=frozenset())
    request.block_ids = list(range(-(-(context + most + 1) // size)))
    run = [Span(request, 0, context, 0)]
    runner.submit(StepPlan(0, run, 0, context, "", "", ())).result()
    best = dict.fromkeys(range(1, most + 2), math.inf)
    for _ in range(30):
        for rows in best:
            plan = StepPlan(0, [Span(request, context, rows, rows)], 1, rows, "", "", ())
            start = perf_counter()
            runner.submit(plan).result()
            best[rows] = min(best[rows], perf_counter() - start)
    costs = {rows: seconds / best[1] for rows, seconds in best.items()}
    shown = ", ".join(f"{rows}: {cost:.2f}" for rows, cost in costs.items())
    print(f"a step of n rows, of one row's {best[1] * 1e3:.1f} ms (best of 30): {shown}")
    return costs


if __name__ == "__main__":
    main()
