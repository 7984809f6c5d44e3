"""evenflow: an LLM engine whose token streams stay even while long prompts land.

from evenflow import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.generate("The sea is", SamplingParams(max_tokens=8))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import ConfigWarning, EvenflowError
from evenflow.sampling import SamplingParams
from evenflow.structured import StructuredOutputs
from evenflow.types import StreamEvent, TokenLogprobs
from evenflow.version import __version__

if TYPE_CHECKING:
    from evenflow.completion import Completion, CompletionOutput
    from evenflow.config import EngineConfig
    from evenflow.llm import LLM

__all__ = [
    "LLM",
    "Completion",
    "CompletionOutput",
    "ConfigWarning",
    "EngineConfig",
    "EvenflowError",
    "SamplingParams",
    "StreamEvent",
    "StructuredOutputs",
    "TokenLogprobs",
    "__version__",
]

_HOMES = {
    "LLM": "evenflow.llm",
    "Completion": "evenflow.completion",
    "CompletionOutput": "evenflow.completion",
    "EngineConfig": "evenflow.config",
}


def __getattr__(name: str) -> Any:
    """Import the heavy names when they are first asked for, so that `--version` is quick."""
    if name in _HOMES:
        import importlib  # noqa: PLC0415

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
