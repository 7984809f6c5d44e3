"""A step's result from what was drawn for its rows; the same for every runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.errors import EvenflowError, InvalidRequestError, RunnerError
from evenflow.types import StepResult, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from evenflow.runner.batch import Batch
    from evenflow.schedule.request import Request
    from evenflow.types import StepPlan

# in place of a token, where none can be drawn
BAD_LOGITS = -1
NOTHING_LEFT = -2


class Report(NamedTuple):
    """Log probabilities of the rows that asked: natural, of the logits as they came.

    token_logprobs  [rows] float32: of the token drawn, or of the row's target
    token_ranks     [rows] int32: 1 + the number of larger logits
    top_ids         [rows, k] int32 and top_logprobs [rows, k] float32: the likeliest tokens, best
                    first, lower ids first on a tie; -1 where there are no more. k is the most that
                    a row asked for.
    """

    token_logprobs: NDArray[np.float32]
    token_ranks: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    @classmethod
    def empty(cls, num_logprobs: NDArray[np.int32]) -> Report:
        """Room for the report of rows that ask for so many."""
        rows, k = len(num_logprobs), max(0, int(num_logprobs.max(initial=0)))
        return cls(
            np.zeros(rows, np.float32),
            np.zeros(rows, np.int32),
            np.full((rows, k), -1, np.int32),
            np.full((rows, k), -np.inf, np.float32),
        )

    def entries(self, num_logprobs: NDArray[np.int32]) -> list[TokenLogprobs | None]:
        """One entry per row, None for a row that did not ask."""
        ids, values = self.top_ids.tolist(), self.top_logprobs.tolist()
        entries: list[TokenLogprobs | None] = []
        for row, wanted in enumerate(num_logprobs.tolist()):
            if wanted < 0:
                entries.append(None)
                continue
            top = zip(ids[row][:wanted], values[row][:wanted], strict=True)
            entries.append(
                TokenLogprobs(
                    float(self.token_logprobs[row]),
                    int(self.token_ranks[row]),
                    tuple((token, value) for token, value in top if token >= 0),
                )
            )
        return entries


def make_result(
    plan: StepPlan, batch: Batch, drawn: Sequence[int], report: Report | None, seconds: float
) -> StepResult:
    """Hand out the rows' tokens to the spans.

    Args:
        plan: the step.
        batch: what `build_batch` made of it.
        drawn: one token per row, or BAD_LOGITS or NOTHING_LEFT.
        report: for the rows that asked; None where no row did.
        seconds: the time that the step took.
    """
    extras = batch.sampling.extras
    count = len(plan.spans)
    spans = batch.row_spans.tolist()
    if extras is None and spans == list(range(count)) and min(drawn) >= 0:
        # a step of decodes: a row each, and nobody failed
        return StepResult(plan.serial, [(token,) for token in drawn], [], seconds)
    tokens: list[list[int]] = [[] for _ in range(count)]
    failed: dict[int, EvenflowError] = {}
    for row, (span, token) in enumerate(zip(spans, drawn, strict=True)):
        tokens[span].append(token)
        if token < 0 and span not in failed:
            request = plan.spans[span].request
            if not request.draft_ids or _is_reached(request, tokens[span]):
                failed[span] = _why(request, batch, row, token)
    if extras is None:
        for span in failed:
            tokens[span] = []
        return StepResult(plan.serial, [tuple(t) for t in tokens], [], seconds, failed=failed)

    for row, error in extras.refused.items():
        failed[spans[row]] = error
    entries: list[TokenLogprobs | None] = [None] * len(spans)
    if report is not None and extras.num_logprobs is not None:
        entries = report.entries(extras.num_logprobs)
    targets = [-1] * len(spans) if extras.targets is None else extras.targets.tolist()
    tokens = [[] for _ in range(count)]
    logprobs: list[list[TokenLogprobs | None]] = [[] for _ in range(count)]
    scores: dict[int, list[TokenLogprobs]] = {}
    for row, (span, token) in enumerate(zip(spans, drawn, strict=True)):
        entry = entries[row]
        if span in failed:
            continue
        if targets[row] < 0:
            tokens[span].append(token)
            logprobs[span].append(entry)
        elif entry is not None:
            scores.setdefault(span, []).append(entry)
    return StepResult(
        plan.serial,
        [tuple(t) for t in tokens],
        [tuple(each) for each in logprobs],
        seconds,
        scores,
        failed,
    )


def _is_reached(request: Request, tokens: list[int]) -> bool:
    """Whether the last of these rows stands behind right drafts only; else it means nothing."""
    return tokens[:-1] == request.draft_ids[: len(tokens) - 1]


def _why(request: Request, batch: Batch, row: int, code: int) -> EvenflowError:
    where = (
        f"request {request.id}: no token can be drawn at position {batch.sampling.positions[row]}"
    )
    if code == BAD_LOGITS:
        return RunnerError(
            f"{where}: its largest logit is not a finite number",
            hint="the model's weights may be damaged: check the file",
        )
    return InvalidRequestError(
        f"{where}: every token is banned",
        hint="bad_words and min_tokens ban tokens, and structured_outputs allows few: relax one",
    )
