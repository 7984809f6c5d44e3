"""Typed look-ups in the tokenizer's part of GGUF metadata; errors name the key.

In: plain Python values by key. Out: values of the type asked for. Knows no kind of tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "tokenizer.ggml."
# values of `tokenizer.ggml.token_type`
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file, id by id.

    Args:
        spellings: as the file has them.
        types: `NORMAL` and so on; all normal where the file gives none.
    """

    spellings: list[str]
    types: list[int]

    def of_type(self, *types: int) -> set[int]:
        """Ids of these types."""
        return {i for i, kind in enumerate(self.types) if kind in types}


class Keys:
    """A file's key/values."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def value(
        self, name: str, kind: type, *, prefix: str = PREFIX, required: bool = True
    ) -> Any:  # the caller names the type
        """The value of a key, None where it is absent and need not be there.

        Raises:
            ModelError: the key is missing or of another type.
        """
        value = self._metadata.get(prefix + name)
        if value is None and not required:
            return None
        if value is None:
            raise ModelError(
                f"the model file has no {prefix}{name}",
                hint="the file is incomplete or too old: convert the model again",
            )
        # bool is an int to Python, yet a flag is not an id
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(
                f"{prefix}{name} is a {type(value).__name__}, but a {kind.__name__} belongs there",
                hint="the file is broken: convert the model again",
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """A switch, `default` where the file does not say."""
        stated: bool | None = self.value(name, bool, required=False)
        return default if stated is None else stated

    def token_id(self, name: str, num_tokens: int, *, default: int | None = None) -> int | None:
        """The id behind a key such as "bos_token_id"; `default` where the file does not say.

        Raises:
            ModelError: the id is not one of the file's tokens.
        """
        token_id: int | None = self.value(name, int, required=False)
        if token_id is None:
            return default if default is not None and default < num_tokens else None
        if not 0 <= token_id < num_tokens:
            raise ModelError(
                f"{PREFIX}{name} is {token_id:,}, but the tokens count 0 to {num_tokens - 1:,}",
                hint="the file is broken: convert the model again",
            )
        return token_id

    def per_token(self, name: str, num_tokens: int, what: str) -> list[Any] | None:
        """A list with one value for each token; None where the file has none.

        Raises:
            ModelError: it is of another length; `what` names its values.
        """
        values: list[Any] | None = self.value(name, list, required=False)
        if values is not None and len(values) != num_tokens:
            raise ModelError(
                f"the model file has {num_tokens:,} tokens, but {len(values):,} {what}",
                hint="the file is broken: convert the model again",
            )
        return values

    def vocabulary(self) -> Vocabulary:
        """Tokens and their types.

        Raises:
            ModelError: no tokens, or another number of types.
        """
        spellings: list[str] = self.value("tokens", list)
        types = self.per_token("token_type", len(spellings), "token types")
        return Vocabulary(spellings, types or [NORMAL] * len(spellings))
