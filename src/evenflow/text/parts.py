"""What a loader hands to `Tokenizer`, whichever file it read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import tokenizers

    from evenflow.text.pieces import Pieces


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """A tokenizer's data.

    Args:
        backend: encodes text; adds the model's special tokens when asked to.
        pieces: token id -> bytes.
        num_tokens: ids run from 0 to this, exclusive.
        bos_id: beginning of sequence; None where the model has none.
        eos_ids: every id that ends a sequence.
        special_ids: ids left out of the text by `skip_special_tokens`.
        special_tokens: their names in a chat template ("bos_token", ...) -> their text.
        max_leading_spaces: spaces that the tokenizer itself puts before a text, taken off again
            when a whole text is decoded.
        chat_template: jinja source; None where the model has none.
    """

    backend: tokenizers.Tokenizer
    pieces: Pieces
    num_tokens: int
    bos_id: int | None
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    special_tokens: dict[str, str]
    max_leading_spaces: int
    chat_template: str | None


@dataclass(frozen=True, kw_only=True)
class GgufKind:
    """What one kind of GGUF tokenizer decides before the file's added tokens are put in.

    Args:
        backend: encodes text without special tokens.
        bytes_of: a token's spelling -> its bytes.
        add_bos: put BOS before a text where the file does not say.
        add_eos: put EOS behind a text where the file does not say.
        max_leading_spaces: see `TokenizerParts`.
        default_ids: ids of "bos", "eos", ... that hold where the file does not say.
    """

    backend: tokenizers.Tokenizer
    bytes_of: Callable[[str], bytes]
    add_bos: bool
    add_eos: bool
    max_leading_spaces: int
    default_ids: dict[str, int]
