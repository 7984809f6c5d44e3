"""OpenVINO GenAI's continuous batching, in process; its key/value cache in bfloat16, as the others'."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai

WHOLE = 16_384  # more than any step can hold
FOLDERS = {"bf16": "openvino-f16", "int8": "openvino-int8"}


class OpenVino:
    """See `worker.PeerEngine`."""

    version = genai.__version__

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipe: genai.ContinuousBatchingPipeline | None = None
        self._handles: dict[str, genai.GenerationHandle] = {}
        self._number = 0

    def open(self, budget: int) -> None:
        self.close()
        config = genai.SchedulerConfig()
        config.max_num_batched_tokens = budget or WHOLE
        config.dynamic_split_fuse = True
        config.enable_prefix_caching = False
        config.max_num_seqs = 64
        config.cache_size = 1  # GiB
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
        self._pipe = genai.ContinuousBatchingPipeline(str(self._folder), config, "CPU", properties)

    def submit(self, name: str, ids: list[int], max_tokens: int) -> None:
        params = genai.GenerationConfig()
        params.max_new_tokens = max_tokens
        params.ignore_eos = True
        params.do_sample = False
        row = ov.Tensor(np.array([ids], np.int64))
        self._number += 1
        self._handles[name] = self._pipe.add_request(self._number, row, params)

    def step(self) -> list[tuple[str, list[int]]]:
        self._pipe.step()
        found = []
        for name, handle in self._handles.items():
            ids: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    ids += output.generated_ids
            if ids:
                found.append((name, ids))
        return found

    def close(self) -> None:
        self._handles.clear()
        self._pipe = None
        gc.collect()


def make(weights: str, models: str) -> OpenVino:
    return OpenVino(Path(models) / FOLDERS[weights])
