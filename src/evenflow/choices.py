"""A request for n answers is n requests: their parameters, and who belongs together."""

from __future__ import annotations

from dataclasses import replace

from evenflow.sampling import MAX_SEED, SamplingParams

# Odd constants spread consecutive numbers over all seeds (Knuth's golden ratio hash): one for
# requests without a seed, one for the choices of a request with one.
SEED_STRIDE = 0x9E3779B97F4A7C15
CHOICE_STRIDE = 0xD1B54A32D192ED03


def each_choice(params: SamplingParams, number: int, engine_seed: int) -> list[SamplingParams]:
    """The parameters of every choice: a seed of its own, and only the first scores the prompt.

    Args:
        params: of the whole request.
        number: the first choice's number among all that the engine has had.
        engine_seed: where the seeds of requests without one come from.
    """
    made = []
    for index in range(params.n):
        if params.seed is None:
            seed = engine_seed + (number + index + 1) * SEED_STRIDE
        else:
            seed = params.seed + index * CHOICE_STRIDE
        scores = params.prompt_logprobs if index == 0 else None
        made.append(replace(params, n=1, seed=seed & MAX_SEED, prompt_logprobs=scores))
    return made


class Groups:
    """Which choices of which request are open."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, None]] = {}  # in order, so that ends come in order
        self._name_of: dict[str, str] = {}

    def add(self, name: str, request_id: str) -> None:
        """A choice of `name` was queued."""
        self._open.setdefault(name, {})[request_id] = None
        self._name_of[request_id] = name

    def end(self, request_id: str) -> None:
        """A request has ended; it need not be a choice."""
        name = self._name_of.pop(request_id, None)
        if name is not None:
            left = self._open[name]
            del left[request_id]
            if not left:
                del self._open[name]

    def ids(self, name: str) -> list[str]:
        """The open choices of `name`; the name itself where it has none."""
        return list(self._open.get(name, (name,)))
