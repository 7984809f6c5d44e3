"""Typed look-ups in a file's own description; an error names the file, the key and the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evenflow.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

MISSING = object()


class Fields:
    """Key/values of a description.

    Args:
        values: the key/values; None counts as absent.
        source: the file, for errors.
        prefix: put before every key.
    """

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.values, self.source, self.prefix = values, source, prefix

    def integer(self, key: str, default: object = MISSING) -> int:
        """A whole number above 0, or the default."""
        value = self._get(key, default)
        if value is default and default is not MISSING:
            return int(default)  # type: ignore[call-overload, no-any-return]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: object = MISSING) -> float:
        """A number above 0, or the default."""
        value = self._get(key, default)
        if value is default and default is not MISSING:
            return float(default)  # type: ignore[arg-type]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def optional(self, key: str) -> float:
        """A number above 0; 0 where it is absent or 0."""
        return 0.0 if self.get(key) == 0 else self.number(key, 0.0)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers above 0."""
        values = self._get(key, MISSING)
        if not isinstance(values, list) or not all(
            isinstance(v, int | float) and v > 0 for v in values
        ):
            raise self.wrong(key, values, "a list of numbers above 0")
        return tuple(float(v) for v in values)

    def get(self, key: str) -> Any:
        """The value as it is; None where it is absent."""
        return self.values.get(self.prefix + key)

    def expect(self, key: str, value: object, wanted: object) -> None:
        """Refuse any other value than the one that is computed.

        Raises:
            ModelError: names the key and both values.
        """
        if value != wanted:
            raise ModelError(
                f"{self.source} gives {self.prefix}{key} as {value!r}, but only {wanted!r} is"
                " supported",
                hint="this variant of the architecture is not supported: pick another model",
            )

    def wrong(self, key: str, value: object, wanted: str) -> ModelError:
        """The error of a value that makes no sense."""
        return ModelError(
            f"{self.source} gives {self.prefix}{key} as {value!r}, but it takes {wanted}",
            hint="the model is damaged, or of a variant that is not supported",
        )

    def _get(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is not None:
            return value
        if default is MISSING:
            raise ModelError(
                f"{self.source} does not give {self.prefix}{key}",
                hint="the file is incomplete: convert or download it again",
            )
        return default
