"""/tokenize and /detokenize: the model's tokenizer, for clients that count before they ask.

In: a request. Out: a plain JSON answer, shaped as vLLM's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import Response

from evenflow.errors import InvalidRequestError
from evenflow.server.intake import read_json
from evenflow.server.prompts import PromptReader, encode_chat, num_characters, template_options
from evenflow.server.protocol import DetokenizeRequest, TokenizeRequest
from evenflow.server.reading import parse

if TYPE_CHECKING:
    from evenflow.server.state import Model, ServerState


class TextTools:
    """The endpoints' handlers."""

    def __init__(self, state: ServerState, reader: PromptReader) -> None:
        self._state = state
        self._reader = reader

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        model, _ = self._state.loaded()
        body = parse(TokenizeRequest, await read_json(request, self._state.settings.max_body_bytes))
        self._state.check_name(body.model)
        size = num_characters(body.prompt) + num_characters(body.messages)
        ids = await self._reader.run(size, lambda: _encode(model, body))
        answer = {
            "count": len(ids),
            "max_model_len": model.config.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }
        if body.return_token_strs:
            pieces = model.tokenizer.pieces
            answer["token_strs"] = [pieces[i].decode("utf-8", errors="replace") for i in ids]
        return Response(orjson.dumps(answer), media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        model, _ = self._state.loaded()
        body = parse(
            DetokenizeRequest, await read_json(request, self._state.settings.max_body_bytes)
        )
        self._state.check_name(body.model)
        size = model.tokenizer.vocab_size
        for token in body.tokens:
            if not 0 <= token < size:
                raise InvalidRequestError(
                    f"token id {token} is not in the vocabulary",
                    hint=f"ids are whole numbers from 0 to {size - 1:,}",
                )
        text = await self._reader.run(
            len(body.tokens),
            lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False),
        )
        return Response(orjson.dumps({"prompt": text}), media_type="application/json")


def _encode(model: Model, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError(
            "prompt and messages are both given, or neither is", hint="give one of the two"
        )
    if body.prompt is not None:
        for name in ("add_generation_prompt", "chat_template_kwargs", "tools"):
            if getattr(body, name) is not None:
                raise InvalidRequestError(
                    f"{name} is given, but it has no effect on a prompt",
                    hint=f"leave {name} out, or give messages",
                )
        special = body.add_special_tokens is not False
        return model.tokenizer.encode(body.prompt, add_special_tokens=special)
    options = template_options(body, body.tools or ())
    special = bool(body.add_special_tokens)
    ((ids, _),) = encode_chat(model, body.messages or [], options, add_special=special)
    return ids
