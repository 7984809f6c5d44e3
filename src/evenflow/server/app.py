"""Puts the endpoints together: a FastAPI application, to be put behind the gate.

In: the server's state. Out: the application. Every answer that is no success has OpenAI's error
shape, whoever found the fault.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from evenflow.errors import EvenflowError, InvalidRequestError
from evenflow.server import exposition, openapi
from evenflow.server.completions import Completions
from evenflow.server.faults import MethodError, NotFoundError, fault_of
from evenflow.server.page import page_response
from evenflow.server.text_tools import TextTools
from evenflow.version import __version__

if TYPE_CHECKING:
    from starlette.requests import Request

    from evenflow.server.prompts import PromptReader
    from evenflow.server.state import ServerState

log = logging.getLogger("evenflow.server")

ELSEWHERE = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/embeddings": "this server generates text; run an embedding model elsewhere",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/moderations": "this server generates text only",
    "/v1/audio": "this server generates text only",
    "/v1/images": "this server generates text only",
    "/v1/assistants": "use /v1/chat/completions",
    "/api/generate": "use /v1/completions",
    "/api/chat": "use /v1/chat/completions",
}


def make_api(state: ServerState, reader: PromptReader, scrape: exposition.Exposition) -> FastAPI:
    """The whole application.

    Args:
        state: shared by all requests; a model may be attached later.
        reader: encodes prompts.
        scrape: writes /metrics.
    """
    app = FastAPI(
        title="evenflow",
        version=__version__,
        docs_url=None,  # both pages load scripts from other hosts
        redoc_url=None,
    )
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign] # FastAPI's own way
    _add_generation(app, state, reader)
    _add_views(app, state, scrape)
    _add_live(app, state)
    _add_faults(app, state)
    return app


def _add_generation(app: FastAPI, state: ServerState, reader: PromptReader) -> None:
    completions = Completions(state, reader)
    tools = TextTools(state, reader)
    for path, handler, about in (
        ("/v1/completions", completions.complete, openapi.COMPLETIONS),
        ("/v1/chat/completions", completions.chat, openapi.CHAT),
        ("/tokenize", tools.tokenize, openapi.TOKENIZE),
        ("/detokenize", tools.detokenize, openapi.DETOKENIZE),
    ):
        app.add_api_route(
            path,
            handler,
            methods=["POST"],
            response_model=None,
            summary=about.summary,
            description=about.text,
            openapi_extra=openapi.body_of(about.body),
            responses=openapi.answers(about.answer),
        )


def _add_views(app: FastAPI, state: ServerState, scrape: exposition.Exposition) -> None:
    @app.get("/health", response_model=None, responses=openapi.answers("status", faults=(503,)))
    async def health() -> Response:
        """200 when requests are served: the model is there, the engine lives, no end is near."""
        model, _ = state.ready()
        return _json({"status": "ok", "model": model.config.model})

    @app.get(
        "/v1/models",
        response_model=None,
        responses=openapi.answers("list of models", faults=(401, 503)),
    )
    async def models() -> Response:
        """The model, under each of its names."""
        model, _ = state.loaded()
        return _json(
            {"object": "list", "data": [_card(state, model, n) for n in state.served_names]}
        )

    @app.get(
        "/v1/models/{name:path}",
        response_model=None,
        responses=openapi.answers("model", faults=(401, 404, 503)),
    )
    async def one_model(name: str) -> Response:
        """The model, by one of its names."""
        model, _ = state.loaded()
        return _json(_card(state, model, state.check_name(name)))

    @app.get("/version", response_model=None, responses=openapi.answers("version", faults=(401,)))
    async def version() -> Response:
        """The program's version."""
        return _json({"version": __version__})

    @app.get(
        "/metrics",
        response_model=None,
        responses=openapi.answers("Prometheus text", "text/plain", faults=(401,)),
    )
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(scrape.render(), media_type=exposition.CONTENT_TYPE)


def _add_live(app: FastAPI, state: ServerState) -> None:
    @app.get(
        "/v1/steps",
        response_model=None,
        responses=openapi.answers("an event per step", "text/event-stream", faults=(400, 401, 429)),
    )
    async def steps(history: int = 0) -> Response:
        """Every step of the engine from now on, and the last `history` ones, as they are committed.

        Each is a server-sent event with a step record as in docs/trace.md, and three fields more:
        `worst_gap_s` (the longest gap between two tokens of a stream that the step ended, or null),
        `num_gaps` and `num_output_tokens`. When no step has come for half a second, an event of
        kind `standing` says how many requests run and wait and how the KV blocks stand.
        """
        if history < 0:
            raise InvalidRequestError(f"history is {history}", hint="give a number of steps")
        return state.feed.watch(history)

    @app.get("/", response_model=None, include_in_schema=False)
    async def page() -> Response:
        """The live page."""
        return page_response()


def _card(state: ServerState, model: Any, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.started_s,
        "owned_by": "evenflow",
        "root": model.config.model,
        "max_model_len": model.config.max_model_len,
    }


def _add_faults(app: FastAPI, state: ServerState) -> None:
    async def known(_request: Request, error: Exception) -> Response:
        fault = fault_of(error, retry_after_s=state.retry_after_s())
        return _raw(fault.status, fault.body, fault.headers)

    async def unknown(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return await known(request, error)

    async def missed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = await known(request, _missing(request, error.status_code))
        for name, value in (error.headers or {}).items():  # Allow, beside a 405
            answer.headers[name] = value
        return answer

    async def invalid(request: Request, error: Exception) -> Response:
        return await known(
            request,
            InvalidRequestError(f"the query is wrong: {_first(error)}", hint="see /openapi.json"),
        )

    app.add_exception_handler(EvenflowError, known)
    app.add_exception_handler(HTTPException, missed)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unknown)


def _first(error: Any) -> str:
    fault = error.errors()[0]
    return f"{fault['loc'][-1]}: {fault['msg'][:1].lower()}{fault['msg'][1:]}"


def _missing(request: Request, status: int) -> EvenflowError:
    path = request.url.path
    if status == MethodError.http_status:
        return MethodError(
            f"{path} does not take {request.method}", hint="see /openapi.json for what it takes"
        )
    for start, advice in ELSEWHERE.items():
        if path == start or path.startswith(start + "/"):
            return NotFoundError(f"there is no {path} here", hint=advice)
    return NotFoundError(
        f"there is no {path} here",
        hint="the endpoints are /v1/completions, /v1/chat/completions, /v1/models and those in "
        "/openapi.json",
    )


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _raw(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> Response:
    response = Response(body, status)
    response.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
    return response
