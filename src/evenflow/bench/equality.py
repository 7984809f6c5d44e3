"""Did two runs of the same greedy requests give the same tokens, and if not, was it a tie?

The reference runner's products depend, in the last bits, on how many rows are multiplied at once.
So a token may differ where the two largest logits all but tie: the law is equal tokens up to the
first position whose margin is below `TIE_MARGIN`, and a difference at a larger margin is a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.runner.reference import ReferenceRunner
from evenflow.sampling import SamplingParams
from evenflow.schedule.request import Request
from evenflow.types import Span, StepPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.model.load import Model

TIE_MARGIN = 1e-3


class Difference(NamedTuple):
    """The first output position at which a request's tokens differ, and the margin there."""

    request_id: str
    position: int
    left: int | None  # None: that run had ended before
    right: int | None
    margin: float

    @property
    def is_tie(self) -> bool:
        """Whether the margin is so small that either token is right."""
        return self.margin < TIE_MARGIN


class Equality(NamedTuple):
    """What the comparison found."""

    num_requests: int
    num_tokens: int  # compared
    differences: list[Difference]

    @property
    def holds(self) -> bool:
        """Whether the law holds: no difference but at a tie."""
        return all(difference.is_tie for difference in self.differences)


def compare(
    left: Mapping[str, Sequence[int]],
    right: Mapping[str, Sequence[int]],
    margin_after: Callable[[str, Sequence[int]], float],
) -> Equality:
    """Compare two runs, request by request.

    Args:
        left: output token ids by request id.
        right: the same requests in the other run.
        margin_after: top-2 margin of the logits after a request's prompt and the given output;
            asked only where tokens differ, since it costs a prefill.

    Raises:
        ValueError: the runs are not of the same requests.
    """
    if left.keys() != right.keys():
        raise ValueError(f"different requests: {sorted(left.keys() ^ right.keys())}")
    differences = []
    num_tokens = 0
    for name, tokens in left.items():
        others = right[name]
        longer = max(len(tokens), len(others))
        at = next((i for i in range(longer) if tokens[i : i + 1] != others[i : i + 1]), None)
        num_tokens += longer if at is None else at + 1
        if at is not None:
            one, other = (t[at] if at < len(t) else None for t in (tokens, others))
            margin = margin_after(name, tokens[:at])
            differences.append(Difference(name, at, one, other, margin))
    return Equality(len(left), num_tokens, differences)


def reference_margin(model: Model, token_ids: Sequence[int]) -> float:
    """The largest logit minus the second largest, after one pass over `token_ids`."""
    runner = ReferenceRunner(model, num_blocks=1, block_size=len(token_ids))
    params = SamplingParams(max_tokens=1, temperature=0, seed=0)
    request = Request("margin", list(token_ids), params, max_tokens=1, stop_ids=frozenset())
    request.block_ids = [0]
    spans = [Span(request, 0, len(token_ids), 1)]
    runner.submit(StepPlan(0, spans, 0, len(token_ids), "whole", "", ())).result()
    second, first = np.partition(runner.last_logits[0], -2)[-2:].tolist()
    runner.close()
    return float(first - second)
