"""A run while it runs: requests done, gaps of the last seconds, time left. On standard error."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import numpy as np

from evenflow.bench.gaps import deliveries

if TYPE_CHECKING:
    from rich.console import RenderableType

    from evenflow.bench.conduct import Conductor
    from evenflow.bench.records import Message

EVERY_S = 0.5
RECENT_S = 5.0
HISTORY = 60
BARS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Looks at a run now and then and draws what it sees.

    Args:
        conductor: of the run.
    """

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._history: list[float] = []

    async def watch(self) -> None:
        """Draw until cancelled."""
        from rich.console import Console  # noqa: PLC0415 - not needed by a silent program
        from rich.live import Live  # noqa: PLC0415

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.render(), refresh=True)
                await asyncio.sleep(EVERY_S)

    def render(self) -> RenderableType:
        """The present picture."""
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        state = self._conductor.state
        now_s = self._conductor.clock()
        done = len(state.records.requests)
        failed = sum(not r.ok for r in state.records.requests)
        share = self._share(now_s, done)
        recent, tokens = self._recent(now_s)
        self._history = [*self._history, recent[1]][-HISTORY:]
        eta = f"{now_s / share - now_s:.0f} s left" if share > 0.02 else "..."
        grid = Table.grid(padding=(0, 2))
        grid.add_row(ProgressBar(total=1.0, completed=share, width=30), f"{now_s:.0f} s, {eta}")
        grid.add_row(
            f"{done:,} done" + (f", {failed:,} failed" if failed else ""),
            f"{len(state.running):,} running, {tokens:,.0f} tokens/s",
        )
        grid.add_row(
            f"ITL p50 {recent[0]:.1f} ms, worst {recent[1]:.1f} ms",
            f"worst of each half second: {sparkline(self._history)}",
        )
        return grid

    def _share(self, now_s: float, done: int) -> float:
        state = self._conductor.state
        if state.expected_s:
            return min(1.0, now_s / state.expected_s)
        return min(1.0, done / max(1, state.total))

    def _recent(self, now_s: float) -> tuple[tuple[float, float], float]:
        """The median and the worst gap, and tokens per second, of the last seconds.

        A stream that is standing still right now counts with the gap that it has so far.
        """
        since_s = max(0.0, now_s - RECENT_S)
        gaps: list[float] = []
        num_tokens = 0
        state = self._conductor.state
        for record in (*state.running.values(), *state.records.requests[-100:]):
            recent: list[Message] = []
            for message in reversed(record.messages):
                recent.append(message)
                if message.time_s < since_s:
                    break
                num_tokens += max(1, message.tokens)
            times = [m.time_s for m in deliveries(recent[::-1])]
            gaps += [after - before for before, after in itertools.pairwise(times)]
            if record.messages and record.end_s is None:
                gaps.append(now_s - record.messages[-1].time_s)
        seconds = max(now_s - since_s, 1e-9)
        if not gaps:
            return (0.0, 0.0), num_tokens / seconds
        return (float(np.median(gaps)) * 1e3, max(gaps) * 1e3), num_tokens / seconds


def sparkline(values: list[float]) -> str:
    """Values as bars of a line, the largest one full."""
    largest = max(values, default=0.0)
    if largest <= 0:
        return ""
    return "".join(BARS[min(int(v / largest * len(BARS)), len(BARS) - 1)] for v in values)
