"""What requests ask for beyond temperature and the like, on one row of logits, in NumPy.

In: a row, and its part of `SamplingExtras`. Out: the row adjusted, or a report on it as it came.
The order of the adjustments is the sampler's rule; every value is float32 and each operation is
rounded once, as in C++.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.runner.outcome import Report

if TYPE_CHECKING:
    from evenflow.runner.batch import F32, I32, SamplingBatch
    from evenflow.runner.extras import Biases, Masks, Penalties


def adjusted(logits: F32, sampling: SamplingBatch, row: int) -> F32:
    """A row with bias, penalties, mask and bans applied, in this order; the row itself if none is.

    Args:
        logits: [vocabulary] float32; not changed.
        sampling: the batch that the row belongs to.
        row: its index there.
    """
    banned = sampling.banned_ids[slice(*sampling.banned_offsets[row : row + 2])]
    extras = sampling.extras
    if extras is None and not banned.size:
        return logits
    out = logits.copy()
    if extras is not None:
        _add_bias(out, extras.biases, row)
        _penalise(out, extras.penalties, row)
        _mask(out, extras.masks, row)
    out[banned] = -np.inf
    return out


def _add_bias(logits: F32, biases: Biases | None, row: int) -> None:
    if biases is not None:
        part = slice(*biases.bias_offsets[row : row + 2])
        logits[biases.bias_ids[part]] += biases.bias_values[part]


def _penalise(logits: F32, penalties: Penalties | None, row: int) -> None:
    if penalties is None:
        return
    history = penalties.history_ids[slice(*penalties.history_offsets[row : row + 2])]
    repetition = penalties.repetition_penalties[row]
    if repetition != 1:
        seen = np.unique(history)
        values = logits[seen]
        logits[seen] = np.where(values > 0, values / repetition, values * repetition)
    output = history[penalties.history_prompt_lens[row] :]
    ids, counts = np.unique(output, return_counts=True)
    logits[ids] -= counts.astype(np.float32) * penalties.frequency_penalties[row]
    logits[ids] -= penalties.presence_penalties[row]


def _mask(logits: F32, masks: Masks | None, row: int) -> None:
    if masks is None or masks.allowed_mask_rows[row] < 0:
        return
    words = masks.allowed_masks[masks.allowed_mask_rows[row]]
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(bool).reshape(-1)
    allowed = np.zeros(len(logits), bool)
    count = min(len(logits), len(bits))
    allowed[:count] = bits[:count]
    logits[~allowed] = -np.inf


def report(logits: F32, tokens: I32, num_logprobs: I32) -> Report:
    """Log probabilities of the rows that ask for them, from the logits as they came.

    Args:
        logits: [rows, vocabulary] float32.
        tokens: [rows]: whose log probability is wanted; negative where none could be drawn.
        num_logprobs: [rows]: likeliest tokens to name, -1 for no report.
    """
    out = Report.empty(num_logprobs)
    for row in np.flatnonzero((num_logprobs >= 0) & (tokens >= 0)):
        values, token, wanted = logits[row], tokens[row], num_logprobs[row]
        highest = values.max()
        norm = float(highest) + np.log(np.exp(values - highest).sum(dtype=np.float64))
        out.token_logprobs[row] = float(values[token]) - norm
        out.token_ranks[row] = 1 + np.count_nonzero(values > values[token])
        if wanted:
            best = np.argsort(-values, kind="stable")[:wanted]
            out.top_ids[row, : len(best)] = best
            out.top_logprobs[row, : len(best)] = values[best].astype(np.float64) - norm
    return out
