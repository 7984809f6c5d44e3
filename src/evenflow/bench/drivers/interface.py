"""What a driver is: it sends one request and writes into its record what came, when it came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.bench.records import RequestRecord


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request says: a prompt, after the conversation so far as (question, answer).

    `prompt_tokens` is how long the prompt should be, for a driver that can make it so exactly.
    """

    text: str
    output_tokens: int
    prompt_tokens: int | None = None
    history: tuple[tuple[str, str], ...] = ()


class Driver(Protocol):
    """Sends requests. One task per request; all on one event loop.

    A `clock` gives seconds since the run's zero.
    """

    name: str

    def prepare(self, turn: Turn) -> object:
        """Do before the run what can be done before it; returns what `send` wants."""
        ...

    async def send(
        self, prepared: object, record: RequestRecord, clock: Callable[[], float]
    ) -> str:
        """Send a request and follow its stream to the end.

        Fills in the record as things happen. What goes wrong is written into it, not raised; only
        cancellation passes through, with the record as far as it got.

        Returns:
            The text of the answer.
        """
        ...

    async def close(self) -> None:
        """Give back what it holds."""
        ...
