"""Text to token ids and back, the same for a GGUF file and a Hugging Face folder.

In: text or ids. Out: ids, text, bytes. Knows no request: stop strings and streaming are the
detokenizer's, roles and turns the chat template's.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from evenflow.errors import InvalidRequestError
from evenflow.text import from_folder, from_gguf
from evenflow.text.plain import plain_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import tokenizers

    from evenflow.structured import StructuredOutputs
    from evenflow.text.grammar import GrammarMasks, Grammars
    from evenflow.text.parts import TokenizerParts


class Tokenizer:
    """A model's tokenizer. It may be shared by threads.

    Args:
        parts: what a loader read; see `from_gguf` and `from_folder`.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._max_leading_spaces = parts.max_leading_spaces
        self.pieces = parts.pieces
        self.vocab_size = parts.num_tokens
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.special_ids = parts.special_ids
        self.special_tokens = parts.special_tokens
        self.chat_template = parts.chat_template

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from a GGUF file's key/value pairs, given as plain Python values.

        Raises:
            ModelError: a kind of tokenizer that is not known, or broken metadata.
        """
        return cls(from_gguf.load(metadata))

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Build from a Hugging Face folder that holds a tokenizer.json.

        Raises:
            ModelError: no such file, a broken file, or a decoder that is not known.
        """
        return cls(from_folder.load(path))

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text without lone surrogates; "" gives no ids, or only the added ones.
            add_special_tokens: put the model's BOS (and EOS) where the model asks for it.
            parse_special: read a special token's name in the text as that token; if not, its
                letters are encoded like any others.

        Raises:
            InvalidRequestError: the text is not a str or cannot be written as UTF-8.
        """
        backend = self._backend if parse_special else self._plain_backend
        if not isinstance(text, str):
            raise InvalidRequestError(
                f"the prompt is a {type(text).__name__}", hint="a prompt is a str or token ids"
            )
        try:
            # A batch of one: the library's plain `encode` keeps the GIL, so that every stream of
            # the process would stand still while a long prompt is read.
            (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise _lone_surrogate(text) from error
        return encoding.ids

    def encode_chat(self, rendered: str) -> list[int]:
        """Token ids of a rendered chat template.

        The template writes BOS itself where the model wants one, so none is added here.
        """
        return self.encode(rendered, add_special_tokens=False)

    def decode(
        self,
        token_ids: Iterable[int],
        *,
        skip_special_tokens: bool = True,
        continues: bool = False,
    ) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD.

        Nothing is tidied up: spaces before punctuation stay as the model wrote them.

        Args:
            token_ids: ids; one past the vocabulary stands for nothing.
            skip_special_tokens: leave special tokens out.
            continues: the ids go on from a prompt, so a leading space is part of the text. Else the
                space that some tokenizers put before every text is taken off.

        Raises:
            InvalidRequestError: an id is negative.
        """
        pieces = self.pieces
        if skip_special_tokens:
            special = self.special_ids
            data = b"".join([pieces[i] for i in token_ids if i not in special])
        else:
            data = b"".join([pieces[i] for i in token_ids])
        text = data.decode("utf-8", errors="replace")
        if not continues:
            for _ in range(self._max_leading_spaces):
                text = text.removeprefix(" ")
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; half a character is possible."""
        return self.pieces[token_id]

    def compile(self, form: StructuredOutputs) -> GrammarMasks:
        """Masks that give an answer the form that was asked for.

        The first call prepares the vocabulary, see `prepare_grammars`.

        Raises:
            InvalidRequestError: the schema or grammar cannot be used; says why.
            ModelError: the model has no end-of-sequence token.
        """
        return self._grammars.compile(form)

    def prepare_grammars(self) -> None:
        """Do now what the first structured output would wait for: a second per 100,000 tokens.

        Raises:
            ModelError: the model has no end-of-sequence token.
        """
        _ = self._grammars

    @cached_property
    def _grammars(self) -> Grammars:
        from evenflow.text.grammar import Grammars  # noqa: PLC0415 - only where one is wanted

        return Grammars(
            [self.pieces[i] for i in range(self.vocab_size)],
            special_ids=self.special_ids,
            eos_ids=self.eos_ids,
            encode=lambda text: self.encode(text, add_special_tokens=False, parse_special=False),
        )

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        # A copy, made when first asked for: the switch is a state of the object, and another
        # thread may be encoding with it.
        return plain_copy(self._backend)


def _lone_surrogate(text: str) -> InvalidRequestError:
    bad = next(i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff")
    return InvalidRequestError(
        f"character {bad:,} of the {len(text):,} of the text is the lone surrogate {text[bad]!r}",
        hint="decode the text with errors='replace' before it is sent",
    )
