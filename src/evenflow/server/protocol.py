"""The request bodies, as OpenAI's API and vLLM's extensions spell them, validated once each.

In: the bytes of a body. Out: a frozen request, or an error that names the field. Answers are not
here: they are built by hand in `replies`, since nothing may be validated per token.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from evenflow.errors import InvalidRequestError, UnsupportedError
from evenflow.sampling import SamplingParams
from evenflow.server.fields import Body, Only, Prompts, StopStrings

_ONE = "this server draws one answer per prompt; send the request several times"
_PENALTY = "this server does not change probabilities by what was said before"
_LOGPROBS = "this server reports no log probabilities"
_TOOLS = "this server calls no tools"
_FORMAT = "this server does not constrain its output"
_MEDIA = "this server reads and writes text"
_CACHE = "the prefix cache is shared by all requests"
_WHO = "Who asks; it changes nothing in the answer."
_NOT_HERE = "it belongs to another service"

LARGEST_ID = 2**31 - 1


class StreamOptions(Body):
    """What a stream tells besides its text."""

    include_usage: bool | None = Field(
        default=None, description="End with a message that holds the token counts."
    )
    continuous_usage_stats: bool | None = Field(
        default=None, description="Put the token counts so far into every message."
    )
    include_obfuscation: Annotated[Any, Only((False,), hint="streams are not padded")] = None


class SamplingBody(Body):
    """What the completion endpoints have in common."""

    model: str | None = Field(default=None, description="A name from /v1/models.")
    stream: bool | None = Field(default=None, description="Send tokens as they come.")
    stream_options: StreamOptions | None = Field(
        default=None, description="What a stream tells besides its text; only with `stream`."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_ID,
        description="Tokens to generate at most; they must fit into the context beside the prompt.",
    )
    temperature: float | None = Field(
        default=None, ge=0, le=100, description="0 is greedy; 1 unless given."
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Keep the smallest set of tokens of this probability."
    )
    seed: int | None = Field(
        default=None, ge=0, le=2**64 - 1, description="The same seed draws the same tokens."
    )
    stop: StopStrings = Field(
        default_factory=list, description="Texts that end the answer and are not part of it."
    )
    # vLLM's extensions
    top_k: int | None = Field(
        default=None,
        ge=-1,
        le=LARGEST_ID,
        description="Keep the k likeliest tokens; 0 or -1 keeps all.",
    )
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Drop tokens below this share of the likeliest one."
    )
    min_tokens: int | None = Field(
        default=None, ge=0, le=LARGEST_ID, description="Tokens before the answer may end."
    )
    ignore_eos: bool | None = Field(
        default=None, description="Go on after the model's end of sequence."
    )
    stop_token_ids: list[int] | None = Field(
        default=None, description="Token ids that end the answer, besides the model's own."
    )
    include_stop_str_in_output: bool | None = Field(
        default=None, description="Keep the stop text in the answer."
    )
    skip_special_tokens: bool | None = Field(
        default=None, description="Leave special tokens out of the text; true unless given."
    )
    add_special_tokens: bool | None = Field(
        default=None, description="Put the model's own tokens (such as BOS) before the prompt."
    )
    priority: int | None = Field(
        default=None, ge=-(2**31), le=LARGEST_ID, description="Lower is earlier; 0 unless given."
    )
    # who asks: it changes nothing in the answer
    user: str | None = Field(default=None, description=_WHO)
    safety_identifier: str | None = Field(default=None, description=_WHO)
    prompt_cache_key: str | None = Field(default=None, description=_WHO)
    # neutral values that clients send
    n: Annotated[Any, Only((1,), hint=_ONE)] = None
    best_of: Annotated[Any, Only((1,), hint=_ONE)] = None
    use_beam_search: Annotated[Any, Only((False,), hint=_ONE)] = None
    presence_penalty: Annotated[Any, Only((0,), hint=_PENALTY)] = None
    frequency_penalty: Annotated[Any, Only((0,), hint=_PENALTY)] = None
    repetition_penalty: Annotated[Any, Only((1,), hint=_PENALTY)] = None
    length_penalty: Annotated[Any, Only((1,), hint=_PENALTY)] = None
    logit_bias: Annotated[Any, Only(({},), hint=_PENALTY)] = None
    bad_words: Annotated[Any, Only(([],), hint=_PENALTY)] = None
    allowed_token_ids: Annotated[Any, Only(hint=_FORMAT)] = None
    prompt_logprobs: Annotated[Any, Only(hint=_LOGPROBS)] = None
    response_format: Annotated[Any, Only(({"type": "text"},), hint=_FORMAT)] = None
    structured_outputs: Annotated[Any, Only(hint=_FORMAT)] = None
    guided_json: Annotated[Any, Only(hint=_FORMAT)] = None
    guided_regex: Annotated[Any, Only(hint=_FORMAT)] = None
    guided_choice: Annotated[Any, Only(hint=_FORMAT)] = None
    guided_grammar: Annotated[Any, Only(hint=_FORMAT)] = None
    spaces_between_special_tokens: Annotated[
        Any, Only((True,), hint="spaces stay as the model wrote them")
    ] = None
    truncate_prompt_tokens: Annotated[Any, Only(hint="shorten the prompt before it is sent")] = None
    cache_salt: Annotated[Any, Only(hint=_CACHE)] = None

    def asked_tokens(self) -> tuple[str, int | None]:
        """The field that limits the answer, and what the client said there."""
        return "max_tokens", self.max_tokens

    def sampling(self, default_max_tokens: int | None) -> SamplingParams:
        """How the answer's tokens are drawn.

        Raises:
            InvalidRequestError: values that contradict each other.
        """
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "min_tokens",
            "ignore_eos",
            "include_stop_str_in_output",
            "skip_special_tokens",
            "priority",
        )
        given = {name: getattr(self, name) for name in names}
        _, asked = self.asked_tokens()
        return SamplingParams(
            max_tokens=default_max_tokens if asked is None else asked,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            **{name: value for name, value in given.items() if value is not None},
        )

    def check(self) -> None:
        """What no single field can tell.

        Raises:
            InvalidRequestError: a field that has no effect beside the others.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError(
                "stream_options is given, but stream is not true",
                hint="set stream to true, or leave stream_options out",
            )


class CompletionRequest(SamplingBody):
    """The body of /v1/completions."""

    prompt: Prompts = Field(description="One prompt or several.")
    echo: bool | None = Field(default=None, description="Begin the text with the prompt.")
    logprobs: Annotated[Any, Only(hint=_LOGPROBS)] = None
    suffix: Annotated[Any, Only(hint="this server continues a prompt and does not fill a gap")] = (
        None
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
    logprobs: Annotated[Any, Only((False,), hint=_LOGPROBS)] = None
    top_logprobs: Annotated[Any, Only((0,), hint=_LOGPROBS)] = None
    tools: Annotated[Any, Only(([],), hint=_TOOLS)] = None
    tool_choice: Annotated[
        Any,
        Only(
            (
                "none",
                "auto",
            ),
            hint=_TOOLS,
        ),
    ] = None
    parallel_tool_calls: Annotated[
        Any,
        Only(
            (
                False,
                True,
            ),
            hint=_TOOLS,
        ),
    ] = None
    functions: Annotated[Any, Only(([],), hint=_TOOLS)] = None
    function_call: Annotated[
        Any,
        Only(
            (
                "none",
                "auto",
            ),
            hint=_TOOLS,
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
    return_token_strs: bool | None = Field(
        default=None, description="Answer with the text of each token too."
    )


class DetokenizeRequest(Body):
    """The body of /detokenize."""

    model: str | None = None
    tokens: list[int] = Field(description="Token ids.")


R = TypeVar("R", bound=Body)


class FieldError(InvalidRequestError):
    """A field of a body is wrong; `param` names it as OpenAI's errors do."""

    def __init__(self, message: str, *, hint: str = "", param: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class UnsupportedFieldError(FieldError, UnsupportedError):
    """A field, or a value of it, that this server does not have."""


def parse(kind: type[R], body: bytes) -> R:
    """Read a body.

    Raises:
        FieldError: it is not JSON, or a field is wrong; the message names it.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _field_error(dict(first)) from None


def _field_error(fault: dict[str, Any]) -> FieldError:
    place = [str(part) for part in fault["loc"] if str(part) in _written(fault)]
    param = ".".join(place) or None
    match fault["type"]:
        case "json_invalid":
            return FieldError(f"the body is not JSON: {fault['msg']}", hint="send one JSON object")
        case "extra_forbidden":
            return UnsupportedFieldError(
                f"there is no field {param!r} here",
                hint="leave it out; the fields are listed in /openapi.json",
                param=param,
            )
        case "missing":
            return FieldError(f"the field {param!r} is missing", hint=f"add {param!r}", param=param)
        case "unsupported":
            context = fault["ctx"]
            return UnsupportedFieldError(
                f"{param} is {context['given']}, which is not supported",
                hint=f"{context['hint']}; leave {param} out",
                param=param,
            )
    what = param or "the body"
    return FieldError(
        f"{what} is wrong: {fault['msg'][:1].lower()}{fault['msg'][1:]}",
        hint="see /openapi.json for what each field takes",
        param=param,
    )


def _written(fault: dict[str, Any]) -> set[str]:
    """The parts of a location that a client wrote, without pydantic's names of alternatives."""
    inner = {str(part) for part in fault["loc"][1:] if not str(part).startswith("function-")}
    return {str(fault["loc"][0])} | inner if fault["loc"] else set()
