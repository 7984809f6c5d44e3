"""Before a run: does the server answer, is the model's name right, how does it count tokens?

In: a driver. Out: the same driver, set up for what this server can do, and a calibration. Says
once what is wrong, with the next step.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from evenflow.bench.drivers.http import HttpDriver, HttpOptions
from evenflow.bench.drivers.interface import Turn
from evenflow.bench.drivers.sse import error_of
from evenflow.bench.workload.prompts import Calibration, calibrate, words_of
from evenflow.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_WORDS, LARGE_WORDS = 16, 272
PROBE_TOKENS = 2
PROBE_SEED = 7
NAMING = "--model (in a sweep: --served-model-name)"
_MODELS = re.compile(r"/(chat/)?completions$")


class Target(NamedTuple):
    """A server that is ready for a run; `notes` are for the person who reads the result."""

    driver: HttpDriver
    calibration: Calibration
    notes: list[str]
    facts: dict[str, object]


async def check_target(
    base_url: str, model: str | None, options: HttpOptions, *, count_each: bool | None = None
) -> Target:
    """Ask the server a few small questions.

    Args:
        base_url: where it is.
        model: the served name; None takes the only one there is.
        options: how to ask; its model is replaced.
        count_each: whether to have tokens counted message by message; None tries.

    Raises:
        TargetError: the server cannot be reached, refuses us, or does not know the model.
    """
    driver = HttpDriver(base_url, options)
    try:
        return await _check(driver, base_url, model, options, count_each=count_each)
    except BaseException:
        await driver.close()
        raise


async def _check(
    driver: HttpDriver,
    base_url: str,
    model: str | None,
    options: HttpOptions,
    *,
    count_each: bool | None,
) -> Target:
    notes: list[str] = []
    name = await _model_name(driver, model, notes)
    driver.options = options = replace(options, model=name, count_each=bool(count_each))
    counted: list[tuple[int, int]] = []
    for words in (SMALL_WORDS, LARGE_WORDS):
        usage = await _probe(driver, words)
        tokens = (usage or {}).get("prompt_tokens")
        if isinstance(tokens, int):
            counted.append((words, tokens))
    if len(counted) == 2:
        calibration = calibrate(counted[0], counted[1])
    else:
        calibration = Calibration()
        notes.append("the server does not count tokens: lengths are those of our own words")
    if count_each is None and counted:
        trial = HttpDriver(base_url, replace(options, count_each=True))
        trial.pool = driver.pool
        answer = await trial.post(options.endpoint, _body(trial, SMALL_WORDS))
        if answer.status == 200 and _counts_each(answer.body):
            driver.options = replace(options, count_each=True)
    facts = {"model": name, "endpoint": options.endpoint, "count_each": driver.options.count_each}
    return Target(driver, calibration, notes, facts)


async def _model_name(driver: HttpDriver, wanted: str | None, notes: list[str]) -> str:
    """The served name to ask for."""
    # beside the endpoint: most servers have /v1/models, some another prefix
    endpoint = driver.options.endpoint
    known = _MODELS.search(endpoint) is not None
    answer = await driver.get(_MODELS.sub("/models", endpoint) if known else "/v1/models")
    _refused(answer.status, answer.body, driver)
    if answer.status >= 500:
        raise TargetError(
            f"{driver.address} is not ready: {error_of(answer.status, answer.body)}",
            hint="wait until its model is loaded, and look at its log",
        )
    listed = answer.json() if answer.status == 200 else None
    models = listed.get("data") if isinstance(listed, dict) else None
    names = [str(m.get("id")) for m in models or () if isinstance(m, dict)]
    if not names:
        if wanted is None:
            raise TargetError(
                f"{driver.address} lists no models (HTTP {answer.status})",
                hint="name the model with --model",
            )
        notes.append(f"{driver.address} lists no models; {wanted!r} is taken as given")
        return wanted
    if wanted is None:
        if len(names) > 1:
            raise TargetError(
                f"{driver.address} serves {len(names)} models",
                hint=f"choose one with {NAMING}: {', '.join(names[:8])}",
            )
        return names[0]
    if wanted not in names:
        raise TargetError(
            f"{driver.address} does not serve {wanted!r}",
            hint=f"it serves {', '.join(names[:8])}; name one with {NAMING}",
        )
    return wanted


def _refused(status: int, body: bytes, driver: HttpDriver) -> None:
    if status in {401, 403}:
        raise TargetError(
            f"{driver.address} refuses us: {error_of(status, body)}",
            hint='set OPENAI_API_KEY, or give --header "Authorization: Bearer ..."',
        )


async def _probe(driver: HttpDriver, words: int) -> dict[str, Any] | None:
    """The usage that the server reports for a prompt of so many words."""
    answer = await driver.post(driver.options.endpoint, _body(driver, words))
    _refused(answer.status, answer.body, driver)
    if answer.status != 200:
        raise TargetError(
            f"{driver.address}{driver.options.endpoint} answers a small request with "
            f"{error_of(answer.status, answer.body)}",
            hint="try another --endpoint, /v1/chat/completions or /v1/completions"
            if answer.status in {404, 405}
            else "what the server says above is what it dislikes about the request",
        )
    usages = [event["usage"] for event in _events(answer.body) if event.get("usage")]
    return usages[-1] if usages else None


def _body(driver: HttpDriver, words: int) -> dict[str, Any]:
    """A small streamed request."""
    raw = driver.prepare(Turn(words_of(PROBE_SEED, words), PROBE_TOKENS))
    body: dict[str, Any] = orjson.loads(raw.partition(b"\r\n\r\n")[2])
    return body


def _counts_each(body: bytes) -> bool:
    """Whether every message with output says how many tokens there are by now."""
    withs = [e for e in _events(body) if e.get("choices")]
    return bool(withs) and all(
        (e.get("usage") or {}).get("completion_tokens") is not None for e in withs
    )


def _events(body: bytes) -> Sequence[dict[str, Any]]:
    found = []
    for line in body.split(b"\n"):
        if line.startswith(b"data:") and b"[DONE]" not in line:
            try:
                event = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, dict):
                found.append(event)
    return found
