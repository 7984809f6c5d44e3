"""Named options taken one by one: kind and range checked, the origin of each value remembered.

In go what a caller gave and the names that exist; each `integer`, `flag` or `choice` returns one
settled value. Which options there are, and what they mean, is `config.py`'s business.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

LARGEST = 2**31 - 1

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*")

OriginKind = Literal["default", "given", "auto"]
T = TypeVar("T", bound=int | str)


class Origin(NamedTuple):
    """Where a value came from: the built-in default, the caller, or a choice with its reason."""

    kind: OriginKind
    reason: str


class Options:
    """What the caller gave.

    Args:
        options: values by name; None means not given.
        names: the options that exist, in the order in which a hint lists them.
        chosen: those for which "auto" means not given.

    Raises:
        ConfigError: a name that does not exist; the hint says the nearest one.
    """

    def __init__(
        self, options: Mapping[str, object], names: Sequence[str], chosen: Collection[str]
    ) -> None:
        for name in options:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise ConfigError(
                    f"there is no engine option {name!r}",
                    hint=f"did you mean {near[0]!r}?"
                    if near
                    else f"the options are {', '.join(names)}",
                )
        self.given = {
            name: value
            for name, value in options.items()
            if value is not None and not (value == "auto" and name in chosen)
        }
        self._chosen = chosen
        self.origins: dict[str, Origin] = {}
        self.warnings: list[str] = []

    def settle(self, name: str, value: T, reason: str) -> T:
        """Record a value that was chosen here."""
        self.origins[name] = Origin("auto", reason)
        return value

    def default(self, name: str, value: T) -> T:
        """Record the built-in value."""
        self.origins[name] = Origin("default", "")
        return value

    def size(self, name: str, low: int, high: int = 2**60) -> int:
        """A size in bytes that was given: a number, or one with a unit such as 2G or 512MiB."""
        value = self.given[name]
        if isinstance(value, str):
            self.given[name] = parse_size(name, value)
        return self.integer(name, 0, low, high)

    def share(self, name: str) -> float:
        """A share that was given: above 0, at most 1."""
        value = self.given[name]
        hint = f"{name} takes a number above 0, at most 1"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} is {value!r}, which is not a number", hint=hint)
        if not 0 < value <= 1:
            raise ConfigError(f"{name} is {value:g}, outside its range", hint=hint)
        self.origins[name] = Origin("given", "")
        return float(value)

    def integer(
        self, name: str, default: int, low: int, high: int = LARGEST, *, auto: str = ""
    ) -> int:
        """A whole number from `low` to `high`; `auto` is the reason when the default is a choice."""
        if name not in self.given:
            self.origins[name] = Origin("auto" if auto else "default", auto)
            return default
        value = self.given[name]
        hint = f"{name} takes a whole number from {low:,} to {high:,}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} is {value!r}, which is not a whole number", hint=hint)
        if not low <= value <= high:
            raise ConfigError(
                f"{name} is {value:,}, outside its range of {low:,} to {high:,}", hint=hint
            )
        self.origins[name] = Origin("given", "")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or False, nothing that merely looks like it."""
        if name not in self.given:
            self.origins[name] = Origin("default", "")
            return default
        value = self.given[name]
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}", hint=f"{name} takes True or False")
        self.origins[name] = Origin("given", "")
        return value

    def choice(self, name: str, words: Sequence[str]) -> str | None:
        """One of the words, or None when nothing was given."""
        if name not in self.given:
            return None
        value = self.given[name]
        if value not in words:
            raise ConfigError(
                f"{name} is {value!r}",
                hint=f"{name} takes one of "
                + ", ".join(["auto", *words] if name in self._chosen else words),
            )
        self.origins[name] = Origin("given", "")
        return str(value)


def parse_size(name: str, text: str) -> int:
    """Bytes of a size with a unit.

    As in vLLM, k, m, g, t count in thousands and K, M, G, T in 1,024s: 1k is 1,000 and 1K is 1,024.
    A B may follow (2GB is 2G); with an i (2GiB) either letter counts in 1,024s.

    Raises:
        ConfigError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(
            f"{name} is {text!r}, which is not a size",
            hint=f"{name} takes bytes, such as 2G, 1.5GiB or 536870912",
        )
    number, unit, binary = match.groups()
    power = " kmgt".index(unit.lower() or " ")
    base = 1024 if binary or unit.isupper() else 1000
    return int(float(number) * base**power) if "." in number else int(number) * base**power
