"""What the bodies of both completion endpoints have in common: how tokens are drawn and reported.

In: fields as OpenAI's API and vLLM's extensions spell them. Out: `SamplingParams`, or an error that
names the field.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from evenflow.errors import InvalidRequestError
from evenflow.sampling import MAX_BIAS, MAX_N, SamplingParams
from evenflow.server.fields import Body, Only, StopStrings
from evenflow.server.reading import FieldError, name_field
from evenflow.server.shapes import (  # noqa: TC001 - pydantic reads them
    ResponseFormat,
    StructuredBody,
)

if TYPE_CHECKING:
    from evenflow.structured import StructuredOutputs

_BEAMS = "this server draws tokens; it keeps no beams"
_GUIDED = 'the older spelling: use structured_outputs, an object with "{}"'
_CACHE = "the prefix cache is shared by all requests"
_WHO = "Who asks; it changes nothing in the answer."

LARGEST_ID = 2**31 - 1


_PASSED_ON = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "prompt_logprobs",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "priority",
)


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
    n: int | None = Field(
        default=None, ge=1, le=MAX_N, description="Answers to draw for each prompt; 1 unless given."
    )
    best_of: int | None = Field(
        default=None, ge=1, le=MAX_N, description="The same as n; no other number is taken."
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Taken off the logits of tokens in the answer."
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Taken off once per time that a token was drawn."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=100, description="Divides logits of tokens in prompt or answer."
    )
    logit_bias: dict[int, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]] | None = Field(
        default=None, description="Token id to what is added to its logit."
    )
    bad_words: list[str] | None = Field(
        default=None, description="Texts that may not be generated."
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=LARGEST_ID,
        description="Log probabilities of the prompt's tokens, with so many of the likeliest "
        "ones; not in a stream.",
    )
    response_format: ResponseFormat | None = Field(
        default=None, description="The form of the answer, in OpenAI's words."
    )
    structured_outputs: StructuredBody | None = Field(
        default=None, description="The form of the answer, in vLLM's words: exactly one of them."
    )
    # who asks: it changes nothing in the answer
    user: str | None = Field(default=None, description=_WHO)
    safety_identifier: str | None = Field(default=None, description=_WHO)
    prompt_cache_key: str | None = Field(default=None, description=_WHO)
    # neutral values that clients send
    use_beam_search: Annotated[Any, Only((False,), hint=_BEAMS)] = None
    length_penalty: Annotated[Any, Only((1,), hint=_BEAMS)] = None
    allowed_token_ids: Annotated[Any, Only(hint="use logit_bias or structured_outputs")] = None
    guided_json: Annotated[Any, Only(hint=_GUIDED.format("json"))] = None
    guided_regex: Annotated[Any, Only(hint=_GUIDED.format("regex"))] = None
    guided_choice: Annotated[Any, Only(hint=_GUIDED.format("choice"))] = None
    guided_grammar: Annotated[Any, Only(hint=_GUIDED.format("grammar"))] = None
    spaces_between_special_tokens: Annotated[
        Any, Only((True,), hint="spaces stay as the model wrote them")
    ] = None
    truncate_prompt_tokens: Annotated[Any, Only(hint="shorten the prompt before it is sent")] = None
    cache_salt: Annotated[Any, Only(hint=_CACHE)] = None

    def asked_tokens(self) -> tuple[str, int | None]:
        """The field that limits the answer, and what the client said there."""
        return "max_tokens", self.max_tokens

    @abstractmethod
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report with each token; None for no report."""

    def logprobs_fields(self) -> tuple[str, ...]:
        """The fields that ask for a number of the likeliest tokens."""
        return ("prompt_logprobs",)

    def sampling(self, default_max_tokens: int | None, **more: Any) -> SamplingParams:
        """How the answer's tokens are drawn.

        Args:
            default_max_tokens: where the client said nothing.
            more: what the endpoint adds, such as the form of a call; it wins over the body's.

        Raises:
            FieldError: values that contradict each other.
        """
        given = {name: getattr(self, name) for name in _PASSED_ON}
        _, asked = self.asked_tokens()
        try:
            values = {
                "max_tokens": default_max_tokens if asked is None else asked,
                "stop": tuple(self.stop),
                "stop_token_ids": tuple(self.stop_token_ids or ()),
                "bad_words": tuple(self.bad_words or ()),
                "logprobs": self.num_logprobs(),
                "structured_outputs": self.form(),
                **{name: value for name, value in given.items() if value is not None},
            }
            return SamplingParams(**(values | more))
        except InvalidRequestError as error:
            name_field(error, type(self).model_fields)

    def form(self) -> StructuredOutputs | None:
        """The form that the answer must have.

        Raises:
            FieldError: the fields that state it are wrong, or say two different things.
        """
        plain = None if self.response_format is None else self.response_format.form()
        if self.structured_outputs is None:
            return plain
        if plain is not None:
            raise FieldError(
                "structured_outputs and response_format both state the form of the answer",
                hint="give one of them",
                param="structured_outputs",
            )
        try:
            return self.structured_outputs.form()
        except InvalidRequestError as error:
            name_field(error, ("structured_outputs",))

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
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError(
                f"best_of is {self.best_of}, but n is {self.n or 1}",
                hint="leave best_of out: all answers that are drawn are given",
                param="best_of",
            )
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError(
                "prompt_logprobs is given, but stream is true",
                hint="leave one of them out; an echo with logprobs can be streamed",
                param="prompt_logprobs",
            )

    def check_limits(self, max_logprobs: int, vocab_size: int) -> None:
        """Refuse what this server and this model do not have.

        Raises:
            FieldError: a field asks for more than `max_logprobs`, or for a bias of no token.
        """
        for token in self.logit_bias or ():
            if not 0 <= token < vocab_size:
                raise FieldError(
                    f"logit_bias holds token id {token}, which is not in the vocabulary",
                    hint=f"ids are whole numbers from 0 to {vocab_size - 1:,}",
                    param="logit_bias",
                )
        for name in self.logprobs_fields():
            asked = getattr(self, name)
            if asked is not None and asked > max_logprobs:
                raise FieldError(
                    f"{name} is {asked:,}, but this server reports at most {max_logprobs:,}",
                    hint="ask for fewer, or raise --max-logprobs",
                    param=name,
                )
