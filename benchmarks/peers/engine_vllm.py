"""vLLM's CPU build, in process, with its step loop called directly."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "all")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import vllm
from vllm.sampling_params import RequestOutputKind

WHOLE = 8192


class Vllm:
    """See `worker.PeerEngine`.

    Its start takes a minute, so one engine serves all budgets: the scheduler's limit is changed, the
    largest step is what it was made for.
    """

    version = vllm.__version__

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._llm: vllm.LLM | None = None

    def open(self, budget: int) -> None:
        if self._llm is None:
            self._llm = vllm.LLM(
                str(self._folder),
                dtype="bfloat16",
                skip_tokenizer_init=True,
                max_model_len=WHOLE,
                max_num_batched_tokens=WHOLE,
                max_num_seqs=64,
                enable_prefix_caching=False,
                enable_chunked_prefill=True,
                seed=0,
            )
        core = self._llm.llm_engine.engine_core.engine_core
        core.scheduler.max_num_scheduled_tokens = budget or WHOLE

    def submit(self, name: str, ids: list[int], max_tokens: int) -> None:
        params = vllm.SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, params)

    def step(self) -> list[tuple[str, list[int]]]:
        outputs = self._llm.llm_engine.step()
        return [(o.request_id, list(o.outputs[0].token_ids)) for o in outputs]

    def close(self) -> None:
        self._llm = None


def make(weights: str, models: str) -> Vllm:
    return Vllm(Path(models) / f"smollm2-{weights}")
