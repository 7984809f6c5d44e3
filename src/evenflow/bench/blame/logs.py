"""Reads the lines in which other engines' logs speak of their steps.

Known are vLLM's `--enable-logging-iteration-details`, SGLang's "Prefill batch" and "Decode batch",
and llama.cpp's slot timings. Every other line is counted and left alone; a line that begins like a
known one but does not go on like it is counted as unrecognised. In: text. Out: what it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

VLLM = re.compile(
    r"Iteration\((?P<number>\d+)\): (?P<prompts>\d+) context requests, "
    r"(?P<tokens>\d+) context tokens, (?P<decodes>\d+) generation requests, "
    r"\d+ generation tokens, iteration elapsed time: (?P<ms>[\d.]+) ms"
)
PREFILL = re.compile(r"Prefill batch.*?, #new-seq: (?P<prompts>\d+), #new-token: (?P<tokens>\d+),")
DECODE = re.compile(r"Decode batch.*?, #running-req: (?P<decodes>\d+),")
RETRACT = re.compile(r"KV cache pool is full\. Retract requests\.")
SLOT = re.compile(r"prompt eval time\s*=\s*(?P<ms>[\d.]+) ms\s*/\s*(?P<tokens>\d+) tokens")
SLOT_OTHER = re.compile(r"(?<!prompt )\b(eval|total) time\s*=\s*[\d.]+ ms\s*/\s*\d+ (tokens|runs)")
BEGINNINGS = ("Iteration(", "Prefill batch", "Decode batch", "prompt eval time")
# 2026-11-30 12:00:01.250 (SGLang; the fraction may lack) or 11-30 12:00:01 (vLLM)
STAMP = re.compile(
    r"(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d) "
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<ms>\d{3}))?"
)
ENGINE = re.compile(r"EngineCore_DP\d+|Engine \d{3}|\bDP\d+ TP")


class LogStep(NamedTuple):
    """A step as a log tells it.

    `stamp_s` is the line's time in seconds since 1970, read as if it were UTC; `precise` says that
    it has a fraction. vLLM writes the line after the step, SGLang before it.
    """

    kind: str  # "mixed", "prefill", "decode", "retract"
    stamp_s: float | None
    precise: bool
    ms: float | None
    prompt_tokens: int
    num_decodes: int | None
    line: int


class SlotTiming(NamedTuple):
    """The prefill of one request, as llama.cpp tells it when the request ends."""

    ms: float
    tokens: int
    line: int


@dataclass(slots=True)
class EngineLog:
    """What a log says of steps, and how much of it was understood."""

    engine: str = ""  # "vllm", "sglang", "llama.cpp"; "" when nothing was known
    steps: list[LogStep] = field(default_factory=list)
    slots: list[SlotTiming] = field(default_factory=list)
    num_lines: int = 0
    num_other: int = 0
    unrecognised: list[int] = field(default_factory=list)
    engines_seen: set[str] = field(default_factory=set)

    def words(self) -> str:
        """How much was understood, in one line."""
        what = f"{len(self.steps):,} steps" if self.steps else f"{len(self.slots):,} slot timings"
        odd = ""
        if self.unrecognised:
            odd = (
                f"; {len(self.unrecognised):,} lines look like one but are not in the known form "
                f"(the first is line {self.unrecognised[0]:,})"
            )
        engine = self.engine or "no known engine"
        return f"log of {engine}: {self.num_lines:,} lines, {what}, {self.num_other:,} others{odd}"


def parse_log(lines: Iterable[str], year: int) -> EngineLog:
    """Read a log; `year` is for stamps without one."""
    log = EngineLog()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        log.num_lines += 1
        if _vllm(log, line, number, year) or _sglang(log, line, number, year):
            continue
        if match := SLOT.search(line):
            log.engine = "llama.cpp"
            log.slots.append(SlotTiming(float(match["ms"]), int(match["tokens"]), number))
        elif SLOT_OTHER.search(line) and log.engine == "llama.cpp":
            continue
        elif any(beginning in line for beginning in BEGINNINGS):
            log.unrecognised.append(number)
        else:
            log.num_other += 1
    return log


def _vllm(log: EngineLog, line: str, number: int, year: int) -> bool:
    match = VLLM.search(line)
    if match is None:
        return False
    log.engine = "vllm"
    _note_engine(log, line)
    if line.rstrip().endswith("(dummy)") or "ms (dummy)" in line:
        log.num_other += 1  # data parallel ranks without work keep step
        return True
    stamp_s, precise = _stamp(line, year)
    tokens, decodes = int(match["tokens"]), int(match["decodes"])
    step = LogStep("mixed", stamp_s, precise, float(match["ms"]), tokens, decodes, number)
    log.steps.append(step)
    return True


def _sglang(log: EngineLog, line: str, number: int, year: int) -> bool:
    stamp = _stamp(line, year)
    if match := PREFILL.search(line):
        step = LogStep("prefill", *stamp, None, int(match["tokens"]), None, number)
    elif match := DECODE.search(line):
        step = LogStep("decode", *stamp, None, 0, int(match["decodes"]), number)
    elif RETRACT.search(line):
        step = LogStep("retract", *stamp, None, 0, None, number)
    else:
        return False
    log.engine = "sglang"
    _note_engine(log, line)
    log.steps.append(step)
    return True


def _note_engine(log: EngineLog, line: str) -> None:
    match = ENGINE.search(line)
    log.engines_seen.add(match[0] if match else "")


def _stamp(line: str, year: int) -> tuple[float | None, bool]:
    """The first time in a line, as if it were UTC."""
    match = STAMP.search(line)
    if match is None:
        return None, False
    month, day, hour, minute, second = (int(match[n]) for n in ("month", "day", "h", "m", "s"))
    try:
        when = datetime(int(match["year"] or year), month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None, False
    return when.timestamp() + int(match["ms"] or 0) / 1e3, match["ms"] is not None
