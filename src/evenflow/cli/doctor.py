"""`evenflow doctor`: what this machine has, and what the engine would choose on it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.errors import ConfigError


def doctor(
    *,
    machine: Annotated[
        bool, typer.Option("--machine", help="Processor, memory, instruction sets, runner.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print what was found on this machine, what would be chosen, and why."""
    if not machine:
        raise ConfigError("nothing to look at was named", hint="try `evenflow doctor --machine`")
    found = examine_machine()
    if json:
        import orjson  # noqa: PLC0415 - keeps --version and --help quick

        sys.stdout.write(orjson.dumps(found).decode() + "\n")
        return
    width = max(map(len, found))
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"{name.ljust(width)}  {shown if shown != '' else '-'}")


def examine_machine() -> dict[str, Any]:
    """Facts about the machine and the choices that follow from them, by name."""
    import psutil  # noqa: PLC0415 - keeps --version and --help quick

    from evenflow.memory import free_memory_bytes  # noqa: PLC0415 - as above
    from evenflow.model.families import FAMILIES  # noqa: PLC0415 - as above

    facts: dict[str, Any] = {
        "processor": _processor(),
        "architecture": platform.machine(),
        "cores": f"{psutil.cpu_count(logical=False)} physical, {psutil.cpu_count()} logical",
        "usable here": f"{len(os.sched_getaffinity(0))} logical by affinity",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB, "
        f"{free_memory_bytes() / 2**30:.1f} GiB free to this process",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "model families": [family.name for family in FAMILIES],
    }
    try:
        from evenflow import _native  # noqa: PLC0415 - absent where there was no compiler
    except ImportError as error:
        return facts | {
            "native runner": f"not built: {error}",
            "instruction sets": [],
            "chosen runner": "reference",
            "why": "the install found no C++20 compiler that works",
        }
    sets = list(_native.runnable_isas())
    return facts | {
        "native runner": "built",
        "instruction sets": sets,
        "chosen runner": "native",
        "chosen instruction set": sets[0],
        "chosen threads": _native.usable_cores(),
        "why": "the fastest that this machine runs; --runner, --isa and --threads force others",
    }


def _processor() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"model name", "Model"} and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
