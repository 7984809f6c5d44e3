"""Model families as data: what a file calls itself, and what it calls each tensor.

A family is an entry here, never a second forward pass. One file per group of relatives; `family.py`
says what an entry holds, docs/models.md what each family brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.errors import ModelError
from evenflow.model.families.family import Family
from evenflow.model.families.gemma import GEMMA2, GEMMA3
from evenflow.model.families.llama import GRANITE, LLAMA, MISTRAL, SMOLLM3
from evenflow.model.families.olmo import OLMO2
from evenflow.model.families.phi import PHI3
from evenflow.model.families.qwen import QWEN2, QWEN3

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAMILIES", "LLAMA", "Family", "family_of_gguf", "family_of_hf"]

FAMILIES = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    PHI3,
    OLMO2,
    SMOLLM3,
    GRANITE,
)


def family_of_gguf(architecture: object, source: str) -> Family:
    """The family of "general.architecture"; `source` names the file in the error.

    Raises:
        ModelError: unknown architecture; lists those known.
    """
    return _find(architecture, source, lambda family: family.gguf_architectures)


def family_of_hf(architecture: object, source: str) -> Family:
    """The family of config.json's first "architectures" entry.

    Raises:
        ModelError: unknown architecture; lists those known.
    """
    return _find(architecture, source, lambda family: family.hf_architectures)


def _find(architecture: object, source: str, names: Callable[[Family], tuple[str, ...]]) -> Family:
    for family in FAMILIES:
        if architecture in names(family):
            return family
    known = ", ".join(name for family in FAMILIES for name in names(family))
    raise ModelError(
        f"{source} holds a model of architecture {architecture!r}, which is not known",
        hint=f"known architectures: {known}",
    )
