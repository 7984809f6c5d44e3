"""All groups of rows, as they are measured.

Every figure is the best of its repeats, what else runs on the machine can only make it worse; but
for Python's share, a median, and the steadiness, which is about what else runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from evenflow.bench.kernels.load import load_rows
from evenflow.bench.kernels.products import attention_rows, gemm_rows, sampling_rows
from evenflow.bench.kernels.serving import python_rows, stall_rows, steadiness_rows
from evenflow.bench.kernels.steps import (
    Load,
    Setting,
    chunk_rows,
    decode_rows,
    mixed_rows,
    prefill_rows,
)
from evenflow.config import DEFAULT_MODEL
from evenflow.errors import ConfigError
from evenflow.model.load import load_model
from evenflow.runner.native import NativeRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from evenflow.bench.kernels.limits import Machine
    from evenflow.bench.kernels.rows import Row
    from evenflow.model.load import Model

NUM_BLOCKS = 400
LEAST_CONTEXT = 4200


class Asked(NamedTuple):
    """What is measured, and with what."""

    model: str | None
    weights: str
    isa: str
    threads: int
    repeats: int
    quick: bool  # prompts of 2,000 tokens in place of 8,000 and 4,000 where a step is repeated


class Group(NamedTuple):
    """Rows that were measured one after the other, and the cores' distance just before."""

    title: str
    ping_pong_ns: float
    rows: list[Row]


def facts(machine: Machine, asked: Asked) -> dict[str, Any]:
    """The machine's ceilings and the choices made."""
    return {
        "isa": asked.isa,
        "threads": asked.threads,
        "weights": asked.weights,
        "peak_gflops": machine.peak() / 1e9,
        "memory_gbytes_s": machine.memory() / 1e9,
        "l2_gbytes_s": machine.cache() / 1e9,
        "ping_pong_ns": machine.ping_pong_ns(),
    }


def measure(asked: Asked, machine: Machine) -> Iterator[Group]:
    """All groups.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: its context is too short for the prompts.
    """
    model = load_model(asked.model or DEFAULT_MODEL)
    if model.spec.context_length < LEAST_CONTEXT:
        raise ConfigError(
            f"the model's context holds {model.spec.context_length:,} tokens, but the prompts of"
            f" this benchmark need {LEAST_CONTEXT:,}",
            hint="measure with another model",
        )
    at = _setting(asked, machine, model)
    longest = min(2000 if asked.quick else 8000, model.spec.context_length - 64)
    products: list[Row] = []

    def gemm() -> Iterator[Row]:
        for row in gemm_rows(machine, model, asked.repeats):
            products.append(row)
            yield row

    name, threads = asked.model or DEFAULT_MODEL, asked.threads
    groups: list[tuple[str, Callable[[], Iterable[Row]]]] = [
        (
            "load",
            lambda: load_rows(name, asked.weights, asked.isa, threads, asked.repeats),
        ),
        ("products, bf16", gemm),
        ("attention", lambda: attention_rows(machine, asked.repeats)),
        ("sampling, over greedy", lambda: sampling_rows(machine, model, asked.repeats)),
        ("decode", lambda: decode_rows(at)),
        ("prefill", lambda: prefill_rows(at)),
        ("chunks cost nothing", lambda: chunk_rows(at, longest)),
        ("decodes beside a chunk", lambda: mixed_rows(at, _gemm_rate(products))),
        ("steadiness", lambda: steadiness_rows(at)),
        ("Python", lambda: python_rows(at, threads)),
        (
            "a long prompt among streams",
            lambda: stall_rows(at, asked.model, threads, 2000 if asked.quick else 4000),
        ),
    ]
    for title, rows in groups:
        yield Group(title, machine.ping_pong_ns(), list(rows()))
    at.load.runner.close()


def _setting(asked: Asked, machine: Machine, model: Model) -> Setting:
    runner = NativeRunner(
        model,
        num_blocks=NUM_BLOCKS,
        weights=asked.weights,
        isa=asked.isa,
        num_threads=asked.threads,
    )
    return Setting(machine, model, Load(runner, NUM_BLOCKS), asked.weights, asked.repeats)


def _gemm_rate(products: Iterable[Row]) -> float:
    """Operations a second of the products of 256 rows, the slowest of them."""
    return min(row.measured * 1e9 for row in products if row.what.endswith(" 256 rows"))
