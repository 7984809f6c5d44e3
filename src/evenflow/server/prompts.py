"""From a request's texts or messages to token ids, without holding up the streams.

A long prompt takes milliseconds to encode, so it is done on another thread, where the tokenizer
lets go of the interpreter's lock; a short one is done at once, which is cheaper than to hand it over.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from evenflow.server.reading import FieldError, UnsupportedFieldError
from evenflow.server.slices import USUAL_S, ask_for
from evenflow.server.tool_messages import calls_as_templates_read_them

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from evenflow.server.protocol import ChatRequest, TokenizeRequest
    from evenflow.server.sampling_body import SamplingBody
    from evenflow.server.shapes import Tool
    from evenflow.server.state import Model
    from evenflow.text.tokenizer import Tokenizer

T = TypeVar("T")
MAX_INLINE_CHARACTERS = 2_000
ALWAYS_READ = {"role", "content"}
OF_TOOL_MESSAGES = {"tool_call_id", "name"}  # the API wants them; most templates go by the order


class Prompt(NamedTuple):
    """Token ids, and the text that an echo begins with."""

    ids: list[int]
    echo: str


class PromptReader:
    """Encodes prompts; owns one worker thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="evenflow-encode",
            initializer=ask_for,  # the loop's thread, which starts it, is in more of a hurry
            initargs=(USUAL_S,),
        )

    async def run(self, num_characters: int, work: Callable[[], T]) -> T:
        """Do it here if it is little, else on the worker."""
        if num_characters <= MAX_INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Stop the worker."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def encode(
    tokenizer: Tokenizer, prompts: Sequence[str | list[int]], *, add_special: bool, echo: bool
) -> list[Prompt]:
    """The prompts of a completion.

    Raises:
        InvalidRequestError: a text that cannot be encoded.
    """
    made = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, add_special_tokens=add_special)
            made.append(Prompt(ids, prompt if echo else ""))
        else:
            made.append(Prompt(prompt, _decoded(tokenizer, prompt) if echo else ""))
    return made


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    if any(token < 0 for token in ids):
        return ""  # the engine refuses it with the right words
    return tokenizer.decode(ids)


def check_room(body: SamplingBody, prompts: Sequence[Prompt], max_model_len: int) -> None:
    """Refuse more tokens than the context has room for, where the client asked for so many.

    A limit that is only the default's is cut to the room instead. That is vLLM's rule.

    Raises:
        FieldError: a prompt and the tokens asked for exceed the context.
    """
    name, asked = body.asked_tokens()
    if asked is None:
        return
    for prompt in prompts:
        room = max_model_len - len(prompt.ids)
        if 0 < room < asked:  # without any room the engine says what is wrong with the prompt
            raise FieldError(
                f"the prompt has {len(prompt.ids):,} tokens and {name} is {asked:,}, together "
                f"{len(prompt.ids) + asked:,}, but this model's context holds {max_model_len:,}",
                hint=f"ask for at most {room:,}, shorten the prompt, or leave {name} out",
                param=name,
            )


def encode_chat(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    add_special: bool,
) -> list[Prompt]:
    """The prompt of a conversation.

    Raises:
        InvalidRequestError: messages that the model's template does not take.
        UnsupportedFieldError: a message has a field that the template does not read.
    """
    cleaned = [
        _readable(index, message, model.tokenizer.chat_template or "")
        for index, message in enumerate(messages)
    ]
    rendered = model.render_chat(cleaned, **options)
    if add_special:
        return [Prompt(model.tokenizer.encode(rendered), "")]
    return [Prompt(model.tokenizer.encode_chat(rendered), "")]


def template_options(body: ChatRequest | TokenizeRequest, tools: Sequence[Tool]) -> dict[str, Any]:
    """What a chat passes to the model's template; the tools only where there are any.

    Raises:
        FieldError: a variable that has a field of its own.
    """
    options = dict(body.chat_template_kwargs or {})
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in options:
            raise FieldError(
                f"chat_template_kwargs holds {name!r}, which has a field of its own",
                hint=f"give {name} beside chat_template_kwargs",
                param="chat_template_kwargs",
            )
    if body.add_generation_prompt is not None:
        options["add_generation_prompt"] = body.add_generation_prompt
    if tools:
        options["tools"] = [tool.as_template_reads_it() for tool in tools]
    return options


def _readable(index: int, message: Mapping[str, Any], template: str) -> dict[str, Any]:
    """The message without its empty fields; one that would be ignored is refused."""
    kept = {key: value for key, value in message.items() if value is not None or key == "content"}
    for key, value in kept.items():
        if key in ALWAYS_READ or not value or re.search(rf"\b{re.escape(key)}\b", template):
            continue
        if kept.get("role") == "tool" and key in OF_TOOL_MESSAGES:
            continue
        raise UnsupportedFieldError(
            f"messages.{index}.{key} is given, which this model's chat template does not read",
            hint="leave it out, or say it in the content",
            param=f"messages.{index}.{key}",
        )
    if "role" not in kept:
        raise FieldError(
            f"messages.{index}.role is missing",
            hint='a role is a name such as "system", "user" or "assistant"',
            param=f"messages.{index}.role",
        )
    if kept.get("tool_calls"):
        kept["tool_calls"] = calls_as_templates_read_them(kept["tool_calls"], f"messages.{index}")
    return kept


def num_characters(value: object) -> int:
    """Roughly how much text there is in a body's prompt or messages; ids count one each."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(num_characters(one) for one in value.values())
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(num_characters(one) for one in value)
    return 1
