"""Drives an engine in this process: no network, no server, the same records.

Time stamps are taken on the engine's own thread, when it hands out a step's tokens, so that what
the event loop is busy with does not show up in them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.records import Message
from evenflow.errors import EvenflowError
from evenflow.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenflow.bench.drivers.interface import Turn
    from evenflow.bench.records import RequestRecord
    from evenflow.llm import LLM
    from evenflow.types import StreamEvent


class Prepared(NamedTuple):
    """Token ids and how to continue them."""

    prompt_token_ids: list[int]
    params: SamplingParams


class _Stream(NamedTuple):
    """A request that is under way."""

    record: RequestRecord
    clock: Callable[[], float]
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    parts: list[str]


class InProcessDriver:
    """A `Driver` over a loaded `LLM`, which the caller closes."""

    name = "in-process"

    def __init__(
        self, llm: LLM, *, temperature: float | None = 0.0, ignore_eos: bool = False
    ) -> None:
        self._llm = llm
        self._temperature = temperature
        self._ignore_eos = ignore_eos
        self._streams: dict[str, _Stream] = {}  # by the engine's id
        self._uses: Counter[str] = Counter()

    def prepare(self, turn: Turn) -> Prepared:
        """Tokenize; a prompt longer than wanted is cut, so that lengths are exact."""
        said = [part for pair in turn.history for part in pair]
        ids = self._llm.tokenizer.encode("".join([*said, turn.text]))
        if turn.prompt_tokens is not None and not turn.history:
            ids = (ids * -(-turn.prompt_tokens // max(1, len(ids))))[: turn.prompt_tokens]
        params = SamplingParams(
            max_tokens=turn.output_tokens,
            ignore_eos=self._ignore_eos,
            temperature=1.0 if self._temperature is None else self._temperature,
        )
        return Prepared(ids, params)

    async def send(
        self, prepared: object, record: RequestRecord, clock: Callable[[], float]
    ) -> str:
        """See `Driver.send`."""
        if not isinstance(prepared, Prepared):
            raise TypeError("what `prepare` returned is needed")
        loop = asyncio.get_running_loop()
        stream = _Stream(record, clock, loop.create_future(), loop, [])
        record.prompt_tokens = len(prepared.prompt_token_ids)
        record.tokens_from = "usage"
        record.send_s = clock()
        # a run that begins anew may find streams of the one before that have not quite ended
        self._uses[record.id] += 1
        again = self._uses[record.id] - 1
        name = f"{record.id}~again{again}" if again else record.id
        self._streams[name] = stream
        submitted = False
        try:
            self._llm.engine.submit(
                prepared.prompt_token_ids, prepared.params, self._take, request_id=name
            )
            submitted = True
            await stream.done
        except EvenflowError as e:
            record.error = e.message
            record.end_s = clock()
        finally:
            self._streams.pop(name, None)
            if submitted and not stream.done.done():
                self._llm.engine.cancel(name)
            if record.end_s is None:
                record.end_s = clock()
            record.output_tokens = sum(m.tokens for m in record.messages)
        return "".join(stream.parts)

    def _take(self, events: list[StreamEvent]) -> None:
        """All events of a step, on the engine's thread."""
        clock: Callable[[], float] | None = None
        now_s = 0.0
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            if stream.clock is not clock:
                clock = stream.clock
                now_s = clock()  # the same for all: they came of one step
            record = stream.record
            if event.num_cached_tokens is not None:
                details = {"cached_tokens": event.num_cached_tokens}
                record.usage = {"prompt_tokens_details": details}
            if event.token_id >= 0:
                if record.first_byte_s is None:
                    record.first_byte_s = now_s
                record.messages.append(Message(now_s, 1, len(event.text)))
                stream.parts.append(event.text)
            if event.finish_reason is not None:
                record.end_s = now_s
                record.finish_reason = event.finish_reason
                if event.error is not None:
                    record.error = str(event.error)
                elif not record.messages:
                    record.error = "no output"
                stream.loop.call_soon_threadsafe(_wake, stream.done)

    async def close(self) -> None:
        """The engine is its owner's to close."""


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
