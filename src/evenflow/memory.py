"""How much memory this process may still take: the machine's, or what its control group leaves.

In a container the machine's free memory says little: a control group (cgroup) stops the process
long before. Reads files only; `root` lets a test bring its own.
"""

from __future__ import annotations

from pathlib import Path

import psutil

UNLIMITED = 2**60  # version 1 writes a number near 2**63 where there is no limit


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken now: the least of what the machine and each control group leave.

    Pages of files that the kernel may drop count as free, as they do in the machine's own figure.
    """
    return min([psutil.virtual_memory().available, *_group_rooms(root)])


def _group_rooms(root: Path) -> list[int]:
    """What each control group of this process leaves; empty where none has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # inside a container the path may be that of the host, where only the base can be seen
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            room = _room(base.joinpath(*parts[:depth]), limit, usage)
            if room is not None:
                rooms.append(room)
    return rooms


def _room(group: Path, limit_name: str, usage_name: str) -> int | None:
    """What one group leaves of its limit; None where it has none."""
    try:
        limit = (group / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= UNLIMITED:
            return None
        used = int((group / usage_name).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    droppable = int(stat.get("inactive_file") or stat.get("total_inactive_file") or 0)
    return max(0, int(limit) - max(0, used - droppable))
