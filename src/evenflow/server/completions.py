"""The two endpoints that generate: /v1/completions and /v1/chat/completions.

In: a request. Out: a response that sends itself. The order is fixed: read, check, encode, submit;
so everything that is wrong with a request is said before its stream begins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from evenflow.server.answer import RAW_SEND, StreamAnswer, WholeAnswer, cutter
from evenflow.server.call import Call, StreamingCall
from evenflow.server.intake import deadline_s, read_json
from evenflow.server.prompts import (
    PromptReader,
    check_room,
    encode,
    encode_chat,
    num_characters,
)
from evenflow.server.protocol import ChatRequest, CompletionRequest, SamplingBody, parse
from evenflow.server.replies import Head, Kind

if TYPE_CHECKING:
    from starlette.responses import Response

    from evenflow.sampling import SamplingParams
    from evenflow.server.prompts import Prompt
    from evenflow.server.state import ServerState

B = TypeVar("B", bound=SamplingBody)
DEFAULT_MAX_TOKENS = 16  # of a completion, as in OpenAI's API; a chat goes on to the context's end


class _Clock:
    """What is left of a request's time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()

    def left_s(self, limit_s: float) -> float:
        """Seconds until the deadline, at least one loop's turn; 0 where there is none."""
        return max(1e-6, limit_s - (self._loop.time() - self._start_s)) if limit_s else 0.0


class Completions:
    """The endpoints' handlers."""

    def __init__(self, state: ServerState, reader: PromptReader) -> None:
        self._state = state
        self._reader = reader

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        clock = _Clock()
        body = await self._read(CompletionRequest, request)
        params = body.sampling(DEFAULT_MAX_TOKENS)
        model, _ = self._state.ready()
        prompts = await self._reader.run(
            num_characters(body.prompt),
            lambda: encode(
                model.tokenizer,
                body.prompt,
                add_special=body.add_special_tokens is not False,
                echo=bool(body.echo),
            ),
        )
        return self._answer(request, "text", body, params, prompts, clock=clock)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        clock = _Clock()
        body = await self._read(ChatRequest, request)
        params = body.sampling(None)
        model, _ = self._state.ready()
        options = dict(body.chat_template_kwargs or {})
        if body.add_generation_prompt is not None:
            options["add_generation_prompt"] = body.add_generation_prompt
        prompts = await self._reader.run(
            num_characters(body.messages),
            lambda: encode_chat(
                model, body.messages, options, add_special=bool(body.add_special_tokens)
            ),
        )
        return self._answer(request, "chat", body, params, prompts, clock=clock)

    async def _read(self, kind: type[B], request: Request) -> B:
        self._state.ready()
        body = parse(kind, await read_json(request, self._state.settings.max_body_bytes))
        body.check()
        self._state.check_name(body.model)
        return body

    def _answer(
        self,
        request: Request,
        kind: Kind,
        body: SamplingBody,
        params: SamplingParams,
        prompts: list[Prompt],
        *,
        clock: _Clock,
    ) -> Response:
        state = self._state
        settings = state.settings
        model, bridge = state.ready()
        check_room(body, prompts, model.config.max_model_len)
        limit_s = clock.left_s(deadline_s(request, settings.request_timeout_s))
        state.admit(len(prompts))
        name = ("chatcmpl-" if kind == "chat" else "cmpl-") + state.new_id()
        head = Head(kind, name, int(state.wall_clock()), state.check_name(body.model))
        sizes = [(len(p.ids), p.echo) for p in prompts]
        ids = [p.ids for p in prompts]
        if not body.stream:
            call = Call(bridge, head, sizes)
            call.start(ids, params)
            return WholeAnswer(call, limit_s, state.retry_after_s)
        options = body.stream_options
        with_usage = options is not None and bool(options.include_usage)
        stream = StreamingCall(
            bridge,
            head,
            sizes,
            interval=settings.stream_interval,
            with_usage=with_usage,
            running_usage=options is not None and bool(options.continuous_usage_stats),
            max_pending_bytes=settings.max_stream_buffer_bytes,
            cut=cutter(request.scope.get(RAW_SEND)),
        )
        stream.start(ids, params)
        return StreamAnswer(stream, limit_s, with_usage=with_usage)
