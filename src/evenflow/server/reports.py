"""Log probabilities as OpenAI's API and vLLM write them.

In: token ids and what the engine found about them. Out: plain objects for JSON. A token is shown by its
text; one that is no text on its own (half a character) by `bytes:` and its bytes, as OpenAI's older
endpoint does, so that two of them can be told apart.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.text.tokenizer import Tokenizer
    from evenflow.types import TokenLogprobs

    Scored = tuple[int, TokenLogprobs | None]  # a token; None is the prompt's first one

LOWEST = -9999.0  # JSON has no infinity; vLLM's stand-in
_UTF8 = codecs.getincrementaldecoder("utf-8")


def shown(piece: bytes) -> str:
    """A token as a text that no other token of another spelling has."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_logprobs(tokenizer: Tokenizer, scored: Sequence[Scored]) -> dict[str, Any]:
    """The `logprobs` of a chat's choice, or of one message of its stream."""
    content = []
    for token, found in scored:
        assert found is not None
        content.append(
            _chat_entry(tokenizer, token, found.logprob)
            | {"top_logprobs": [_chat_entry(tokenizer, *one) for one in found.top]}
        )
    return {"content": content, "refusal": None}


def _chat_entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    piece = tokenizer.token_bytes(token)
    return {"token": shown(piece), "logprob": max(logprob, LOWEST), "bytes": list(piece)}


class CompletionLogprobs:
    """The `logprobs` of a completion's choice; in a stream each message goes on from the last.

    Args:
        tokenizer: the model's.
        skip_special_tokens: whether the text leaves them out.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decode = _UTF8(errors="replace").decode
        self._offset = 0

    def write(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """The next tokens; `text_offset` counts characters of the choice's text."""
        pieces = [self._tokenizer.token_bytes(token) for token, _ in scored]
        offsets = []
        for (token, _), piece in zip(scored, pieces, strict=True):
            offsets.append(self._offset)
            if token not in self._skip:
                self._offset += len(self._decode(piece))
        return {
            "tokens": [shown(piece) for piece in pieces],
            "token_logprobs": [None if s is None else max(s.logprob, LOWEST) for _, s in scored],
            "top_logprobs": [self._top(token, found) for token, found in scored],
            "text_offset": offsets,
        }

    def _top(self, token: int, found: TokenLogprobs | None) -> dict[str, float] | None:
        """The likeliest tokens, and the drawn one where it is not among them."""
        if found is None:
            return None
        return {
            shown(self._tokenizer.token_bytes(one)): max(logprob, LOWEST)
            for one, logprob in _with_own(token, found)
        }


def prompt_report(tokenizer: Tokenizer, scored: Sequence[Scored]) -> list[dict[str, Any] | None]:
    """The prompt, in vLLM's shape: for each token but the first, ids to what is known about them."""
    made: list[dict[str, Any] | None] = []
    for token, found in scored:
        if found is None:
            made.append(None)
            continue
        ranks = {one: place for place, (one, _) in enumerate(found.top, 1)}
        made.append(
            {
                str(one): {
                    "logprob": max(logprob, LOWEST),
                    "rank": found.rank if one == token else ranks[one],
                    "decoded_token": shown(tokenizer.token_bytes(one)),
                }
                for one, logprob in _with_own(token, found)
            }
        )
    return made


def _with_own(token: int, found: TokenLogprobs) -> list[tuple[int, float]]:
    if any(one == token for one, _ in found.top):
        return list(found.top)
    return [*found.top, (token, found.logprob)]
