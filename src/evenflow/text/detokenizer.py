"""Turn one request's tokens into text as they come.

In: token ids, one at a time. Out: text that is certain, never half a character and never the
beginning of what may become a stop string. Knows no scheduler: it says that a stop string was
found, and the engine cancels. The cost of a token does not depend on how many came before it.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from evenflow.text.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.text.tokenizer import Tokenizer

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one request's output.

    All pushes and the flush, joined, are `tokenizer.decode(ids, continues=True)` up to the stop
    string. The text continues a prompt, so a leading space is kept.

    Args:
        tokenizer: the model's.
        stop: strings that end the text. The one that is completed first wins; of several completed
            by the same character, the longest.
        include_stop_str_in_output: end the text behind the stop string, not before it.
        skip_special_tokens: leave special tokens out of the text.
        min_tokens: a stop string counts only if a later token than the first `min_tokens`
            completes it (vLLM's rule); it may begin earlier.
    """

    __slots__ = (
        "_decode",
        "_matcher",
        "_min_tokens",
        "_num_tokens",
        "_pieces",
        "_skip",
        "stopped_by",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._pieces = tokenizer.pieces
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decode = _UTF8(errors="replace").decode
        self._matcher = StopMatcher(stop, include=include_stop_str_in_output) if stop else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.stopped_by: str | None = None  # the stop string that ended the text

    def push(self, token_id: int) -> tuple[str, bool]:
        """Take the next token.

        Returns:
            The text that is now certain, and whether a stop string has ended the text. Once it has,
            tokens that were already under way add nothing.

        Raises:
            InvalidRequestError: the id is negative.
        """
        if self.stopped_by is not None:
            return "", True
        self._num_tokens += 1
        text = "" if token_id in self._skip else self._decode(self._pieces[token_id])
        if self._matcher is None:
            return text, False
        return self._match(text)

    def flush(self) -> str:
        """The rest, when no more tokens come; broken bytes become U+FFFD."""
        if self.stopped_by is not None:
            return ""
        text = self._decode(b"", final=True)
        if self._matcher is None:
            return text
        text, stopped = self._match(text)
        return text if stopped else text + self._matcher.rest()

    def _match(self, text: str) -> tuple[str, bool]:
        assert self._matcher is not None
        text, found = self._matcher.feed(text, armed=self._num_tokens > self._min_tokens)
        if found:
            self.stopped_by = found
        return text, bool(found)
