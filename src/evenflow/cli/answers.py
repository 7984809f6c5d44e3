"""How `evenflow generate` prints answers: their text, or JSON with all there is to know."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenflow import Completion, StreamEvent, TokenLogprobs


def print_json(value: dict[str, Any]) -> None:
    """One line of JSON on stdout."""
    import orjson  # noqa: PLC0415 - keeps --version and --help quick

    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def print_texts(done: Completion) -> None:
    """The answers' texts; several of them each under its number."""
    many = len(done.outputs) > 1
    for output in done.outputs:
        if many:
            print(f"[{output.index}]")
        print(output.text)


def answer_json(done: Completion) -> dict[str, Any]:
    """A completion: the first answer's fields, and all of them in "outputs" where there are more."""
    outputs = []
    for output in done.outputs:
        fields: dict[str, Any] = {
            "text": output.text,
            "finish_reason": output.finish_reason,
            "token_ids": output.token_ids,
        }
        if output.logprobs is not None:
            fields["logprobs"] = [_logprobs_json(entry) for entry in output.logprobs]
        outputs.append(fields)
    whole = {**outputs[0], "prompt_token_ids": done.prompt_token_ids}
    return whole | ({"outputs": outputs} if len(outputs) > 1 else {})


def event_json(event: StreamEvent, *, with_index: bool) -> dict[str, Any]:
    """An event of a stream."""
    fields: dict[str, Any] = {"index": event.index} if with_index else {}
    fields |= {
        "token_id": event.token_id if event.token_id >= 0 else None,
        "text": event.text,
        "finish_reason": event.finish_reason,
    }
    if event.logprobs is not None:
        fields["logprobs"] = _logprobs_json(event.logprobs)
    return fields


def _logprobs_json(entry: TokenLogprobs | None) -> dict[str, Any] | None:
    return None if entry is None else entry._asdict()
