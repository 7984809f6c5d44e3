"""Drives any OpenAI-compatible server: chat or completions, streamed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from evenflow.bench.drivers.connection import (
    Address,
    ConnectionLostError,
    Pool,
    render_request,
)
from evenflow.bench.drivers.sse import EventReader, error_of
from evenflow.errors import ConfigError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from evenflow.bench.drivers.interface import Turn
    from evenflow.bench.records import RequestRecord

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MAX_ERROR_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How to ask.

    Attributes:
        model: the served name.
        endpoint: a path; one with "chat" in it takes messages, any other a prompt.
        headers: besides the usual ones, such as an authorization.
        extra_body: further fields of every request, as they are.
        temperature: None leaves it to the server.
        ignore_eos: ask for the full number of tokens.
        count_each: ask the server to count the tokens of every message
            (`continuous_usage_stats`, as vLLM spells it).
        include_usage: ask for the total at the end.
        timeout_s: of a whole request.
    """

    model: str
    endpoint: str = COMPLETIONS
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    temperature: float | None = 0.0
    ignore_eos: bool = False
    count_each: bool = False
    include_usage: bool = True
    timeout_s: float = 3600.0

    @property
    def is_chat(self) -> bool:
        """Whether the endpoint takes messages."""
        return "chat" in self.endpoint


class Answer(NamedTuple):
    """The answer to a plain request."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body, parsed; None when it is no JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class HttpDriver:
    """A `Driver` over HTTP.

    Raises:
        ConfigError: the URL is none, or several answers per request are asked for.
    """

    name = "http"

    def __init__(self, base_url: str, options: HttpOptions) -> None:
        self.address = Address.parse(base_url)
        if options.extra_body.get("n") not in {None, 1}:
            raise ConfigError(
                f"the extra body asks for {options.extra_body['n']} answers per request",
                hint="the gaps of one stream are measured: leave n out and send more requests",
            )
        self.options = options
        self.pool = Pool(self.address)

    def prepare(self, turn: Turn) -> bytes:
        """The bytes of the request, ready to send."""
        options = self.options
        body: dict[str, Any] = {"model": options.model, "stream": True}
        if options.is_chat:
            messages = [
                message
                for question, answer in turn.history
                for message in (
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                )
            ]
            body["messages"] = [*messages, {"role": "user", "content": turn.text}]
        else:
            said = [part for pair in turn.history for part in pair]
            body["prompt"] = "".join([*said, turn.text])
        body["max_tokens"] = turn.output_tokens
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.ignore_eos:
            body["ignore_eos"] = True
        if options.include_usage:
            wanted: dict[str, bool] = {"include_usage": True}
            if options.count_each:
                wanted["continuous_usage_stats"] = True
            body["stream_options"] = wanted
        body.update(options.extra_body)
        headers = {"Accept": "text/event-stream", **options.headers}
        return render_request(self.address, "POST", options.endpoint, headers, orjson.dumps(body))

    async def send(
        self, prepared: object, record: RequestRecord, clock: Callable[[], float]
    ) -> str:
        """See `Driver.send`."""
        if not isinstance(prepared, bytes):
            raise TypeError("what `prepare` returned is needed")
        reader = EventReader(record)
        failed = bytearray()

        try:
            async with asyncio.timeout(self.options.timeout_s):
                await self._follow(prepared, record, reader, failed, clock)
        except TimeoutError:
            record.error = f"no end within {self.options.timeout_s:g} s"
        except TargetError as e:
            record.error = e.message
        except ConnectionLostError as e:
            # the reader says how far the stream had come, if it had begun
            if not record.messages:
                record.error = f"the connection was lost: {e}"
        finally:
            if record.status >= 400:
                record.error = error_of(record.status, bytes(failed))
            reader.end(clock())
        return "".join(reader.parts)

    async def _follow(
        self,
        prepared: bytes,
        record: RequestRecord,
        reader: EventReader,
        failed: bytearray,
        clock: Callable[[], float],
    ) -> None:
        """One exchange; once more when a kept connection turns out to have been closed."""
        for fresh in (False, True):
            connection = await self.pool.take(fresh=fresh)

            def on_body(data: bytes, connection: Any = connection) -> None:
                now_s = clock()
                if record.first_byte_s is None:
                    record.first_byte_s = now_s
                if connection.status < 400:
                    reader.feed(data, now_s)
                elif len(failed) < MAX_ERROR_BYTES:
                    failed.extend(data)

            record.send_s = clock()
            try:
                record.status = await connection.exchange(prepared, on_body)
            except ConnectionLostError:
                if fresh or connection.answered:
                    raise
            else:
                return
            finally:
                self.pool.give(connection)

    async def get(self, path: str, timeout_s: float = 10.0) -> Answer:
        """A plain GET.

        Raises:
            TargetError: the server cannot be reached or does not answer.
        """
        return await self._plain("GET", path, b"", timeout_s)

    async def post(self, path: str, body: object, timeout_s: float = 60.0) -> Answer:
        """A plain POST of a JSON body; errors as for `get`."""
        return await self._plain("POST", path, orjson.dumps(body), timeout_s)

    async def _plain(self, method: str, path: str, body: bytes, timeout_s: float) -> Answer:
        request = render_request(self.address, method, path, self.options.headers, body)
        for fresh in (False, True):
            connection = await self.pool.take(fresh=fresh)
            parts: list[bytes] = []
            try:
                async with asyncio.timeout(timeout_s):
                    status = await connection.exchange(request, parts.append)
                return Answer(status, b"".join(parts))
            except ConnectionLostError as e:
                if fresh:
                    raise TargetError(
                        f"{self.address} gave no HTTP answer to {method} {path}: {e}",
                        hint="is it an OpenAI-compatible server?",
                    ) from e
            except TimeoutError as e:
                raise TargetError(
                    f"{self.address} did not answer {method} {path} within {timeout_s:g} s",
                    hint="is the server still loading its model?",
                ) from e
            finally:
                self.pool.give(connection)
        raise AssertionError("the second try returns or raises")

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()


def parse_headers(given: list[str]) -> dict[str, str]:
    """Headers from "Name: value" or vLLM's "Name=value".

    Raises:
        ConfigError: one is neither.
    """
    headers = {}
    for text in given:
        separator = ":" if ":" in text.split("=", 1)[0] else "="
        name, found, value = text.partition(separator)
        if not found or not name.strip() or any(c in text for c in "\r\n"):
            raise ConfigError(f"cannot read the header {text!r}", hint='write it as "Name: value"')
        headers[name.strip()] = value.strip()
    return headers
