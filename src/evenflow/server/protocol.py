"""The request bodies, as OpenAI's API and vLLM's extensions spell them, validated once each.

In: fields. Out: a frozen request. Answers are not here: they are built by hand in `replies`, since
nothing may be validated per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from evenflow.errors import InvalidRequestError
from evenflow.server.fields import Body, Only, Prompts
from evenflow.server.reading import FieldError
from evenflow.server.sampling_body import LARGEST_ID, SamplingBody
from evenflow.server.shapes import Tool, ToolChoice  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from evenflow.sampling import SamplingParams

_FUNCTIONS = "the older names of tools and tool_choice: use those"
_MEDIA = "this server reads and writes text"
_NOT_HERE = "it belongs to another service"


class CompletionRequest(SamplingBody):
    """The body of /v1/completions."""

    prompt: Prompts = Field(description="One prompt or several.")
    echo: bool | None = Field(default=None, description="Begin the text with the prompt.")
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=LARGEST_ID,
        description="Log probabilities, with so many of the likeliest tokens.",
    )
    suffix: Annotated[Any, Only(hint="this server continues a prompt and does not fill a gap")] = (
        None
    )

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report."""
        return self.logprobs

    def logprobs_fields(self) -> tuple[str, ...]:
        """The fields that ask for a number of them."""
        return ("logprobs", *super().logprobs_fields())

    def sampling(self, default_max_tokens: int | None, **more: Any) -> SamplingParams:
        """How the tokens are drawn; an echo with logprobs wants those of the prompt too."""
        if self.echo and self.logprobs is not None:
            more["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return super().sampling(default_max_tokens, **more)

    def check(self) -> None:
        """What no single field can tell.

        Raises:
            InvalidRequestError: fields that contradict each other.
        """
        super().check()
        if self.stream and self.echo and self.logprobs is not None and (self.n or 1) > 1:
            raise FieldError(
                "logprobs of an echo are given with the first of n answers, which a stream cannot "
                "wait for",
                hint="leave one of stream, echo, logprobs and n out",
                param="logprobs",
            )


class ChatRequest(SamplingBody):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(
        min_length=1,
        description="The conversation; content is a text or a list of text parts.",
        json_schema_extra={
            "items": {
                "type": "object",
                "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
                "required": ["role", "content"],
                "additionalProperties": False,
            }
        },
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=LARGEST_ID, description="As max_tokens, by its newer name."
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="End the prompt with the opening of the assistant's turn."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="Further variables that the model's chat template reads."
    )
    logprobs: bool | None = Field(default=None, description="Report log probabilities.")
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=LARGEST_ID,
        description="Report so many of the likeliest tokens too; only with `logprobs`.",
    )
    tools: list[Tool] | None = Field(
        default=None, description="Functions that the model may call, if its template takes them."
    )
    tool_choice: ToolChoice = Field(
        default=None,
        description="`none`, `auto` (unless given), `required`, or the one tool to call.",
    )
    parallel_tool_calls: bool | None = Field(
        default=None, description="false: at most one call in an answer; later ones are left out."
    )
    functions: Annotated[Any, Only(([],), hint=_FUNCTIONS)] = None
    function_call: Annotated[
        Any,
        Only(
            (
                "none",
                "auto",
            ),
            hint=_FUNCTIONS,
        ),
    ] = None
    documents: Annotated[Any, Only(([],), hint="put the documents into a message")] = None
    chat_template: Annotated[Any, Only(hint="the model's own chat template is used")] = None
    continue_final_message: Annotated[
        Any, Only((False,), hint="use /v1/completions to continue a text")
    ] = None
    echo: Annotated[Any, Only((False,), hint="use /v1/completions to get the prompt back")] = None
    modalities: Annotated[Any, Only((["text"],), hint=_MEDIA)] = None
    audio: Annotated[Any, Only(hint=_MEDIA)] = None
    store: Annotated[Any, Only((False,), hint="nothing is kept")] = None
    metadata: Annotated[Any, Only(({},), hint="nothing is kept")] = None
    service_tier: Annotated[
        Any,
        Only(
            (
                "auto",
                "default",
            ),
            hint=_NOT_HERE,
        ),
    ] = None
    prediction: Annotated[Any, Only(hint=_NOT_HERE)] = None
    web_search_options: Annotated[Any, Only(hint=_NOT_HERE)] = None
    reasoning_effort: Annotated[
        Any, Only(hint="use chat_template_kwargs where the model knows it")
    ] = None
    verbosity: Annotated[Any, Only(("medium",), hint=_NOT_HERE)] = None

    def check(self) -> None:
        """What no single field can tell.

        Raises:
            InvalidRequestError: a field that has no effect beside the others.
        """
        super().check()
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise InvalidRequestError(
                f"max_tokens is {both[0]:,}, but max_completion_tokens is {both[1]:,}",
                hint="leave max_tokens out: it is the older name of the other",
            )
        if self.top_logprobs and not self.logprobs:
            raise FieldError(
                f"top_logprobs is {self.top_logprobs}, but logprobs is not true",
                hint="set logprobs to true, or leave top_logprobs out",
                param="top_logprobs",
            )

    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def logprobs_fields(self) -> tuple[str, ...]:
        """The fields that ask for a number of them."""
        return ("top_logprobs", *super().logprobs_fields())

    def asked_tokens(self) -> tuple[str, int | None]:
        """The field that limits the answer, and what the client said there."""
        if self.max_completion_tokens is None:
            return super().asked_tokens()
        return "max_completion_tokens", self.max_completion_tokens


class TokenizeRequest(Body):
    """The body of /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = Field(default=None, description="A text, or else messages.")
    messages: list[dict[str, Any]] | None = Field(
        default=None, min_length=1, description="A conversation."
    )
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = Field(
        default=None, description="Tools of the conversation, as in /v1/chat/completions."
    )
    return_token_strs: bool | None = Field(
        default=None, description="Answer with the text of each token too."
    )


class DetokenizeRequest(Body):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int] = Field(description="Token ids.")
