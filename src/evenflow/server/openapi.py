"""The OpenAPI document: what the endpoints take and answer, for clients, tests and the docs.

The handlers read bodies themselves (with their own limits and errors), so the document is told here
what FastAPI cannot see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from evenflow.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastapi import FastAPI

    from evenflow.server.fields import Body

BODIES = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
REF = "#/components/schemas/"
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
FAULTS = {
    400: "a field is wrong or not supported; `param` names it",
    401: "the API key is missing or wrong",
    404: "no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "the queue is full; try again after `Retry-After` seconds",
    500: "the engine failed",
    503: "the model is being loaded, the server stops, or the engine has died",
    504: "the request took longer than it was allowed",
}


class About(NamedTuple):
    """What the document says of an endpoint."""

    summary: str
    text: str
    body: type[Body]
    answer: str


COMPLETIONS = About(
    "Continue a prompt",
    "Continues one prompt or several, given as text or token ids. With `stream` each token is sent "
    "as a server-sent event as soon as it is there; the last one is `[DONE]`.",
    CompletionRequest,
    "a text_completion, or a stream of them",
)
CHAT = About(
    "Answer a conversation",
    "Writes the messages down with the model's own chat template and continues them. The first "
    "message of a stream carries the role beside the first token; there is none without a token.",
    ChatRequest,
    "a chat.completion, or a stream of chat.completion.chunk",
)
TOKENIZE = About(
    "Text to token ids",
    "The ids of a prompt, or of a conversation as the chat template writes it.",
    TokenizeRequest,
    "count, max_model_len, tokens, token_strs",
)
DETOKENIZE = About("Token ids to text", "The text of ids.", DetokenizeRequest, "prompt")


def body_of(kind: type[Body]) -> dict[str, Any]:
    """What FastAPI adds to an endpoint's entry for its body."""
    content = {"application/json": {"schema": {"$ref": REF + kind.__name__}}}
    return {"requestBody": {"required": True, "content": content}}


def answers(
    what: str, media: str = "application/json", *, faults: Collection[int] = tuple(FAULTS)
) -> dict[int | str, dict[str, Any]]:
    """The responses of an endpoint: one success, and those faults that it can have."""
    error = {"application/json": {"schema": {"$ref": REF + "Error"}}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": FAULTS[status], "content": error} for status in faults
    }
    content: dict[str, Any] = {media: {"schema": {}}}
    if what.endswith("stream of them") or "stream of chat" in what:
        content["text/event-stream"] = {"schema": {}}
    found[200] = {"description": what, "content": content}
    return found


def document(app: FastAPI) -> dict[str, Any]:
    """The document; made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            summary="An OpenAI-compatible server whose streams stay even.",
            routes=app.routes,
        )
        _, schemas = models_json_schema(
            [(kind, "validation") for kind in BODIES], ref_template=REF + "{model}"
        )
        components = made.setdefault("components", {}).setdefault("schemas", {})
        components.update(schemas["$defs"])
        components["Error"] = ERROR_SCHEMA
        for path in made["paths"].values():
            for entry in path.values():
                entry["responses"].pop("422", None)  # FastAPI's own; ours is a 400
        components.pop("HTTPValidationError", None)
        components.pop("ValidationError", None)
        app.openapi_schema = made
    return app.openapi_schema
