"""The front door for Python: load a model, generate, stream, chat, close.

In: prompts as text or token ids. Out: completions, or events as they come. Several callers, on
threads or in event loops, share one engine; their requests run in the same steps.
"""

from __future__ import annotations

import queue
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, cast

from evenflow.completion import Completion, Gathered
from evenflow.config import DEFAULT_MODEL, EngineConfig
from evenflow.engine import Engine
from evenflow.errors import ConfigWarning, InvalidRequestError
from evenflow.memory import free_memory_bytes
from evenflow.model.load import load_model
from evenflow.progress import Progress, loading
from evenflow.runner.choose import FLOAT32_BYTES, make_runner, native_facts
from evenflow.sampling import SamplingParams
from evenflow.schedule.options import SchedulerOptions
from evenflow.schedule.scheduler import Scheduler
from evenflow.stream import EventStream
from evenflow.text.chat import ChatTemplate
from evenflow.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from evenflow.journal import Observer
    from evenflow.types import StreamEvent

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model, ready to generate.

    Args:
        model: "smollm2", "random:SHAPE", a .gguf file, or a Hugging Face folder; None is smollm2.
        runner: "auto", "native" or "reference".
        progress: show progress on standard error; None means when it is a terminal.
        observers: get the record of every step and request, such as a `TraceWriter`.
        options: engine options; see `EngineConfig`.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: an option is unknown, out of range, or has no effect.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        runner: str = "auto",
        progress: bool | None = None,
        observers: Sequence[Observer] = (),
        **options: object,
    ) -> None:
        self._progress = progress
        wanted = DEFAULT_MODEL if model is None else model
        with loading(str(wanted), progress):
            self.model = load_model(wanted)
            self.tokenizer = _load_tokenizer(self.model)
            self.config = EngineConfig.resolve(
                {
                    "model": None if model is None else str(model),
                    "runner": runner,
                    **options,
                },
                context_length=self.model.spec.context_length,
                kv_bytes_per_token=self.model.spec.kv_bytes_per_token(FLOAT32_BYTES),
                free_memory_bytes=free_memory_bytes(),
                native=native_facts(self.model),
                num_parameters=self.model.spec.num_params(),
            )
            self.config = replace(
                self.config, warnings=(*self.model.warnings, *self.config.warnings)
            )
            made = make_runner(self.config, self.model)
        for text in self.config.warnings:
            warnings.warn(text, ConfigWarning, stacklevel=2)
        self._chat_template: ChatTemplate | None = None
        self.engine = Engine(
            self.config,
            Scheduler(scheduler_options(self.config)),
            made,
            self.tokenizer,
            observers=observers,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete prompts; all of them run at once, as far as the engine has room.

        Args:
            prompts: one or more, each a string or a list of token ids.
            params: one for all, or one for each.

        Returns:
            One completion per prompt, in order, each with as many outputs as `params.n` asks for.

        Raises:
            InvalidRequestError: a prompt or a value is not acceptable. Nothing has been run then.
        """
        listed = _listed(prompts)
        each = self._params_for(len(listed), params)
        ids = [self._encode(prompt) for prompt in listed]
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        return self._run(texts, ids, each)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_options: Any,
    ) -> list[Completion]:
        """Answer conversations, written down by the model's own chat template.

        Args:
            messages: one conversation, or several: lists of {"role": ..., "content": ...}.
            params: one for all, or one for each.
            template_options: further variables for the template.

        Raises:
            ModelError: the model's chat template is broken.
            InvalidRequestError: the model has none, or it does not take a message.
        """
        first = messages[0] if isinstance(messages, Sequence) and messages else {}
        many = [messages] if isinstance(first, Mapping) else messages
        conversations = cast("list[Sequence[Message]]", list(many))
        rendered = [self.render_chat(c, **template_options) for c in conversations]
        ids = [self.tokenizer.encode_chat(text) for text in rendered]
        return self._run(list(rendered), ids, self._params_for(len(ids), params))

    def render_chat(self, messages: Sequence[Message], **template_options: Any) -> str:
        """A conversation as the text that the model was trained on, up to the answer's start."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate.from_tokenizer(self.tokenizer, now=datetime.now)
        return self._chat_template.render(messages, **template_options)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> EventStream:
        """Start one request; iterate over it, with `for` or `async for`, to get its events.

        The events of several choices come interleaved, as they are drawn; see `StreamEvent.index`.

        Leaving the loop early, or closing the stream, cancels the request.

        Raises:
            InvalidRequestError: the prompt or a value is not acceptable.
        """
        return EventStream(self.engine, self._encode(prompt), _checked_params(params))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        **template_options: Any,
    ) -> EventStream:
        """As `stream`, for the answer to one conversation; errors as for `chat`."""
        ids = self.tokenizer.encode_chat(self.render_chat(messages, **template_options))
        return EventStream(self.engine, ids, _checked_params(params))

    def trace(self, observer: Observer) -> None:
        """Send the records of all later steps and requests to an observer, such as a file."""
        self.engine.observe(observer)

    def close(self) -> None:
        """Cancel what runs and give everything back; harmless when called twice."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        return [_plain(token) for token in _iterated(prompt)]

    def _params_for(
        self, count: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if not isinstance(params, Sequence):
            return [_checked_params(params)] * count
        if len(params) != count:
            raise InvalidRequestError(
                f"{count:,} prompts came with {len(params):,} sets of sampling parameters",
                hint="give one set for all prompts, or one for each",
            )
        return [_checked_params(one) for one in params]

    def _run(
        self, prompts: list[str | None], ids: list[list[int]], params: list[SamplingParams]
    ) -> list[Completion]:
        """Submit everything, then gather events until each request has ended."""
        inbox: queue.SimpleQueue[list[StreamEvent]] = queue.SimpleQueue()
        for one, param in zip(ids, params, strict=True):
            self.engine.check(one, param)
        gathered = [Gathered(param) for param in params]
        owner: dict[str, Gathered] = {}
        num_tokens = num_done = 0
        try:
            for one, param, gather in zip(ids, params, gathered, strict=True):
                gather.name = self.engine.submit(one, param, inbox.put)
                owner.update(dict.fromkeys(gather.request_ids, gather))
            with Progress(len(ids), self._progress) as progress:
                while num_done < len(ids):
                    for event in inbox.get():
                        num_tokens += event.token_id >= 0
                        num_done += owner[event.request_id].take(event)
                    progress.update(num_done, num_tokens)
        finally:
            for gather in gathered:
                if gather.name and not gather.is_done:
                    self.engine.cancel(gather.name)
        return [
            gather.completion(prompt, one)
            for prompt, one, gather in zip(prompts, ids, gathered, strict=True)
        ]


def scheduler_options(config: EngineConfig) -> SchedulerOptions:
    """The part of the configuration that the scheduler goes by."""
    names = SchedulerOptions.__dataclass_fields__.keys() - {"num_blocks"}
    values = {name: getattr(config, name) for name in names}
    return SchedulerOptions(num_blocks=config.num_kv_blocks, **values)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list; token ids alone are one prompt."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(_iterated(prompts))
    if listed and all(isinstance(p, Integral) for p in listed):
        return [cast("Sequence[int]", listed)]
    return cast("list[Prompt]", listed)


def _iterated(prompt: object) -> Iterable[Any]:
    """What may be a prompt, or several; bytes and mappings only look like it."""
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise InvalidRequestError(
            f"a prompt is a {type(prompt).__name__}",
            hint="a prompt is a string or a list of token ids",
        )
    return prompt


def _plain(token: object) -> Any:
    """NumPy's whole numbers become Python's; the engine refuses what is none."""
    if isinstance(token, Integral) and not isinstance(token, bool):
        return int(token)
    return token


def _checked_params(params: object) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            f"the sampling parameters are a {type(params).__name__}",
            hint="give SamplingParams(temperature=0, ...)",
        )
    return params


def _load_tokenizer(model: Any) -> Tokenizer:
    if model.is_gguf:
        return Tokenizer.from_gguf(model.metadata)
    return Tokenizer.from_folder(model.path)
