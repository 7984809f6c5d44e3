"""`evenflow generate`: one prompt in, its continuation on stdout."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from evenflow.cli.answers import answer_json, event_json, print_json, print_texts
from evenflow.cli.config_table import config_lines
from evenflow.cli.flags import Group, with_flags
from evenflow.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenflow import LLM, SamplingParams, StreamEvent, StructuredOutputs
    from evenflow.config import EngineConfig

DEFAULT_MAX_TOKENS = 256  # the API's 16, as in vLLM, would end most answers mid-sentence


class Wanted(NamedTuple):
    """What to do with the prompt and what to print."""

    chat: bool
    json: bool
    stream: bool
    show_config: bool
    trace: Path | None


@with_flags
def generate(
    *,
    engine: Group,
    sampling: Group,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt; else --file or stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="smollm2 (default), random:SHAPE, a .gguf file, or a Hugging Face folder."
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the model's chat template.")] = False,
    regex: Annotated[
        str | None, typer.Option(help="The answer matches this regular expression.")
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(help="The answer is JSON of this schema: a file, or its text.")
    ] = None,
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--no-stream", help="Print as it comes; on unless --json or --n."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with --stream a line per event.")
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every effective value and its reason.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a record of every step to this file.")
    ] = None,
) -> None:
    """Continue a prompt, or answer it with --chat; 256 tokens at most unless told otherwise."""
    text = _read_prompt(prompt, file, may_lack=show_config)
    many = sampling.get("n", 1) > 1
    if "logprobs" in sampling and not json:
        raise InvalidRequestError("--logprobs is given, but not --json", hint="add --json")
    if stream and many and not json:
        raise InvalidRequestError(
            "--stream would mix the answers of --n", hint="add --json, or leave --stream out"
        )
    asked = Wanted(chat, json, not (json or many) if stream is None else stream, show_config, trace)
    form = _form(regex, json_schema)
    _run(model, engine, {"max_tokens": DEFAULT_MAX_TOKENS, **sampling, **form}, text, asked)


def _form(regex: str | None, json_schema: str | None) -> dict[str, StructuredOutputs]:
    """The form that the answer must have, as a sampling parameter."""
    from evenflow import StructuredOutputs  # noqa: PLC0415 - as in _run

    schema = json_schema
    if schema is not None and not schema.lstrip().startswith("{"):
        schema = _read_text(Path(schema))
    if regex is None and schema is None:
        return {}
    return {"structured_outputs": StructuredOutputs(regex=regex, json=schema)}


def _read_prompt(prompt: str | None, file: Path | None, *, may_lack: bool) -> str | None:
    """The prompt from the one place that has it; None when there need not be one."""
    if prompt is not None and file is not None:
        raise InvalidRequestError(
            "a prompt and --file are both given", hint="leave one of the two out"
        )
    if prompt is not None:
        return prompt
    if file is None and may_lack:
        return None
    return _read_text(file).removesuffix("\n")


def _read_text(file: Path | None) -> str:
    """A file's text; without one, that of stdin."""
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if sys.stdin.isatty():
            print("reading the prompt from the terminal; end it with Ctrl-D", file=sys.stderr)
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError as e:
        raise InvalidRequestError(
            f"cannot read {file}: {e.strerror}", hint="give the path of a text file"
        ) from e
    except UnicodeDecodeError as e:
        raise InvalidRequestError(
            f"{file or 'stdin'} is not UTF-8: byte {e.start:,} is {e.object[e.start]:#04x}",
            hint="convert it, for instance with iconv",
        ) from e


def _run(
    model: str | None, engine: Group, sampling: Group, text: str | None, wanted: Wanted
) -> None:
    from evenflow import LLM, SamplingParams  # noqa: PLC0415 - keeps --version and --help quick
    from evenflow.trace import TraceWriter  # noqa: PLC0415 - as above

    params = SamplingParams(**sampling)
    with ExitStack() as stack:
        llm = stack.enter_context(LLM(model, **engine))
        for warning in llm.config.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if wanted.trace is not None:
            values = {name: getattr(llm.config, name) for name in llm.config.origins}
            writer = stack.enter_context(TraceWriter(wanted.trace, header={"config": values}))
            stack.callback(llm.close)  # before the file is: the engine writes to the last moment
            llm.trace(writer)
        if wanted.show_config:
            _show_config(llm.config, json=wanted.json, alone=text is None)
        if text is not None:
            _answer(llm, text, params, wanted)


def _show_config(config: EngineConfig, *, json: bool, alone: bool) -> None:
    """The effective values: data when they are all that was asked for, else words beside it."""
    rows = config.describe()
    out = sys.stdout if alone else sys.stderr
    if json and alone:
        print_json(
            {
                row.name: {
                    "value": getattr(config, row.name),
                    "origin": row.origin,
                    "reason": row.reason,
                }
                for row in rows
            }
        )
        return
    for line in config_lines(config):
        print(line, file=out)


def _answer(llm: LLM, text: str, params: SamplingParams, wanted: Wanted) -> None:
    started = time.perf_counter()
    question = [{"role": "user", "content": text}]
    if wanted.stream:
        chosen = llm.stream_chat(question, params) if wanted.chat else llm.stream(text, params)
        with chosen as events:
            _stream(events, started, json=wanted.json, many=params.n > 1)
        return
    (done,) = llm.chat(question, params) if wanted.chat else llm.generate(text, params)
    for output in done.outputs:
        if output.error is not None:
            raise output.error
    if wanted.json:
        print_json(answer_json(done))
    else:
        print_texts(done)
    num_tokens = sum(len(output.token_ids) for output in done.outputs)
    _say_speed(num_tokens, None, started, str(done.finish_reason))


def _stream(events: Iterator[StreamEvent], started: float, *, json: bool, many: bool) -> None:
    num_tokens = 0
    first_s: float | None = None
    reason = ""
    for event in events:
        if event.error is not None:
            raise event.error
        if event.token_id >= 0:
            num_tokens += 1
            first_s = first_s or time.perf_counter() - started
        reason = event.finish_reason or reason
        if json:
            print_json(event_json(event, with_index=many))
        else:
            print(event.text, end="", flush=True)
    if not json:
        print()
    _say_speed(num_tokens, first_s, started, reason)


def _say_speed(num_tokens: int, first_s: float | None, started: float, reason: str) -> None:
    """A word for a person at a terminal; programs have --json and --trace."""
    if not sys.stderr.isatty():
        return
    took_s = time.perf_counter() - started
    first = "" if first_s is None else f", the first after {first_s:.2f} s"
    print(f"[{num_tokens} tokens in {took_s:.1f} s{first}; end: {reason}]", file=sys.stderr)
