"""Tells the scheduler of Linux which threads want to run soon and which want to run for long.

While a step computes, every core is busy. A thread that wakes up to write a token has done little, but
the kernel still lets the computing thread finish its slice first, up to 3 ms. A thread may ask for
another slice (Linux 6.12, sched_setattr(2): `sched_runtime` of an ordinary thread); one with a shorter
slice interrupts one with a longer slice at once. Shares of the processor stay as they are, so it needs
no privilege and costs nobody anything. Where the kernel does not know this, nothing happens.

In: a wish, for the calling thread; threads that it starts inherit it. Out: nothing.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading

SOON_S = 0.0001  # the shortest that the kernel grants
LONG_S = 0.02  # about a step
USUAL_S = 0.0  # whatever the kernel gives everybody

_NUMBERS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_ORDINARY = (0, 3)  # SCHED_OTHER, SCHED_BATCH


class _Attributes(ctypes.Structure):
    """`struct sched_attr`, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def ask_for(slice_s: float) -> bool:
    """Ask for a slice for the calling thread; whether the kernel took it."""
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    found = _read(threading.get_native_id())
    if numbers is None or found is None or found.policy not in _ORDINARY:
        return False
    found.size = ctypes.sizeof(found)
    found.runtime_ns = round(slice_s * 1e9)
    return _syscall(numbers[0], 0, found, 0) == 0


def slice_of(thread_id: int) -> float | None:
    """The slice of a thread, in seconds; None where the kernel does not tell."""
    found = _read(thread_id)
    if found is None or found.policy not in _ORDINARY or not found.runtime_ns:
        return None
    return float(found.runtime_ns) / 1e9


def _read(thread_id: int) -> _Attributes | None:
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    found = _Attributes()
    if numbers is None or _syscall(numbers[1], thread_id, found, ctypes.sizeof(found), 0):
        return None
    return found


def _syscall(number: int, thread_id: int, attributes: _Attributes, *more: int) -> int:
    return int(ctypes.CDLL(None).syscall(number, thread_id, ctypes.byref(attributes), *more))
