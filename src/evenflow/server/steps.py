"""The last steps' records, for whoever watches: /v1/steps.

In: records, on the engine's thread. Out: batches of server-sent events, ten times a second, on the
loop's thread; a watcher costs the engine nothing. One that reads too slowly loses old steps and is
told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import orjson
from starlette.responses import Response

from evenflow.errors import QueueFullError
from evenflow.server.answer import STREAM_HEADERS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from evenflow.server.metrics import Metrics
    from evenflow.trace import RequestRecord, StepRecord

NUM_KEPT = 4096
PERIOD_S = 0.1
NUM_QUIET = 5  # looks without a step, after which a watcher is told how things stand
NUM_KEEPALIVE = 150  # looks without a step between two signs of life
MAX_WATCHERS = 64


class Entry(NamedTuple):
    """A step and the gaps that its tokens ended."""

    number: int
    record: StepRecord
    worst_gap_s: float | None
    num_gaps: int
    num_output_tokens: int


class StepFeed:
    """Keeps the last steps; an observer, after `Metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._entries: deque[Entry] = deque(maxlen=NUM_KEPT)
        self.num_seen = 0
        self.num_watchers = 0
        self.is_closed = False

    def step(self, record: StepRecord) -> None:
        """Keep a step."""
        gaps = self._metrics.last_gaps
        worst_s = max(gaps) if gaps else None
        tokens = self._metrics.last_num_tokens
        self._entries.append(Entry(self.num_seen, record, worst_s, sum(gaps.values()), tokens))
        self.num_seen += 1

    def request(self, record: RequestRecord) -> None:
        """A request has ended; the steps have told its story."""

    def since(self, number: int) -> list[Entry]:
        """The kept steps from `number` on."""
        found: list[Entry] = []
        for entry in reversed(self._entries.copy()):
            if entry.number < number:
                break
            found.append(entry)
        found.reverse()
        return found

    def standing(self) -> bytes:
        """What a cancellation may have changed since the last step, as an event of its own kind."""
        stats = self._metrics.stats
        if stats is None:
            return b""
        now = stats()
        standing = {
            "num_running": now.num_running,
            "num_waiting": now.num_waiting,
            "kv_blocks_used": now.kv.held,
            "kv_blocks_cached": now.kv.cached,
            "kv_blocks_free": now.kv.free,
        }
        return b"event: standing\ndata: " + orjson.dumps(standing) + b"\n\n"

    def watch(self, num_past: int) -> StepStream:
        """A response that sends the last `num_past` steps and then all new ones.

        Raises:
            QueueFullError: too many watch already.
        """
        if self.num_watchers >= MAX_WATCHERS:
            raise QueueFullError(
                f"{self.num_watchers} watch the steps already", hint="close one of them"
            )
        return StepStream(self, max(0, self.num_seen - num_past))


class StepStream(Response):
    """Sends steps until the client goes or the feed is closed."""

    def __init__(self, feed: StepFeed, number: int) -> None:
        super().__init__()
        self._feed = feed
        self._number = number
        self._num_quiet = 0  # looks in a row that found no step
        self._told = b""  # how things stood when the watcher was told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Answer."""
        gone = asyncio.get_running_loop().create_task(_gone(receive))
        self._feed.num_watchers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await send({"type": "http.response.body", "body": b": steps\n\n", "more_body": True})
            while not gone.done() and not self._feed.is_closed:
                body = self._collect()
                if body:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.wait([gone], timeout=PERIOD_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._feed.num_watchers -= 1
            gone.cancel()

    def _collect(self) -> bytes:
        entries = self._feed.since(self._number)
        if not entries:
            self._num_quiet += 1
            if self._num_quiet >= NUM_QUIET and self._told != (standing := self._feed.standing()):
                self._told = standing
                return standing
            return b": still here\n\n" if self._num_quiet % NUM_KEEPALIVE == 0 else b""
        self._num_quiet, self._told = 0, b""
        lost = entries[0].number - self._number
        self._number = entries[-1].number + 1
        lines = [b": %d steps were lost\n\n" % lost] if lost else []
        lines += [b"data: " + message(entry) + b"\n\n" for entry in entries]
        return b"".join(lines)


def message(entry: Entry) -> bytes:
    """A step as JSON: its record, the gaps that it ended, and the tokens that it brought."""
    more = {
        "worst_gap_s": entry.worst_gap_s,
        "num_gaps": entry.num_gaps,
        "num_output_tokens": entry.num_output_tokens,
    }
    return orjson.dumps(entry.record)[:-1] + b"," + orjson.dumps(more)[1:]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
