"""Prompts that waited for one another: whose turn it was, when each one's turn was over, and what they cost.

An engine takes prompts in the order in which they came and fills its steps: the step that ends one
prompt also begins the next. So a prompt's first token comes when its last step is done, but its own
work may have been over at that step's beginning. From one prompt alone that cannot be told; from the
queue it can, since each one's work begins where that of the one ahead ended.

In: when prompts were sent and had their first tokens, in the order of the latter. Out: arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.bench.blame.witness import Witnesses

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Rate(NamedTuple):
    """Milliseconds per token of some prompts that can only be timed together, and their size."""

    ms_per_token: float
    tokens: float
    longest: float


class Backlog(NamedTuple):
    """Who waited for whom; prompts in the order of their first tokens.

    Attributes:
        sends_s, ends_s: when each was sent and had its first token. [prompts].
        together_s: first tokens this close are of one step.
        ahead: the last one that was ahead and had its first token while this one waited, or -1.
        free_s: when that was, or when this one was sent. [prompts].
    """

    sends_s: Floats
    ends_s: Floats
    together_s: float
    ahead: Ints
    free_s: Floats


def backlog_of(sends_s: Floats, ends_s: Floats, together_s: float) -> Backlog:
    """Find for each prompt the one that it waited for; `ends_s` rises."""
    ahead = np.full(len(sends_s), -1, np.int64)
    free_s = sends_s.copy()
    for i in range(len(sends_s)):
        low = int(np.searchsorted(ends_s, sends_s[i], side="right"))
        high = int(np.searchsorted(ends_s, ends_s[i] - together_s, side="left"))
        for j in range(high - 1, low - 1, -1):
            if sends_s[j] <= sends_s[i]:
                ahead[i] = j
                free_s[i] = max(free_s[i], ends_s[j])
                break
    return Backlog(sends_s, ends_s, together_s, ahead, free_s)


def rates_of(backlog: Backlog, tokens: Floats, witnesses: Witnesses) -> list[Rate]:
    """The rate of each group of prompts that shared steps: a queue, or first tokens at one time.

    A step that ends one prompt and begins the next makes the first one's window too long and the
    next one's too short, so only the whole queue shows what its tokens cost.
    """
    ends_s, ahead = backlog.ends_s, backlog.ahead
    rates: list[Rate] = []
    i = 0
    while i < len(ends_s):
        j = i + 1
        while j < len(ends_s) and (
            ends_s[j] - ends_s[j - 1] <= backlog.together_s or ahead[j] >= i
        ):
            j += 1
        total = float(tokens[i:j].sum())
        if total > 0:
            start_s, end_s = float(backlog.free_s[i:j].min()), float(ends_s[i:j].max())
            slow_ms = witnesses.slow_ms(start_s, end_s)
            length_ms = (end_s - start_s) * 1e3 if slow_ms is None else slow_ms
            rates.append(Rate(length_ms / total, total, float(tokens[i:j].max())))
        i = j
    return rates


def turns_of(
    backlog: Backlog, starts_s: Floats, least_ms: Floats, witnesses: Witnesses
) -> tuple[Floats, Floats]:
    """When each prompt's work began and was over.

    Where the work of a prompt must have begun before the first token of the one ahead, the one
    ahead was done by then, though not before the step that brought its first token. Of those whose
    first tokens one step brought, the one that was sent last was the last.

    Args:
        backlog: who waited for whom.
        starts_s: when each began, if it was over with its first token. [prompts].
        least_ms: what each cost at least. [prompts].
        witnesses: the streams, which show where steps begin.
    """
    starts_s, done_s = starts_s.copy(), backlog.ends_s.copy()
    steps = np.concatenate([[0], np.cumsum(np.diff(backlog.ends_s) > backlog.together_s)])
    order = np.lexsort((backlog.sends_s, steps))
    for at in range(len(order) - 1, 0, -1):
        i, before = int(order[at]), int(order[at - 1])
        j = before if steps[before] == steps[i] else int(backlog.ahead[i])
        begun_s = float(max(starts_s[i], done_s[i] - least_ms[i] / 1e3))
        if j < 0 or begun_s >= done_s[j]:
            continue
        step_s = witnesses.step_before(float(backlog.ends_s[j]))
        if step_s is None:
            continue
        moved_s = float(done_s[j]) - max(begun_s, step_s)
        if moved_s > 0:
            done_s[j] -= moved_s
            starts_s[j] -= moved_s
    return np.maximum(backlog.sends_s, starts_s), done_s
