"""What only some requests ask of the sampler, as flat arrays: made for a step where one does.

In: the requests of the rows of logits, and the rows' positions. Out: `SamplingExtras`. A step in
which every request is plain has none, and pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evenflow.errors import EvenflowError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.schedule.request import Request

    I32 = NDArray[np.int32]
    U32 = NDArray[np.uint32]
    F32 = NDArray[np.float32]

_EMPTY = np.empty(0, np.int32)


class Penalties(NamedTuple):
    """Penalties of each row, and what they count.

    repetition_penalties, presence_penalties, frequency_penalties   [rows] float32
    history_ids, history_offsets, history_prompt_lens   row r has seen
        history_ids[history_offsets[r]:history_offsets[r + 1]], the first history_prompt_lens[r] of
        them in its prompt; empty for a row without penalties
    """

    repetition_penalties: F32
    presence_penalties: F32
    frequency_penalties: F32
    history_ids: I32
    history_offsets: I32
    history_prompt_lens: I32


class Biases(NamedTuple):
    """What is added to the logits: row r owns bias_offsets[r]:bias_offsets[r + 1] of the others."""

    bias_ids: I32
    bias_values: F32
    bias_offsets: I32


class Masks(NamedTuple):
    """Which ids may be drawn.

    allowed_masks      [masks, words] uint32: bit i % 32 of word i / 32 says that id i may be drawn;
                       ids beyond the last word may not
    allowed_mask_rows  [rows]: the mask of each row, -1 for none
    """

    allowed_masks: U32
    allowed_mask_rows: I32


@dataclass(frozen=True, slots=True)
class SamplingExtras:
    """One entry per row of logits; None where no row of the step needs it.

    num_logprobs  [rows]: likeliest tokens to report, -1 for no report at all
    targets       [rows]: a token to report on in place of drawing one, -1 to draw
    refused       row -> why its mask could not be made; what is drawn there means nothing
    """

    penalties: Penalties | None = None
    biases: Biases | None = None
    masks: Masks | None = None
    num_logprobs: I32 | None = None
    targets: I32 | None = None
    refused: dict[int, EvenflowError] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All arrays that are there, by name."""
        named: dict[str, NDArray[np.generic]] = {}
        for group in (self.penalties, self.biases, self.masks):
            named.update(group._asdict() if group is not None else {})
        if self.num_logprobs is not None:
            named["num_logprobs"] = self.num_logprobs
        if self.targets is not None:
            named["targets"] = self.targets
        return named


def build_extras(requests: list[Request], positions: list[int]) -> SamplingExtras | None:
    """The extras of the rows; None where no row needs any.

    Args:
        requests: whose row it is, one entry per row.
        positions: the row's own position: its logits are about the token after it.
    """
    targets = [_target(r, p) for r, p in zip(requests, positions, strict=True)]
    draws = [target < 0 for target in targets]
    refused: dict[int, EvenflowError] = {}
    wanted = [
        r.params.logprobs if draw else r.params.prompt_logprobs
        for r, draw in zip(requests, draws, strict=True)
    ]
    asked = any(w is not None for w in wanted)
    counts = [-1 if w is None else w for w in wanted]
    parts = (
        _penalties(requests, positions, draws),
        _biases(requests, draws),
        _masks(requests, positions, draws, refused),
        np.array(counts, np.int32) if asked else None,
        None if all(draws) else np.array(targets, np.int32),
    )
    if all(part is None for part in parts) and not refused:
        return None
    return SamplingExtras(*parts, refused)


def _target(request: Request, position: int) -> int:
    """The token that a row scores: the prompt's next one, where that was asked for."""
    if request.params.prompt_logprobs is None or position + 1 >= request.num_prompt_tokens:
        return -1
    return request.token_ids[position + 1]


def _penalties(
    requests: list[Request], positions: list[int], draws: list[bool]
) -> Penalties | None:
    rows = [r for r, draw in enumerate(draws) if draw and requests[r].params.has_penalties]
    if not rows:
        return None
    count = len(requests)
    repetition = np.ones(count, np.float32)
    presence, frequency = np.zeros((2, count), np.float32)
    parts, lengths = [_EMPTY], np.zeros(count + 1, np.int32)
    prompt_lens = np.zeros(count, np.int32)
    for row in rows:
        request, params = requests[row], requests[row].params
        repetition[row] = params.repetition_penalty
        presence[row] = params.presence_penalty
        frequency[row] = params.frequency_penalty
        seen = np.frombuffer(request.history(), np.int32)[: positions[row] + 1]
        if positions[row] >= request.num_tokens:  # a row behind drafts has seen them too
            drafts = request.draft_ids[: positions[row] + 1 - request.num_tokens]
            seen = np.concatenate([seen, np.array(drafts, np.int32)])
        parts.append(seen)
        lengths[row + 1] = len(seen)
        prompt_lens[row] = request.num_prompt_tokens
    return Penalties(
        repetition,
        presence,
        frequency,
        np.concatenate(parts),
        np.cumsum(lengths, dtype=np.int32),
        prompt_lens,
    )


def _biases(requests: list[Request], draws: list[bool]) -> Biases | None:
    biases = [r.params.logit_bias or {} if d else {} for r, d in zip(requests, draws, strict=True)]
    if not any(biases):
        return None
    return Biases(
        np.array([token for bias in biases for token in bias], np.int32),
        np.array([value for bias in biases for value in bias.values()], np.float32),
        np.cumsum([0, *map(len, biases)], dtype=np.int32),
    )


def _masks(
    requests: list[Request],
    positions: list[int],
    draws: list[bool],
    refused: dict[int, EvenflowError],
) -> Masks | None:
    masks: list[bytes] = []
    rows = np.full(len(requests), -1, np.int32)
    for row, request in enumerate(requests):
        if request.masks is None or not draws[row]:
            continue
        answer = request.token_ids[request.num_prompt_tokens : positions[row] + 1]
        try:
            mask = request.masks.allowed(answer)
        except EvenflowError as error:
            refused[row] = error
            continue
        rows[row] = len(masks)
        masks.append(mask)
    if not masks:
        return None
    joined = np.frombuffer(b"".join(masks), np.uint32)
    return Masks(joined.reshape(len(masks), -1), rows)
