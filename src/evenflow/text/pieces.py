"""What a token stands for: its bytes.

Every tokenizer served here maps a token to bytes that do not depend on its neighbours, so text is
the UTF-8 reading of the bytes joined. Two spellings of bytes are known: the byte-level alphabet of
GPT-2 (one printable character per byte) and SentencePiece's (a lower-one-eighth block for a space,
`<0x0A>` for a byte). In: a token's spelling. Out: its bytes. Knows no request and no text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenflow.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _byte_level_alphabet() -> dict[str, int]:
    """The character that spells each byte: itself if it prints, else the next free from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(hidden)})
    return alphabet


BYTE_OF = _byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one that leaves the alphabet stands for its own text."""
    try:
        return bytes(map(BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode("utf-8", errors="replace")


def sentencepiece_bytes(token: str, *, space: str, byte_fallback: bool) -> bytes:
    """Bytes of a SentencePiece token, where `space` spells a space and `<0xNN>` one byte."""
    if byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes((int(token[3:5], 16),))
        except ValueError:
            pass  # "<0xZZ>" is ordinary text
    return token.replace(space, " ").encode("utf-8", errors="replace")


class Pieces(dict[int, bytes]):
    """Token id -> bytes, filled as ids are met, so that loading costs nothing per token.

    Args:
        spelling_of: a token's spelling, None for an id without a token.
        bytes_of: turns a spelling into bytes.
        literal: tokens that stand for their own text (special and other added tokens).
    """

    __slots__ = ("_bytes_of", "_literal", "_spelling_of")

    def __init__(
        self,
        spelling_of: Callable[[int], str | None],
        bytes_of: Callable[[str], bytes],
        literal: Mapping[int, str],
    ) -> None:
        super().__init__()
        self._spelling_of = spelling_of
        self._bytes_of = bytes_of
        self._literal = literal

    def __missing__(self, token_id: int) -> bytes:
        """Look the token up; b"" for an id past the vocabulary, as a padded embedding has."""
        if token_id < 0:
            raise InvalidRequestError(
                f"the token id is {token_id}, below 0", hint="token ids count from 0"
            )
        literal = self._literal.get(token_id)
        if literal is not None:
            piece = literal.encode("utf-8", errors="replace")
        else:
            spelling = self._spelling_of(token_id)
            if spelling is None:
                return b""  # not kept: such ids are without number
            piece = self._bytes_of(spelling)
        self[token_id] = piece
        return piece
