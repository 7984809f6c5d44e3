"""This engine, in process."""

from __future__ import annotations

import queue
from typing import Any

from evenflow import LLM, SamplingParams
from evenflow.version import __version__

KV_TOKENS = 16_384
BLOCK = 64


class Evenflow:
    """See `worker.PeerEngine`."""

    version = __version__

    def __init__(self, weights: str, model: str) -> None:
        self._weights, self._model = weights, model
        self._llm: LLM | None = None
        self._events: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def open(self, budget: int) -> None:
        self.close()
        options: dict[str, object] = {"enable_chunked_prefill": budget > 0}
        if budget:
            options["max_num_batched_tokens"] = budget
        self._llm = LLM(
            self._model,
            runner="native",
            weights=self._weights,
            progress=False,
            enable_prefix_caching=False,
            max_model_len=8192,
            max_num_seqs=64,
            block_size=BLOCK,
            num_kv_blocks=KV_TOKENS // BLOCK,
            **options,
        )

    def submit(self, name: str, ids: list[int], max_tokens: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        self._llm.engine.submit(ids, params, self._events.put, request_id=name)

    def step(self) -> list[tuple[str, list[int]]]:
        events = self._events.get()
        for event in events:
            if event.error is not None:
                raise event.error
        return [(e.request_id, [e.token_id]) for e in events if e.token_id >= 0]

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()
        self._llm = None


def make(weights: str, _models: str) -> Evenflow:
    return Evenflow(weights, "smollm2")
