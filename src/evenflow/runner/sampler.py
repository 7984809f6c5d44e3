"""Draws one token per row of logits: the rule that every runner follows.

In: float32 logits and a `SamplingBatch`. Out: token ids. Log probabilities that a row reports are of
its logits as they came, before step 2: see `adjust.report`. Knows nothing of requests or steps: a draw
is a function of the row, its parameters, the seed and the position alone.

The rule, for one row `l` of V float32 logits. Comparisons are of the stated type, with no slack.

1. *Check.* If the largest logit is NaN or infinite (a NaN anywhere counts), no token is drawn.
   A row with a target draws nothing either: its token is the target.
2. *Adjust*, float32, in this order: the bias of an id is added to its logit; the logits of ids
   that were seen in prompt or answer are divided by the repetition penalty where they are above 0,
   else multiplied by it; ids seen n times in the answer lose n x the frequency penalty, then the
   presence penalty; logits of ids that the mask does not allow, and of banned ids, become -inf.
   If every logit is then -inf, no token is drawn.
3. *Greedy.* If the float32 temperature is 0, the token is the lowest id with the largest logit.
4. *Weights*, float32: `w[i] = exp((l[i] - max(l)) / temperature)`, two float32 roundings before
   the exp; the largest weight is 1.
5. *min_p*: i is kept if `w[i] >= min_p`, both float32. 0 keeps all, zero weights too.
6. *top_k*: order the kept ids by logit `l`, largest first, lower id first on a tie; the first
   `top_k` stay. 0, or as many as there are, keeps all.
7. *top_p*: skipped if `top_p >= 1`. `total` is the float64 sum of the kept weights. In the order of
   6, an id stays while the float64 sum of the weights **before** it is `< float64(top_p) * total`;
   so the first always stays, and the one that reaches top_p is the last.
8. *Draw.* `u` is the 53-bit uniform below. `threshold = u * total`, where `total` is the float64
   sum over what is kept now. In **vocabulary order**, the token is the first kept id whose running
   float64 sum of weights, itself included, is `> threshold`. There always is one, as u is at most
   1 - 2**-53 and so `u * total` rounds below `total`.

Here the sums run in vocabulary order (those of 7 over the head in its own order). Float64 sums of
float32 weights leave the order almost no way to change a draw, so another implementation may sum
`total` in any order; if none is then above the threshold, it takes the last kept id with a weight
above 0.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as
1, 2, 3; SC 2011). Key words: seed's low and high 32 bits. Counter words: position's low and high
32 bits, 0, 0. With output words x0 and x1, `u = ((x0 >> 5) * 2**26 + (x1 >> 6)) / 2**53`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evenflow.runner.adjust import adjusted
from evenflow.runner.outcome import BAD_LOGITS, NOTHING_LEFT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evenflow.runner.batch import F32, I32, SamplingBatch

    I64 = NDArray[np.int64]

_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # the multipliers of the paper
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # what is added to the key between rounds
_MASK = 0xFFFFFFFF
NUM_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10: four 32-bit words from four counter words and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(NUM_ROUNDS):
        first, second = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ k0,
            second & _MASK,
            (first >> 32) ^ c3 ^ k1,
            first & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The uniform in [0, 1) that belongs to (seed, position): 53 bits."""
    x0, x1, _, _ = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return float((x0 >> 5) * 2**26 + (x1 >> 6)) / 2.0**53


def sample(logits: F32, sampling: SamplingBatch) -> I32:
    """Draw a token for every row.

    Args:
        logits: [rows, vocabulary] float32; not changed.
        sampling: one entry per row.

    Returns:
        Token ids, [rows]; BAD_LOGITS where the largest logit is not a number or infinite,
        NOTHING_LEFT where every token is banned.
    """
    tokens: I32 = np.argmax(logits, axis=1).astype(np.int32)
    is_good = np.isfinite(logits.max(axis=1))  # NaN if any is: one pass finds them all
    extras = sampling.extras
    busy = (sampling.temperatures > 0) | (np.diff(sampling.banned_offsets) > 0)
    if extras is not None:
        busy[:] = True
        if extras.targets is not None:
            np.copyto(tokens, extras.targets, where=extras.targets >= 0)
            busy = extras.targets < 0
    for row in np.flatnonzero(busy & is_good):
        scores = adjusted(logits[row], sampling, int(row))
        highest = scores.max()
        if np.isfinite(highest):
            tokens[row] = _draw(scores, sampling, int(row))
        else:
            tokens[row] = NOTHING_LEFT if highest == -np.inf else BAD_LOGITS
    tokens[~is_good] = BAD_LOGITS
    return tokens


def _draw(logits: F32, sampling: SamplingBatch, row: int) -> int:
    temperature = sampling.temperatures[row]
    if temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # a tiny temperature sends the others to -inf
        weights = np.exp((logits - logits.max()) / temperature)
    kept = np.flatnonzero(weights >= sampling.min_ps[row])
    top_k, top_p = int(sampling.top_ks[row]), float(sampling.top_ps[row])
    if 0 < top_k < kept.size:
        kept = np.sort(_largest(kept, logits, top_k))
    if top_p < 1:
        kept = np.sort(_nucleus(kept, logits, weights, top_p))
    running = np.cumsum(weights[kept], dtype=np.float64)
    threshold = uniform(int(sampling.seeds[row]), int(sampling.positions[row])) * running[-1]
    return int(kept[np.searchsorted(running, threshold, side="right")])


def _largest(kept: I64, logits: F32, count: int) -> I64:
    """The `count` kept ids with the largest logits, largest first, lower ids first on ties."""
    values = logits[kept]
    if count < kept.size:
        edge = np.partition(values, kept.size - count)[kept.size - count]
        kept = kept[values >= edge]  # with every tie at the edge
    return kept[np.argsort(-logits[kept], kind="stable")][:count]


def _nucleus(kept: I64, logits: F32, weights: F32, top_p: float) -> I64:
    """The shortest head of the kept ids, by logit, whose weights reach top_p of the total."""
    wanted = top_p * float(np.cumsum(weights[kept], dtype=np.float64)[-1])
    count = 256  # nearly always enough, and spares sorting the vocabulary
    while True:
        head = _largest(kept, logits, count)
        running = np.cumsum(weights[head], dtype=np.float64)
        if running[-1] >= wanted or head.size == kept.size:
            # an id stays while the sum before it is below what is wanted
            return head[: int(np.searchsorted(running, wanted, side="left")) + 1]
        count *= 16
