"""A workload: every request with its moment and its sizes, before any of it is sent.

A prompt is a list of segments, each a seed and a length in tokens: equal segments are equal text,
so shared prefixes and the block hashes of a trace need no text in the file. A workload is saved as
lines of JSON and drives any engine; with the word rate in its header the text is the same too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from evenflow.errors import RecordError

if TYPE_CHECKING:
    import os

WORKLOAD_VERSION = 1
NUM_SEEDS = 2**31
STRIDE = 0x9E3779B1  # odd: spreads neighbouring numbers over all seeds


class Segment(NamedTuple):
    """A piece of a prompt: the text that `seed` stands for, `tokens` long."""

    seed: int
    tokens: int


@dataclass(slots=True, kw_only=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        id: unique in the workload.
        class_name: its class, such as "short".
        at_s: when to send it, from the start of the run; None: when a place is free (closed loop),
            or, for a later turn, `think_s` after the turn before.
        segments: the prompt; in a later turn what the user adds.
        output_tokens: to ask for.
        text: the prompt itself, where the data came with text; then `segments` only tells its size.
        session: the conversation, "" for none; `turn` counts from 0.
        think_s: pause of the user before a later turn.
        after_ready: `at_s` counts from the moment when every stream is decoding.
        steady: started again whenever it ends, until everything else is done.
    """

    id: str
    class_name: str = "default"
    at_s: float | None = None
    segments: list[Segment] = field(default_factory=list)
    output_tokens: int = 128
    text: str = ""
    session: str = ""
    turn: int = 0
    think_s: float = 0.0
    after_ready: bool = False
    steady: bool = False

    @property
    def prompt_tokens(self) -> int:
        """How long its own part of the prompt should be."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(slots=True)
class Workload:
    """All requests, in the order in which they are to be sent, and how they were made."""

    requests: list[PlannedRequest]
    header: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        """Whether requests wait for a place instead of for a moment."""
        return all(r.at_s is None for r in self.requests if not r.turn)

    @property
    def has_streams(self) -> bool:
        """Whether there are steady streams."""
        return any(r.steady for r in self.requests)

    @property
    def rate(self) -> float | None:
        """Requests a second over the schedule; None for a closed loop or a single moment."""
        times = [r.at_s for r in self.requests if r.at_s is not None and not r.turn]
        if len(times) < 2 or max(times) <= min(times):
            return None
        return (len(times) - 1) / (max(times) - min(times))

    def anew(self, number: int) -> Workload:
        """The same moments and sizes with other words; what was shared is shared, 0 changes nothing.

        A server that has seen a prompt answers from its prefix cache when it comes again.
        """
        if not number:
            return self

        def other(request: PlannedRequest) -> PlannedRequest:
            segments = [
                Segment((s.seed + number * STRIDE) % NUM_SEEDS, s.tokens) for s in request.segments
            ]
            text = f"({number}) {request.text}" if request.text else ""
            return replace(request, segments=segments, text=text)

        return replace(self, requests=[other(r) for r in self.requests])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file.

        Raises:
            RecordError: the file cannot be written.
        """
        head = {"evenflow_workload": WORKLOAD_VERSION, **self.header}
        lines = [head, *({"request": r} for r in self.requests)]
        data = b"".join(orjson.dumps(x, tuple, orjson.OPT_APPEND_NEWLINE) for x in lines)
        try:
            Path(path).write_bytes(data)
        except OSError as e:
            raise RecordError(
                f"cannot write {path}: {e.strerror}",
                hint="choose a file in a folder that you may write",
            ) from e


def load_workload(path: str | os.PathLike[str]) -> Workload:
    """Read a workload that was saved.

    Raises:
        RecordError: it cannot be read, is no workload, or is of another version.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as e:
        raise RecordError(f"cannot read {path}: {e.strerror}", hint="give a workload file") from e
    try:
        header = orjson.loads(lines[0]) if lines else {}
        version = header.pop("evenflow_workload")
        requests = [_planned(orjson.loads(line)["request"]) for line in lines[1:]]
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise RecordError(
            f"{path} is no workload: {e}", hint="`evenflow bench` saves one beside its records"
        ) from e
    if version != WORKLOAD_VERSION:
        raise RecordError(
            f"{path} is a workload of version {version}, but this evenflow reads version "
            f"{WORKLOAD_VERSION}",
            hint="draw it again with this version",
        )
    return Workload(requests, header)


def _planned(value: dict[str, Any]) -> PlannedRequest:
    known = {f.name for f in fields(PlannedRequest)}
    planned = PlannedRequest(**{k: v for k, v in value.items() if k in known})
    planned.segments = [Segment(*s) for s in planned.segments]
    return planned
