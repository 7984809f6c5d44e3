"""Progress on standard error while somebody watches; nothing when nobody does."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich import progress as rich_progress


def is_watched(wanted: bool | None) -> bool:
    """Whether to show progress: as wanted, or when standard error is a terminal."""
    return sys.stderr.isatty() if wanted is None else wanted


@contextmanager
def loading(model: str, wanted: bool | None) -> Iterator[None]:
    """Say that a model is being loaded."""
    if not is_watched(wanted):
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - not needed by a silent program

    with Console(stderr=True).status(f"loading {model}"):
        yield


class Progress:
    """A bar over `total` requests, with the tokens so far and their rate."""

    def __init__(self, total: int, wanted: bool | None) -> None:
        self._total = total
        self._bar: rich_progress.Progress | None = None
        self._shown = is_watched(wanted) and total > 0

    def __enter__(self) -> Self:
        if self._shown:
            from rich import progress  # noqa: PLC0415 - not needed by a silent program
            from rich.console import Console  # noqa: PLC0415

            self._bar = progress.Progress(
                progress.TextColumn("{task.completed:,}/{task.total:,} requests"),
                progress.BarColumn(),
                progress.TextColumn("{task.fields[tokens]:,} tokens"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, tokens=0)
        return self

    def update(self, num_done: int, num_tokens: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=num_done, tokens=num_tokens)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class BytesProgress:
    """A bar over bytes, with their rate and the time that is left."""

    def __init__(self, what: str, wanted: bool | None = None) -> None:
        self._what = what
        self._bar: rich_progress.Progress | None = None
        self._shown = is_watched(wanted)

    def __enter__(self) -> Self:
        if self._shown:
            from rich import progress  # noqa: PLC0415 - not needed by a silent program
            from rich.console import Console  # noqa: PLC0415

            self._bar = progress.Progress(
                progress.TextColumn(self._what),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def update(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
