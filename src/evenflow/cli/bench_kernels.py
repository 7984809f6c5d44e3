"""`evenflow bench kernels`: what the native runner reaches of what the machine allows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from evenflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from evenflow.bench.kernels.run import Group

WEIGHTS = ("auto", "bf16", "int8", "int4", "f32")


def kernels(
    *,
    model: Annotated[
        str | None,
        typer.Option(help="smollm2, random:SHAPE, a .gguf file or a Hugging Face folder."),
    ] = None,
    weights: Annotated[str, typer.Option(help=f"Format of the weights: {', '.join(WEIGHTS)}.")] = (
        "bf16"
    ),
    threads: Annotated[int | None, typer.Option(help="Compute threads; else the cores.")] = None,
    isa: Annotated[
        str, typer.Option(help="The instruction set; else the machine's best.")
    ] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Each figure is the best of so many.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Prompts of 2,000 tokens in place of 8,000 and 4,000.")
    ] = False,
) -> None:
    """Time kernels and whole steps against the machine's limits, measured beside each figure.

    Prints a table for each group and one JSON object on the last line. Takes minutes.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"--weights is {weights!r}", hint=f"it is one of {', '.join(WEIGHTS)}")
    try:
        from evenflow import _native  # noqa: PLC0415 - absent where there was no compiler
    except ImportError as e:
        raise ConfigError(
            f"there are no native kernels here: {e}",
            hint="install again where a C++20 compiler is found",
        ) from e
    from evenflow.bench.kernels.limits import Machine  # noqa: PLC0415 - needs them
    from evenflow.bench.kernels.run import Asked, facts, measure  # noqa: PLC0415 - as above

    known = _native.runnable_isas()
    if isa not in ("auto", *known):
        raise ConfigError(
            f"instruction set {isa!r} cannot be run here",
            hint=f"this machine runs {', '.join(known)}",
        )
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads is {threads}", hint="one thread is the least")
    chosen = known[0] if isa == "auto" else isa
    asked = Asked(model, weights, chosen, threads or _native.usable_cores(), repeats, quick)
    machine = Machine(asked.isa, asked.threads)
    show(facts(machine, asked), measure(asked, machine))


def show(about: dict[str, Any], groups: Iterable[Group]) -> None:
    """Print each group when it is there, and everything as JSON at the end."""
    import orjson  # noqa: PLC0415 - keeps --help quick

    from evenflow.bench.show import wide_console  # noqa: PLC0415 - as above

    console = wide_console()
    for name, value in about.items():
        console.print(
            f"{name:<16} {value:.1f}" if isinstance(value, float) else f"{name:<16} {value}"
        )
    rows = []
    for group in groups:
        console.print(table(group))
        rows += [
            {"group": group.title, "ping_pong_ns": group.ping_pong_ns} | row.as_json()
            for row in group.rows
        ]
    sys.stdout.write(orjson.dumps({"machine": about, "rows": rows}).decode() + "\n")


def table(group: Group) -> Table:
    """A group's rows: ceiling, measured, ratio, target."""
    from rich import box  # noqa: PLC0415 - keeps --help quick
    from rich.table import Table  # noqa: PLC0415 - as above

    title = f"{group.title} (ping-pong {group.ping_pong_ns:.0f} ns)"
    made = Table(title=title, title_justify="left", box=box.SIMPLE, min_width=110)
    made.add_column("", min_width=52)
    for name in ("ceiling", "measured", "", "ratio", "target"):
        made.add_column(name, justify="left" if name == "" else "right")
    for row in group.rows:
        ratio = f"{row.ratio:.3f}" if row.at_most else f"{row.ratio:.0%}"
        style = {None: "", True: "green", False: "red"}[row.reached]
        target = ""
        if row.target is not None:
            target = f"<= {row.target:.2f}" if row.at_most else f">= {row.target:.0%}"
        made.add_row(
            row.what,
            f"{row.ceiling:,.1f}",
            f"{row.measured:,.1f}",
            row.unit,
            f"[{style}]{ratio}[/]" if style else ratio,
            target,
        )
    return made


class BenchCommand(TyperCommand):
    """`bench`, whose first word may be `kernels`: a command of its own, with its own flags."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """As always, or the other command's."""
        if args[:1] != ["kernels"]:
            return super().make_context(info_name, args, parent, **extra)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(kernels)
        command = typer.main.get_command(app)
        return command.make_context(f"{info_name} kernels", args[1:], parent, **extra)
