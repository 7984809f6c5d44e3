"""The two endpoints that generate: /v1/completions and /v1/chat/completions.

In: a request. Out: a response that sends itself. The order is fixed: read, check, encode, submit;
so everything that is wrong with a request is said before its stream begins.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from evenflow.errors import InvalidRequestError
from evenflow.server.answer import RAW_SEND, StreamAnswer, WholeAnswer, cutter
from evenflow.server.call import Call, StreamingCall
from evenflow.server.intake import deadline_s, read_json
from evenflow.server.prompts import (
    PromptReader,
    check_room,
    encode,
    encode_chat,
    num_characters,
    template_options,
)
from evenflow.server.protocol import ChatRequest, CompletionRequest
from evenflow.server.reading import FieldError, name_field, parse
from evenflow.server.replies import Head, Kind
from evenflow.server.rich import Extras, RichCall, RichStreamingCall
from evenflow.server.sampling_body import SamplingBody
from evenflow.server.tools import plan_tools

if TYPE_CHECKING:
    from starlette.responses import Response

    from evenflow.sampling import SamplingParams
    from evenflow.server.prompts import Prompt
    from evenflow.server.state import ServerState
    from evenflow.server.tools import ToolPlan

B = TypeVar("B", bound=SamplingBody)
FORM = "structured_outputs"
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
        return await self._answer(request, "text", body, params, prompts, clock=clock)

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        clock = _Clock()
        body = await self._read(ChatRequest, request)
        model, _ = self._state.ready()
        setting = self._state.settings.tool_call_parser
        tools = plan_tools(body, model.tokenizer.chat_template or "", setting)
        params = body.sampling(None, **({} if tools is None else tools.sampling()))
        options = template_options(body, (body.tools or ()) if tools is not None else ())
        prompts = await self._reader.run(
            num_characters(body.messages) + num_characters(options),
            lambda: encode_chat(
                model, body.messages, options, add_special=bool(body.add_special_tokens)
            ),
        )
        return await self._answer(request, "chat", body, params, prompts, clock=clock, tools=tools)

    async def _read(self, kind: type[B], request: Request) -> B:
        model, _ = self._state.ready()
        body = parse(kind, await read_json(request, self._state.settings.max_body_bytes))
        body.check()
        body.check_limits(model.config.max_logprobs, model.tokenizer.vocab_size)
        self._state.check_name(body.model)
        return body

    async def _answer(
        self,
        request: Request,
        kind: Kind,
        body: SamplingBody,
        params: SamplingParams,
        prompts: list[Prompt],
        *,
        clock: _Clock,
        tools: ToolPlan | None = None,
    ) -> Response:
        state = self._state
        model, bridge = state.ready()
        check_room(body, prompts, model.config.max_model_len)
        limit_s = clock.left_s(deadline_s(request, state.settings.request_timeout_s))
        state.admit(len(prompts) * params.n)
        name = ("chatcmpl-" if kind == "chat" else "cmpl-") + state.new_id()
        head = Head(kind, name, int(state.wall_clock()), state.check_name(body.model))
        extras = Extras(
            model.tokenizer,
            state.new_id,
            logprobs=params.logprobs is not None,
            echo=isinstance(body, CompletionRequest) and bool(body.echo),
            prompt_logprobs=body.prompt_logprobs is not None,
            skip_special_tokens=params.skip_special_tokens,
            tools=tools,
        )
        if not body.stream:
            plain = (bridge, head, prompts, params.n)
            call = RichCall(*plain, extras=extras) if extras.is_needed else Call(*plain)
            await self._start(call, body, params, tools)
            return WholeAnswer(call, limit_s, state.retry_after_s)
        stream = self._stream(request, body, (bridge, head, prompts, params.n), extras)
        await self._start(stream, body, params, tools)
        return StreamAnswer(stream, limit_s, with_usage=_with_usage(body))

    def _stream(
        self, request: Request, body: SamplingBody, plain: tuple[Any, ...], extras: Extras
    ) -> StreamingCall:
        settings, options = self._state.settings, body.stream_options
        more: dict[str, Any] = {
            "interval": settings.stream_interval,
            "with_usage": _with_usage(body),
            "running_usage": options is not None and bool(options.continuous_usage_stats),
            "max_pending_bytes": settings.max_stream_buffer_bytes,
            "cut": cutter(request.scope.get(RAW_SEND)),
        }
        if extras.is_needed:
            return RichStreamingCall(*plain, extras=extras, **more)
        return StreamingCall(*plain, **more)

    async def _start(
        self, call: Call, body: SamplingBody, params: SamplingParams, tools: ToolPlan | None
    ) -> None:
        """Queue the prompts; a grammar is compiled on the worker, which may take a while."""
        size = 0 if params.structured_outputs is None else sys.maxsize
        try:
            await self._reader.run(size, lambda: call.start(params))
        except FieldError:
            raise
        except InvalidRequestError as error:
            if not error.message.startswith(FORM):
                name_field(error, type(body).model_fields)
            field = FORM
            if tools is not None:
                field = "tools"
            elif body.structured_outputs is None:
                field = "response_format"
            raise FieldError(
                error.message.replace(FORM, field, 1), hint=error.hint, param=field
            ) from error


def _with_usage(body: SamplingBody) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)
