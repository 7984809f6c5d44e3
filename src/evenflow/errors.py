"""One tree for everything that can go wrong, so that a caller catches it in one place.

An error states the fact with both numbers; `hint` says what to do next. `http_status` is what a
server answers and `exit_code` what a command returns: 2 for a bad argument, 1 for a failure.
"""

from __future__ import annotations


class ConfigWarning(UserWarning):
    """What a person should know about the options that an engine was made with.

    `LLM` warns once for each entry of `EngineConfig.warnings`; the commands print them instead.
    """


class EvenflowError(Exception):
    """Base of all errors that evenflow raises on purpose.

    Args:
        message: the fact, in one line, with the numbers that clash.
        hint: the next step for the person who reads it; may be empty.
    """

    http_status = 500
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[EvenflowError], message: str, hint: str) -> EvenflowError:
    return cls(message, hint=hint)


class ConfigError(EvenflowError):
    """An engine option that is unknown, out of range, or contradicts another."""

    http_status = 400
    exit_code = 2


class InvalidRequestError(EvenflowError):
    """A request that cannot be served as it is: bad prompt, bad sampling value."""

    http_status = 400
    exit_code = 2


class UnsupportedError(InvalidRequestError):
    """Something that exists elsewhere but not here; refused rather than ignored."""


class ModelError(EvenflowError):
    """A model file or folder that is missing, broken, or of an unknown kind."""


class RunnerError(EvenflowError):
    """A runner that cannot start or failed in a step."""


class EngineClosedError(EvenflowError):
    """The engine was closed, or died, before the request could be served."""

    http_status = 503


class QueueFullError(EvenflowError):
    """The bounded queue has no room for another request."""

    http_status = 429


class TraceError(EvenflowError):
    """A trace file that cannot be read or written, or is of another version."""


class RecordError(EvenflowError):
    """A file of records, results or a workload that cannot be read, written or understood."""

    exit_code = 2


class TargetError(EvenflowError):
    """A server under test that cannot be reached, refuses us, or does not start."""


class InvalidRunError(EvenflowError):
    """A measurement that must not be trusted, and the caller asked to be strict about it."""

    exit_code = 3
