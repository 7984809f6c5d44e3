"""From files to what blame needs: the records of a run, and the evidence of a server.

In: paths. Out: records and evidence. The only module of blame that reads files.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from evenflow.bench.blame.columns import parse_columns, read_table
from evenflow.bench.blame.logged import LogEvidence
from evenflow.bench.blame.logs import parse_log
from evenflow.bench.blame.steps import StepEvidence, records_of
from evenflow.bench.imports import CHAT_NOTE, load_records
from evenflow.bench.validity import cached_prompts
from evenflow.errors import ConfigError, RecordError
from evenflow.trace import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from evenflow.bench.blame.evidence import Evidence
    from evenflow.bench.records import Records

TRACE_MARK = b'"evenflow_trace"'


class Source(NamedTuple):
    """What there is to judge."""

    records: Records
    evidence: Evidence | None


class SourceOptions(NamedTuple):
    """How to read it.

    Attributes:
        file_format: of the records, or "auto".
        columns: a column map for a table, such as "stream=id,time=ts"; "" for none.
        unit: of a table's times.
        steps: a trace of our engine that was recorded during the run.
        log: a log of vLLM, SGLang or llama.cpp from during the run.
    """

    file_format: str = "auto"
    columns: str = ""
    unit: str = "s"
    steps: Path | None = None
    log: Path | None = None


def load_source(path: Path, options: SourceOptions) -> Source:
    """Read a run and its evidence.

    Raises:
        RecordError, TraceError: a file cannot be read or understood.
        ConfigError: options that contradict each other.
    """
    if options.steps is not None and options.log is not None:
        raise ConfigError("--steps and --log are both given", hint="leave one of the two out")
    if options.columns:
        records = read_table(path, parse_columns(options.columns), options.unit)
    elif _is_trace(path):
        if options.steps is not None:
            raise ConfigError(f"{path} is a trace itself", hint="leave --steps out")
        trace = read_trace(path)
        return Source(records_of(trace), StepEvidence(trace))
    else:
        records = load_records(path, options.file_format)
        _drop_role_messages(records)
        records.problems += cached_prompts(records)
    return Source(records, load_evidence(records, options))


def _drop_role_messages(records: Records) -> None:
    """Take the first message off every stream of a chat that was recorded by vLLM's client.

    That client books the role-only message as the first token. Without it the first gap, which holds
    the rest of the prompt's prefill, is no stall, and the prefill's window ends where it did. Where
    the message was a token after all, one decode step is lost.
    """
    if not any(CHAT_NOTE in problem for problem in records.problems):
        return
    for request in records.requests:
        if len(request.messages) > 1:
            request.messages = request.messages[1:]
    records.problems.append("so the first message of every stream was taken for the role-only one")


def load_evidence(records: Records, options: SourceOptions) -> Evidence | None:
    """The evidence of the server, where some was named.

    Raises:
        RecordError, TraceError: its file cannot be read or understood.
    """
    if options.steps is not None:
        trace = read_trace(options.steps)
        records.problems += trace.problems
        return StepEvidence(trace)
    if options.log is None:
        return None
    began = float(records.header.get("started_unix_s") or 0.0)
    try:
        text = options.log.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise RecordError(
            f"cannot read {options.log}: {e.strerror}", hint="give the path of a server's log"
        ) from e
    return LogEvidence(parse_log(text.splitlines(), time.gmtime(began).tm_year))


def _is_trace(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return TRACE_MARK in file.readline(4096)
    except OSError as e:
        raise RecordError(
            f"cannot read {path}: {e.strerror}",
            hint="give a file of records or of another client, or a server's URL",
        ) from e
