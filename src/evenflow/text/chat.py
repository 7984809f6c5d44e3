"""Render a conversation with the model's own chat template.

In: messages as OpenAI's API and transformers write them. Out: one string, to be encoded by
`Tokenizer.encode_chat`. A template is code from the model's maker: it runs in jinja's sandbox, with
the names that transformers gives it and no others. Knows no token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta
import jinja2.sandbox
from jinja2.ext import Extension, loopcontrols

from evenflow.errors import InvalidRequestError, ModelError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from jinja2.nodes import Node
    from jinja2.parser import Parser

    from evenflow.text.tokenizer import Tokenizer

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """A compiled template. It may be shared by threads.

    Args:
        source: jinja source.
        now: the clock behind the template's `strftime_now`.
        special_tokens: names the template may use ("bos_token", "eos_token", ...) -> their text.

    Raises:
        ModelError: the source is not a template.
    """

    def __init__(
        self,
        source: str,
        *,
        now: Callable[[], datetime],
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._special_tokens = dict(special_tokens or {})
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"line {error.lineno} of the model's chat template is broken: {error.message}",
                hint="fetch the model again, or use generate with a prompt you format yourself",
            ) from error
        self._names = jinja2.meta.find_undeclared_variables(tree) - set(environment.globals)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, now: Callable[[], datetime]) -> ChatTemplate:
        """The template that came with a model.

        Raises:
            InvalidRequestError: the model has none.
            ModelError: it is broken.
        """
        if tokenizer.chat_template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot chat",
                hint="use generate with a plain prompt, or pick an instruct model",
            )
        special_tokens = tokenizer.special_tokens
        return cls(tokenizer.chat_template, now=now, special_tokens=special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Write the conversation as the model was trained to read it.

        Args:
            messages: objects with a `role` and a `content`: a str, or a list of text parts, which
                are joined by newlines (as vLLM does). Other fields are passed on.
            add_generation_prompt: end with the opening of the assistant's turn.
            tools: JSON schemas of functions, where the template knows tools.
            variables: more names for the template, such as `enable_thinking`.

        Raises:
            InvalidRequestError: a message of the wrong shape, or one that the template refuses.
            UnsupportedError: parts that are not text; tools or a variable that the template would
                ignore.
            ModelError: the template tries what its sandbox forbids.
        """
        self._check_known(tools, variables)
        checked = _checked(messages)
        names = self._special_tokens | {"documents": None} | variables
        try:
            return self._template.render(
                names,
                messages=checked,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
            )
        except _RefusedError as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {_line(error)}",
                hint="change the roles or their order as the message says",
            ) from error
        except jinja2.exceptions.SecurityError as error:
            raise ModelError(
                f"the model's chat template does what it may not: {_line(error)}",
                hint="do not trust this model file",
            ) from error
        except Exception as error:  # whatever an expression of the template raises
            raise InvalidRequestError(
                "the model's chat template fails on these messages: "
                f"{type(error).__name__}: {_line(error)}",
                hint="give every message a role and a text; if that is so, the template is broken",
            ) from error

    def _check_known(
        self, tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]
    ) -> None:
        if tools and "tools" not in self._names:
            raise UnsupportedError(
                f"{len(tools)} tools were given, but this model's chat template knows none",
                hint="leave the tools out, or pick a model trained to call tools",
            )
        readable = self._names - _RESERVED - set(self._special_tokens)
        for name in variables:
            if name not in readable:
                raise UnsupportedError(
                    f"this model's chat template does not read {name!r}",
                    hint=f"it reads {', '.join(sorted(readable)) or 'no variables of its own'}",
                )


class _RefusedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _refuse(message: object) -> None:
    raise _RefusedError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes for HTML, which a model was not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja reads it from the class

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
        autoescape=False,  # the reader is a language model, not a browser
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
    return environment


def _checked(messages: object) -> list[dict[str, Any]]:
    if isinstance(messages, str | Mapping) or not hasattr(messages, "__iter__"):
        raise InvalidRequestError(
            f"messages is a {type(messages).__name__}, not a list",
            hint='messages is a list such as [{"role": "user", "content": "Hello"}]',
        )
    checked = [_checked_message(index, message) for index, message in enumerate(messages)]
    if not checked:
        raise InvalidRequestError("there are 0 messages", hint="give at least one")
    return checked


def _checked_message(index: int, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"message {index} is a {type(message).__name__}, not an object",
            hint='a message is an object such as {"role": "user", "content": "Hello"}',
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(
            f"the role of message {index} is {role!r}",
            hint='a role is a name such as "system", "user" or "assistant"',
        )
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""  # an assistant's turn may consist of calls alone
    if isinstance(content, list | tuple):
        parts = [_text_of(index, place, part) for place, part in enumerate(content)]
        content = "\n".join(parts)
    if not isinstance(content, str):
        raise InvalidRequestError(
            f"the content of message {index} is a {type(content).__name__}",
            hint='content is a text or a list of parts such as {"type": "text", "text": "Hello"}',
        )
    return {**message, "content": content}


def _text_of(index: int, place: int, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text" or not isinstance(part, Mapping):
        raise UnsupportedError(
            f"part {place} of message {index} is of type {kind!r}; only text is read",
            hint="leave images, audio and files out",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"part {place} of message {index} has a {type(text).__name__} as its text",
            hint='a part is an object such as {"type": "text", "text": "Hello"}',
        )
    return text
