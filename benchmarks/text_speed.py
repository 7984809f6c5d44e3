"""What text costs per token: reading a prompt, writing an output as it streams.

    python benchmarks/text_speed.py [MODEL] [--json]

In: a model with a tokenizer (smollm2 by default) and the interpreter's own help texts. Out: a table
of microseconds per token for outputs of 1k to 8k tokens, each beside its ceiling: the same work by
the tokenizers library alone, in one call. The last line is JSON. Incremental means that a token of
a long output costs what a token of a short one does: the ratio 8k / 1k is near 1. A long prompt is
read beside a thread that only looks at the clock: the longest it stood still is what a stream of
another request would have waited.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

from evenflow.errors import EvenflowError
from evenflow.model.load import load_model
from evenflow.text.detokenizer import Detokenizer
from evenflow.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIZES_TOKENS = (1024, 2048, 4096, 8192)
NUM_REPEATS = 40
STOP = ("</answer>", "\n\nQuestion:", "###", "The end.")


def stream(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str]) -> str:
    detokenizer = Detokenizer(tokenizer, stop=stop)
    texts = []
    for token_id in ids:
        text, stopped = detokenizer.push(token_id)
        texts.append(text)
        if stopped:
            raise AssertionError(f"the text holds the stop string {detokenizer.stopped_by!r}")
    return "".join(texts) + detokenizer.flush()


def works(tokenizer: Tokenizer, outputs: list[list[int]]) -> dict[str, Callable[[], object]]:
    """What is timed, by name, over all of the outputs."""
    backend = tokenizer._backend  # noqa: SLF001 - the ceiling is the library alone
    texts = [tokenizer.decode(ids) for ids in outputs]
    for stop in ((), STOP):
        if [stream(tokenizer, ids, stop) for ids in outputs] != texts:
            raise AssertionError(
                f"streamed in {len(texts)} outputs, the text is not the decoded one"
            )
    return {
        "encode_us": lambda: [tokenizer.encode(text) for text in texts],
        "encode_ceiling_us": lambda: [backend.encode_batch_fast([text])[0].ids for text in texts],
        "detokenize_us": lambda: [stream(tokenizer, ids, ()) for ids in outputs],
        "detokenize_stops_us": lambda: [stream(tokenizer, ids, STOP) for ids in outputs],
        "detokenize_ceiling_us": lambda: [backend.decode(ids) for ids in outputs],
    }


def measure(tokenizer: Tokenizer, ids: list[int]) -> dict[int, dict[str, float]]:
    """Microseconds per token by output length, over the same text cut into 8, 4, 2 and 1 outputs.

    The lengths take turns and the shortest time counts, so a disturbance hits all of them or none.
    """
    tasks = {
        size: works(tokenizer, [ids[i : i + size] for i in range(0, len(ids), size)])
        for size in SIZES_TOKENS
    }
    best: dict[int, dict[str, float]] = {size: {} for size in SIZES_TOKENS}
    for _ in range(NUM_REPEATS):
        for name in tasks[SIZES_TOKENS[0]]:
            for size, work in tasks.items():
                start = time.perf_counter()
                work[name]()
                per_token_us = (time.perf_counter() - start) / len(ids) * 1e6
                best[size][name] = min(per_token_us, best[size].get(name, per_token_us))
    return best


def stall_ms(read: Callable[[], object]) -> float:
    """The longest that another thread stood still during `read`."""
    done = False
    gaps_s = [0.0]

    def watch() -> None:
        last = time.perf_counter()
        while not done:
            now = time.perf_counter()
            gaps_s[0] = max(gaps_s[0], now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    time.sleep(0.02)
    gaps_s[0] = 0.0
    read()
    worst_s = gaps_s[0]
    done = True
    thread.join()
    return worst_s * 1e3


def build_ms(model: str) -> tuple[Tokenizer, float]:
    loaded = load_model(model)
    start = time.perf_counter()
    if loaded.is_gguf:
        tokenizer = Tokenizer.from_gguf(loaded.metadata)
    else:
        tokenizer = Tokenizer.from_folder(loaded.path)
    return tokenizer, (time.perf_counter() - start) * 1e3


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--json"]
    try:
        tokenizer, built_ms = build_ms(words[0] if words else "smollm2")
    except EvenflowError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    prompt = "\n".join(topics.values())
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    if len(ids) < SIZES_TOKENS[-1]:
        raise AssertionError(f"the help texts have {len(ids):,} tokens, too few")
    sizes = measure(tokenizer, ids[: SIZES_TOKENS[-1]])
    small, large = sizes[SIZES_TOKENS[0]], sizes[SIZES_TOKENS[-1]]
    ratios = {name: large[name] / small[name] for name in small}
    backend = tokenizer._backend  # noqa: SLF001 - to show what its plain call would do
    stall = {
        "tokens": len(ids),
        "worst_ms": stall_ms(lambda: tokenizer.encode(prompt)),
        "worst_of_plain_encode_ms": stall_ms(lambda: backend.encode(prompt)),
    }
    result = {"built_ms": built_ms, "sizes": sizes, "ratio_8k_1k": ratios, "stall": stall}
    if "--json" not in sys.argv:
        print(f"building the tokenizer of {tokenizer.vocab_size:,} tokens: {built_ms:.0f} ms")
        print(f"{'us per token':24}" + "".join(f"{num:>9,}" for num in SIZES_TOKENS) + "  8k / 1k")
        for name, ratio in ratios.items():
            cells = "".join(f"{sizes[num][name]:9.3f}" for num in SIZES_TOKENS)
            print(f"{name.removesuffix('_us'):24}{cells}{ratio:9.2f}")
        for name in ("encode", "detokenize"):
            share = large[f"{name}_ceiling_us"] / large[f"{name}_us"]
            print(f"{name}: {share:.0%} of its ceiling at 8k")
        print(
            f"another thread's longest stall while a prompt of {len(ids):,} tokens is read: "
            f"{stall['worst_ms']:.0f} ms ({stall['worst_of_plain_encode_ms']:.0f} ms with the "
            "library's plain encode)"
        )
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
