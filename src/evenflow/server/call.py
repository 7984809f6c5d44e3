"""One HTTP request's way through the engine: its prompts, what came of them, and how it ends.

In: events from the bridge, on the loop's thread. Out: texts and counts, or the bytes of a stream.
Knows no socket: whoever sends the bytes waits on `changed`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from evenflow.errors import EngineClosedError, EvenflowError
from evenflow.server.bridge import choice_ids
from evenflow.server.faults import NotReadyError, SlowReaderError
from evenflow.server.replies import Messages, plain_choice, usage, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from evenflow.sampling import SamplingParams
    from evenflow.server.bridge import Bridge
    from evenflow.server.prompts import Prompt
    from evenflow.server.replies import Head, Usage
    from evenflow.types import FinishReason, StreamEvent

log = logging.getLogger("evenflow.server")


class Choice:
    """One prompt and its answer so far."""

    __slots__ = ("finish", "index", "num_cached_tokens", "num_prompt_tokens", "num_tokens", "texts")

    def __init__(self, index: int, num_prompt_tokens: int, echo: str) -> None:
        self.index = index
        self.num_prompt_tokens = num_prompt_tokens
        self.num_cached_tokens = 0  # of the prompt, found in the prefix cache
        self.num_tokens = 0
        self.texts = [echo]
        self.finish: FinishReason | None = None


class Call:
    """Gathers the answers to the prompts of one HTTP request.

    `error` says why there will be no answer; the first reason stays.
    """

    def __init__(
        self, bridge: Bridge, head: Head, prompts: Sequence[Prompt], num_each: int = 1
    ) -> None:
        """Lay a place for each answer: so many to each prompt, numbered prompt by prompt."""
        self._bridge = bridge
        self.head = head
        self.prompts = prompts
        self.num_each = num_each
        one = len(prompts) == 1
        self._names = [head.id if one else f"{head.id}-{i}" for i in range(len(prompts))]
        names = [one for name in self._names for one in choice_ids(name, num_each)]
        self.choices = {
            name: Choice(i, len(prompts[i // num_each].ids), prompts[i // num_each].echo)
            for i, name in enumerate(names)
        }
        self.num_open = 0
        self.error: EvenflowError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def start(self, params: SamplingParams) -> None:
        """Hand the prompts to the engine: all of them, or none. May run on any thread.

        Raises:
            InvalidRequestError: as for `Engine.submit`; likewise the others.
        """
        self.num_open = len(self.choices)
        for name, prompt in zip(self._names, self.prompts, strict=True):
            try:
                self._bridge.submit(prompt.ids, params, self, name)
            except BaseException:
                self.cancel()
                raise

    def take(self, event: StreamEvent) -> None:
        """Take an event; the bridge calls this."""
        choice = self.choices[event.request_id]
        if event.token_id >= 0:
            choice.num_tokens += 1
            if event.num_cached_tokens is not None:
                choice.num_cached_tokens = event.num_cached_tokens
        finish = event.finish_reason
        if finish is not None:
            choice.finish = finish
            self.num_open -= 1
            if finish == "error":
                self.fail(_as_evenflow(event.error))
            elif finish == "abort" and self.error is None:
                self.fail(NotReadyError("the server stops", hint="send the request again later"))
        if self.error is None:
            self._add(choice, event)
        if finish is not None:
            self._wake()

    def _add(self, choice: Choice, event: StreamEvent) -> None:
        choice.texts.append(event.text)

    def fail(self, error: EvenflowError) -> None:
        """End with an error instead of an answer; what still runs is cancelled."""
        if self.error is None:
            self.error = error
            self.cancel()
            self._wake()

    def cancel(self) -> None:
        """Cancel what still runs."""
        for request_id, choice in self.choices.items():
            if choice.finish is None:
                self._bridge.cancel(request_id)

    async def changed(self) -> None:
        """Wait until there is something new to see."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self.num_open == 0

    def counts(self) -> Usage:
        """The token counts over all choices; a prompt with several of them counts once."""
        choices = list(self.choices.values())
        return usage(
            sum(len(prompt.ids) for prompt in self.prompts),
            sum(choice.num_tokens for choice in choices),
            sum(choice.num_cached_tokens for choice in choices[:: self.num_each]),
        )

    def body(self) -> bytes:
        """The whole answer."""
        made = [
            plain_choice(self.head, choice.index, "".join(choice.texts), choice.finish)
            for choice in self.choices.values()
        ]
        return whole(self.head, made, self.counts())


class StreamingCall(Call):
    """A call whose events become messages at once.

    Args:
        bridge: the way to the engine.
        head: what the messages begin with.
        prompts: as for `Call`, and so is num_each.
        interval: tokens per message; the first and the last are never held back.
        with_usage: put a "usage" into the messages.
        running_usage: put the counts so far into every message.
        max_pending_bytes: what may wait to be sent; more means that the client does not read.
        cut: closes the connection of a client that does not read.
    """

    def __init__(
        self,
        bridge: Bridge,
        head: Head,
        prompts: Sequence[Prompt],
        num_each: int = 1,
        *,
        interval: int,
        with_usage: bool,
        running_usage: bool,
        max_pending_bytes: int,
        cut: Callable[[], None],
    ) -> None:
        super().__init__(bridge, head, prompts, num_each)
        self._with_usage = with_usage or running_usage
        self._messages = [
            Messages(head, i, with_usage=self._with_usage) for i in range(len(self.choices))
        ]
        self._interval = interval
        self._running_usage = running_usage
        self._max_pending_bytes = max_pending_bytes
        self._cut = cut
        self.is_blocked = False  # whether a send waits for the client to read
        self._pending: list[bytes] = []
        self._num_pending_bytes = 0

    def _add(self, choice: Choice, event: StreamEvent) -> None:
        text, finish = event.text, event.finish_reason
        texts = choice.texts
        if self._interval > 1 or texts:
            texts.append(text)
            if finish is None and choice.num_tokens % self._interval != 1 % self._interval:
                return
            text = "".join(texts)
            texts.clear()
        counts = None
        if self._running_usage:
            counts = usage(choice.num_prompt_tokens, choice.num_tokens, choice.num_cached_tokens)
        message = self._write(choice, text, counts)
        self._pending.append(message)
        self._num_pending_bytes += len(message)
        if self.is_blocked and self._num_pending_bytes > self._max_pending_bytes:
            log.warning(
                "request %s: its reader leaves %d bytes unread, the limit is %d; cancelled",
                self.head.id,
                self._num_pending_bytes,
                self._max_pending_bytes,
            )
            self._pending.clear()
            self.fail(SlowReaderError("the client does not read its stream"))
            self._cut()
            return
        self._wake()

    def _write(self, choice: Choice, text: str, counts: Usage | None) -> bytes:
        return self._messages[choice.index].write(text, choice.finish, counts)

    def collect(self) -> bytes:
        """Take what is ready to be sent; b"" when nothing is."""
        pending = self._pending
        body = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._num_pending_bytes = 0
        return body


def _as_evenflow(error: Exception | None) -> EvenflowError:
    """What the client is told; a dead engine is a failure of its request, not a closed door."""
    if isinstance(error, EvenflowError) and not isinstance(error, EngineClosedError):
        return error
    return EvenflowError("the engine failed", hint="the server's log says why")
