"""`evenflow demo`: the stall that a long prompt causes, and its cure, on a real model."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.cli import demo_view
from evenflow.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evenflow.bench.equality import Equality
    from evenflow.bench.stall import StallPrompts, StallRun, StallShape

MAX_PLOT_WIDTH = 140
QUICK_TOKENS, FULL_TOKENS = 2048, 6144  # of the long prompt


def demo(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A shorter prompt: a minute or less on two cores.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The figures as one JSON object.")] = False,
    model: Annotated[
        str, typer.Option(help="smollm2, random:SHAPE, a .gguf file, or a Hugging Face folder.")
    ] = "smollm2",
    runner: Annotated[
        str, typer.Option(help="What computes the steps: auto, native or reference.")
    ] = "auto",
    streams: Annotated[int, typer.Option(min=1, max=256, help="Streams that generate.")] = 8,
    long_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="Length of the prompt that lands: 6,144, or 2,048 with --quick."),
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=2, help="The budget of a step, in the run with chunking on.")
    ] = 128,
    trace: Annotated[
        Path | None, typer.Option(help="Folder for the step records of both runs.")
    ] = None,
) -> None:
    """Show what a long prompt does to running streams: chunking off, then on.

    Streams generate while a long prompt lands. The whole experiment runs twice and the figures,
    a plot and a check that both runs gave the same tokens are printed.
    """
    from evenflow.bench import stall  # noqa: PLC0415 - keeps --version and --help quick

    shape = stall.StallShape(
        num_streams=streams,
        stream_prompt_tokens=32,
        lead_tokens=8,
        long_tokens=long_tokens or (QUICK_TOKENS if quick else FULL_TOKENS),
        long_output_tokens=4,
        budget=max_num_batched_tokens,
    )
    folder = trace or Path("runs") / "demo"
    _make(folder)
    _warn_if_busy()
    off, prompts = _run(model, runner, shape, folder, chunked=False)
    on, _ = _run(model, runner, shape, folder, chunked=True)
    equality = _compare(model, prompts, off, on)
    _report(shape, off, on, equality, folder, json=json)
    if not equality.holds:
        raise typer.Exit(1)


def _make(folder: Path) -> None:
    """Make the folder for the records first: an experiment must not fail when it is over."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise TraceError(
            f"cannot make the folder {folder}: {e.strerror}", hint="choose another with --trace"
        ) from e


def _warn_if_busy() -> None:
    """Figures of a machine that has other work mean less; say so before they are made."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        print(
            f"warning: the machine is busy (load {load:.1f} on {cores} cores): the figures will "
            "be noisy, and all takes longer",
            file=sys.stderr,
        )


def _run(
    model: str, runner: str, shape: StallShape, folder: Path, *, chunked: bool
) -> tuple[StallRun, StallPrompts]:
    from evenflow import LLM  # noqa: PLC0415 - keeps --version and --help quick
    from evenflow.bench import stall  # noqa: PLC0415 - as above
    from evenflow.trace import TraceWriter  # noqa: PLC0415 - as above

    title = demo_view.ON if chunked else demo_view.OFF
    options: dict[str, Any] = shape.options(chunked=chunked)
    with LLM(model, runner=runner, **options) as llm:
        for warning in llm.config.warnings if not chunked else ():  # the same for both runs
            print(f"warning: {warning}", file=sys.stderr)
        stall.check_shape(shape, llm.model.spec.context_length)
        prompts = stall.real_prompts(llm.tokenizer, shape)
        with demo_view.live(title, shape) as watch:
            run = stall.run_stall(llm.engine, prompts, shape, watch)
    path = folder / f"{title.replace(' ', '-')}.jsonl"
    with TraceWriter(path, header={"config": run.config, "shape": shape._asdict()}) as writer:
        for step in run.steps:
            writer.step(step)
        for request in (*run.streams, run.long):
            writer.request(request)
    return run, prompts


def _compare(model: str, prompts: StallPrompts, off: StallRun, on: StallRun) -> Equality:
    from evenflow.bench import equality  # noqa: PLC0415 - keeps --version and --help quick
    from evenflow.model.load import load_model  # noqa: PLC0415 - as above

    prompt_ids = dict(zip(off.tokens, (*prompts.streams, prompts.long), strict=True))

    def margin(name: str, output: Sequence[int]) -> float:
        if off.config["runner"] != "reference":
            return math.inf  # the same bits are promised: no tie excuses a difference
        return equality.reference_margin(load_model(model), [*prompt_ids[name], *output])

    return equality.compare(off.tokens, on.tokens, margin)


def _report(
    shape: StallShape,
    off: StallRun,
    on: StallRun,
    equality: Equality,
    folder: Path,
    *,
    json: bool,
) -> None:
    from evenflow.bench import stall_report  # noqa: PLC0415 - keeps --version and --help quick

    left, right = stall_report.summarize(off), stall_report.summarize(on)
    if json:
        import orjson  # noqa: PLC0415 - as above

        data = stall_report.as_data(shape, left, right, equality)
        data["records"] = str(folder)
        print(orjson.dumps(data).decode())
        return
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console(highlight=False)
    console.print(demo_view.table(left, right))
    width = min(console.width, MAX_PLOT_WIDTH)
    print(demo_view.plot(left, right, width=width, colour=sys.stdout.isatty()))
    console.print()
    console.print(stall_report.verdict(left, right, shape.long_tokens))
    console.print(stall_report.equality_words(equality))
    for caution in stall_report.cautions(left, right):
        console.print(f"caution: {caution}")
    console.print(f"step records: {folder}")
