"""The options of speculation, settled with their reasons; `speculative_config` as vLLM spells it.

In: what a caller gave. Out: one choice for each option. Part of `config.py`, in a file of its own;
how drafts are made and verified is `schedule/`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from evenflow.options import Options

METHODS = ("off", "ngram")
NUM_DRAFTS = 6
LOOKUP_MAX = 4
LOOKUP_MIN = 2
MAX_DRAFTS = 64
MAX_LOOKUP = 32
DISABLE_BY_BATCH_SIZE = 8
# key of vLLM's --speculative-config -> our option
CONFIG_KEYS = {
    "method": "speculative",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "prompt_lookup_max",
    "prompt_lookup_min": "prompt_lookup_min",
    "disable_by_batch_size": "speculative_disable_by_batch_size",
}


class SpeculationOptions(NamedTuple):
    """How tokens are drafted; all 0 when nothing is."""

    speculative: str
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int
    speculative_disable_by_batch_size: int


def expand_speculative_config(options: Mapping[str, object]) -> dict[str, object]:
    """Replace `speculative_config`, a mapping or its JSON, by the options that it stands for.

    Raises:
        ConfigError: it is no object, has a key that is not known, or says what an option says too.
    """
    expanded = dict(options)
    value = expanded.pop("speculative_config", None)
    if value is None:
        return expanded
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise _bad_config(f"speculative_config is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise _bad_config(f"speculative_config is {value!r}")
    for key, setting in {"method": "ngram", **value}.items():
        name = CONFIG_KEYS.get(key)
        if name is None:
            raise _bad_config(f"speculative_config has {key!r}")
        if expanded.get(name) is not None:
            raise ConfigError(
                f"speculative_config is given, and {name} beside it",
                hint="leave one of the two out",
            )
        expanded[name] = setting
    return expanded


def _bad_config(fact: str) -> ConfigError:
    return ConfigError(
        fact,
        hint='write {"method": "ngram", "num_speculative_tokens": 5}; the keys are '
        + ", ".join(CONFIG_KEYS),
    )


def settle_speculation(take: Options, max_num_batched_tokens: int) -> SpeculationOptions:
    """Choose how tokens are drafted.

    Raises:
        ConfigError: another method, a number out of range, an option without effect.
    """
    method = take.choice("speculative", METHODS)
    if method is None:
        method = take.default("speculative", "off")
    if method == "off":
        for name in SpeculationOptions._fields[1:]:
            if name in take.given:
                raise ConfigError(
                    f"{name} is given, but it has no effect with speculative 'off'",
                    hint=f"leave {name} out, or set speculative to ngram",
                )
            take.settle(name, 0, "no effect: speculative is off")
        return SpeculationOptions("off", 0, 0, 0, 0)
    if max_num_batched_tokens < 2:
        raise ConfigError(
            "speculative is 'ngram', but a step of 1 token (max_num_batched_tokens) has no room "
            "for a draft",
            hint="raise max_num_batched_tokens, or leave speculative out",
        )
    most = min(MAX_DRAFTS, max_num_batched_tokens - 1)
    count = take.integer("num_speculative_tokens", min(NUM_DRAFTS, most), 1, most)
    longest, shortest = _lookup(take)
    batch = take.integer("speculative_disable_by_batch_size", DISABLE_BY_BATCH_SIZE, 1, 65_536)
    return SpeculationOptions(method, count, longest, shortest, batch)


def _lookup(take: Options) -> tuple[int, int]:
    """The most and the fewest tokens that must agree; one that is given may move the other."""
    given = take.given.get("prompt_lookup_max")
    # the type is checked where the value is taken
    least = min(LOOKUP_MIN, given) if isinstance(given, int) and given > 0 else LOOKUP_MIN
    shortest = take.integer("prompt_lookup_min", least, 1, MAX_LOOKUP)
    longest = take.integer("prompt_lookup_max", max(LOOKUP_MAX, shortest), 1, MAX_LOOKUP)
    if longest < shortest:
        raise ConfigError(
            f"prompt_lookup_min is {shortest}, but prompt_lookup_max is {longest}",
            hint="prompt_lookup_min may be at most prompt_lookup_max",
        )
    return longest, shortest
