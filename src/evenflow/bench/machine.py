"""What a figure was measured on, in a few plain values."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory and versions; nothing that names the machine or its owner."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    """As the kernel prints it; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
