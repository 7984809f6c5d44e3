"""How many tokens each message of a stream carried, and how that is known.

In: the messages as they came and what the server said. Out: the same messages with their tokens
settled. Knows nothing of how they arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.records import Message, TokensFrom


class Counted(NamedTuple):
    """Messages with their tokens, and where these come from."""

    messages: list[Message]
    tokens_from: TokensFrom
    output_tokens: int


def settle_tokens(messages: Sequence[Message], total: int | None, *, each_known: bool) -> Counted:
    """Decide how many tokens each message carried.

    Args:
        messages: as they came; their `tokens` count only where `each_known`.
        total: the server's count of output tokens; None when it gave none.
        each_known: the server counted every message itself.
    """
    if each_known:
        return Counted(list(messages), "usage", sum(m.tokens for m in messages))
    if total is None or total == len(messages):
        known: TokensFrom = "assumed" if total is None else "message"
        return Counted([m._replace(tokens=1) for m in messages], known, len(messages))
    shares = spread(total, [m.chars for m in messages])
    settled = [m._replace(tokens=n) for m, n in zip(messages, shares, strict=True)]
    return Counted(settled, "spread", total)


def spread(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `total`, in proportion to the weights, by largest remainder.

    No part is left with nothing while there are enough to go round: a message that carried output
    carried a token. What it takes comes from the largest part.
    """
    scale = sum(weights)
    exact = [total * w / scale if scale else total / len(weights) for w in weights]
    parts = [int(x) for x in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    if total >= len(parts) > 0:
        for i, part in enumerate(parts):
            if not part:
                largest = max(range(len(parts)), key=lambda j: parts[j])
                parts[largest] -= 1
                parts[i] = 1
    return parts
