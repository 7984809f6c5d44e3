"""The front door for Python: load a model, generate, stream, chat, close.

In: prompts as text or token ids. Out: completions, or events as they come. Several callers, on
threads or in event loops, share one engine; their requests run in the same steps.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, cast

import psutil

from evenflow.config import EngineConfig
from evenflow.engine import Engine
from evenflow.errors import InvalidRequestError
from evenflow.model.load import load_model
from evenflow.progress import Progress, loading
from evenflow.runner.choose import FLOAT32_BYTES, make_runner, native_facts
from evenflow.sampling import SamplingParams
from evenflow.schedule.scheduler import Scheduler, SchedulerOptions
from evenflow.stream import EventStream
from evenflow.text.chat import ChatTemplate
from evenflow.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from evenflow.journal import Observer
    from evenflow.types import FinishReason, StreamEvent

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt.

    `error` is set where `finish_reason` is "error"; text and tokens are then what was there before.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    error: Exception | None = field(default=None)


class LLM:
    """A model, ready to generate.

    Args:
        model: "smollm2", a .gguf file, or a Hugging Face folder.
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
        model: str | Path = "smollm2",
        *,
        runner: str = "auto",
        progress: bool | None = None,
        observers: Sequence[Observer] = (),
        **options: object,
    ) -> None:
        self._progress = progress
        with loading(str(model), progress):
            self.model = load_model(model)
            self.tokenizer = _load_tokenizer(self.model)
            self.config = EngineConfig.resolve(
                {"model": str(model), "runner": runner, **options},
                context_length=self.model.spec.context_length,
                kv_bytes_per_token=self.model.spec.kv_bytes_per_token(FLOAT32_BYTES),
                free_memory_bytes=psutil.virtual_memory().available,
                native=native_facts(self.model),
            )
            made = make_runner(self.config, self.model)
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
            One completion per prompt, in order.

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
            ModelError: the model has no chat template, or a broken one.
            InvalidRequestError: a message that the template does not take.
        """
        first = messages[0] if messages else {}
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

        Leaving the loop early, or closing the stream, cancels the request.

        Raises:
            InvalidRequestError: the prompt or a value is not acceptable.
        """
        return EventStream(self.engine, self._encode(prompt), params or SamplingParams())

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        **template_options: Any,
    ) -> EventStream:
        """As `stream`, for the answer to one conversation; errors as for `chat`."""
        ids = self.tokenizer.encode_chat(self.render_chat(messages, **template_options))
        return EventStream(self.engine, ids, params or SamplingParams())

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
        return list(prompt)

    def _params_for(
        self, count: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * count
        if len(params) != count:
            raise InvalidRequestError(
                f"{count:,} prompts came with {len(params):,} sets of sampling parameters",
                hint="give one set for all prompts, or one for each",
            )
        return list(params)

    def _run(
        self, prompts: list[str | None], ids: list[list[int]], params: list[SamplingParams]
    ) -> list[Completion]:
        """Submit everything, then gather events until each request has ended."""
        inbox: queue.SimpleQueue[list[StreamEvent]] = queue.SimpleQueue()
        for one, param in zip(ids, params, strict=True):
            self.engine.check(one, param)
        names: list[str] = []
        done: dict[str, StreamEvent] = {}
        tokens: dict[str, list[int]] = {}
        texts: dict[str, list[str]] = {}
        try:
            for one, param in zip(ids, params, strict=True):
                names.append(self.engine.submit(one, param, inbox.put))
            with Progress(len(ids), self._progress) as progress:
                while len(done) < len(names):
                    events = inbox.get()
                    for event in events:
                        texts.setdefault(event.request_id, []).append(event.text)
                        if event.token_id >= 0:
                            tokens.setdefault(event.request_id, []).append(event.token_id)
                        if event.finish_reason is not None:
                            done[event.request_id] = event
                    progress.update(len(done), sum(map(len, tokens.values())))
        finally:
            for name in names:
                if name not in done:
                    self.engine.cancel(name)
        return [
            Completion(
                prompt,
                one,
                "".join(texts[name]),
                tokens.get(name, []),
                cast("FinishReason", done[name].finish_reason),
                done[name].error,
            )
            for prompt, one, name in zip(prompts, ids, names, strict=True)
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
    if prompts and all(isinstance(p, int) for p in prompts):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _load_tokenizer(model: Any) -> Tokenizer:
    if model.is_gguf:
        return Tokenizer.from_gguf(model.metadata)
    return Tokenizer.from_folder(model.path)
