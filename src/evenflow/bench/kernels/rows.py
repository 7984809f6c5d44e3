"""One figure against its limit, and the targets that are set for a machine of 1,050 GFLOP/s."""

from __future__ import annotations

from typing import Any, NamedTuple

TARGET_MACHINE_GFLOPS = 1050.0  # where the targets in milliseconds were set; they scale by the peak


class Row(NamedTuple):
    """`measured` against `ceiling`, both in `unit`.

    Rates are to come close to a ceiling from below, so `target` is the least ratio. Where
    `at_most`, both are times (or ratios of times) and `target` is the largest ratio.
    """

    what: str
    unit: str
    ceiling: float
    measured: float
    target: float | None = None
    at_most: bool = False

    @property
    def ratio(self) -> float:
        """Measured over ceiling."""
        return self.measured / self.ceiling

    @property
    def reached(self) -> bool | None:
        """Whether the target was met; None without one."""
        if self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def as_json(self) -> dict[str, Any]:
        """The row for programs."""
        return self._asdict() | {"ratio": self.ratio, "reached": self.reached}
