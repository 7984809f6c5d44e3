"""Experiment E: does a captured graph still run when chunks and decodes share a step?

In: our own step records, or the lines of a log whose format is documented (vLLM's table of
`--cudagraph-metrics`, the `cuda graph:` field of SGLang's batch lines). Out: counts. An engine that
does not say gets no guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from evenflow.trace import StepRecord

# | unpadded tokens | padded tokens | paddings | runtime mode | count |
_VLLM_ROW = re.compile(r"\|\s*(\d+)\s*\|\s*(\d+)\s*\|\s*(\d+)\s*\|\s*(\w+)\s*\|\s*(\d+)\s*\|")
_SGLANG_ROW = re.compile(r"(Prefill|Decode) batch.*?cuda graph: (True|False)")


class GraphUse(NamedTuple):
    """Steps by what ran them: kind of step -> (with a graph, without), and why without."""

    kinds: dict[str, tuple[int, int]]
    reasons: dict[str, int]
    source: str

    @property
    def applicable(self) -> bool:
        """Whether any graph was seen at all."""
        return any(used for used, _ in self.kinds.values())


def from_steps(steps: Iterable[StepRecord]) -> GraphUse:
    """From our own records: each says which graph ran, or why none did."""
    kinds: dict[str, tuple[int, int]] = {}
    reasons: dict[str, int] = {}
    for step in steps:
        kind = (
            "mixed" if step.chunks and step.num_decodes else "prefill" if step.chunks else "decode"
        )
        without = step.graph.startswith("none")
        used, unused = kinds.get(kind, (0, 0))
        kinds[kind] = (used + (not without), unused + without)
        if without:
            why = step.graph.partition(":")[2].strip() or "no reason is given"
            reasons[why] = reasons.get(why, 0) + 1
    return GraphUse(kinds, reasons, "step records")


def from_log(text: str) -> GraphUse | None:
    """From a server's log; None where it says nothing of graphs."""
    kinds: dict[str, tuple[int, int]] = {}
    source = ""
    for tokens, _, _, mode, count in _VLLM_ROW.findall(text):
        source = "vLLM's --cudagraph-metrics"
        kind = f"{int(tokens):,} tokens"
        used, unused = kinds.get(kind, (0, 0))
        none = mode.upper() == "NONE"
        kinds[kind] = (used + (0 if none else int(count)), unused + (int(count) if none else 0))
    for kind, flag in _SGLANG_ROW.findall(text):
        source = "SGLang's batch lines"
        used, unused = kinds.get(kind.lower(), (0, 0))
        kinds[kind.lower()] = (used + (flag == "True"), unused + (flag == "False"))
    return GraphUse(kinds, {}, source) if kinds else None
