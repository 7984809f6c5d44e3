"""The `evenflow` command: registers the commands and turns every outcome into an exit code.

Data goes to stdout, words to stderr. Exit codes: 0 done, 1 failed, 2 bad arguments, 130 stopped by
Ctrl-C. What a person did wrong gets one `error:` line and a `hint:`; EVENFLOW_DEBUG=1 adds the
traceback. Commands import what is heavy only when they run, so that `evenflow --version` is quick.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from evenflow.cli import (
    bench,
    blame,
    compare,
    demo,
    doctor,
    generate,
    pull,
    report,
    serve,
    sweep,
)
from evenflow.cli.bench_kernels import BenchCommand
from evenflow.errors import ConfigWarning, EvenflowError
from evenflow.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

# typer bundles click since 0.20; this class is the public way to click's base of usage errors
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="evenflow",
    help="An LLM server whose token streams stay even while long prompts land.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        print(f"evenflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version_flag: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An LLM server whose token streams stay even while long prompts land."""


app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("pull")(pull.pull)
app.command("doctor")(doctor.doctor)
app.command("bench", cls=BenchCommand)(bench.bench)
app.command("sweep")(sweep.sweep)
app.command("compare")(compare.compare)
app.command("blame")(blame.blame)
app.command("report")(report.report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
        arguments: without the program's name; None takes them from the process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    _open_missing_streams()
    try:
        command = typer.main.get_command(app)
        with warnings.catch_warnings(), command.make_context("evenflow", given) as context:
            warnings.simplefilter("ignore", ConfigWarning)  # the commands print them in full
            command.invoke(context)
        sys.stdout.flush()
    except BrokenPipeError as e:
        if not _reader_has_gone():  # some other pipe or connection: not to be passed over
            return _fail(f"a connection broke: {e}", "EVENFLOW_DEBUG=1 shows where it happened", 1)
        _mute()  # whoever read our output has gone: that is its right, and no error of ours
        return 0
    except OSError as e:  # a full disk under stdout, or a file that was there a moment ago
        _mute()
        where = f"{e.filename}: " if e.filename is not None else ""
        return _fail(f"{where}{e.strerror or e}", "EVENFLOW_DEBUG=1 shows where it happened", 1)
    except typer.Exit as e:
        return e.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("stopped", file=sys.stderr)
        return 130
    except EvenflowError as e:
        return _fail(e.message, e.hint, e.exit_code)
    except UsageError as e:
        return _fail_usage(e)
    return 0


def _open_missing_streams() -> None:
    """Python has None for a standard stream that was closed before the start, as by `>&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - until the exit
            setattr(sys, name, stream)


def _reader_has_gone() -> bool:
    """Whether nobody can read our stdout any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # something without a descriptor: then it was stdout that broke
        return True
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _mute() -> None:
    """Send stdout nowhere, or the interpreter would fail on it once more at its exit."""
    with suppress(OSError, ValueError):  # stdout may be something without a descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, hint: str, exit_code: int) -> int:
    if os.environ.get("EVENFLOW_DEBUG") == "1":
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return exit_code


def _fail_usage(error: BaseException) -> int:
    """A wrong flag or argument; with no arguments at all click raises its help as an error."""
    context = getattr(error, "ctx", None)
    message = str(getattr(error, "format_message", lambda: error)())
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 0
    path = context.command_path if context is not None else "evenflow"
    return _fail(message[:1].lower() + message[1:].rstrip("."), f"see `{path} --help`", 2)
