"""Every error and every problem that a user can see.

    TraceLensError            anything a user can act on; ends the command with exit code 2
    ├── InputError            a path, file or trace that can't be read
    ├── UsageError            options that contradict one another or lack something
    ├── ModelError            a model or layout that can't be
    └── MissingExtraError     a command whose optional dependency is not installed

A `Problem` is odd input that did not stop us: it travels with the result and is always reported.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TraceLensError(Exception):
    """Something the user can act on.

    Args:
        message: what was wrong and where (file, rank, byte offset), without a final period.
        hint: what to do about it, printed on a line of its own.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # keyword-only arguments do not survive the default pickling, and worker processes raise these
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[TraceLensError], message: str, hint: str | None) -> TraceLensError:
    return cls(message, hint=hint)


class InputError(TraceLensError):
    """A path, file or trace that can't be read."""


class UsageError(TraceLensError):
    """Options that contradict one another or lack something."""


class ModelError(TraceLensError):
    """A model or a layout that can't be."""


class MissingExtraError(TraceLensError):
    """A command whose optional dependency is not installed."""

    @classmethod
    def for_extra(cls, extra: str, *, what: str) -> MissingExtraError:
        """Build the one message for a missing extra, such as `torch`."""
        # the package of our name on PyPI is another one
        return cls(f"{what} needs the extra `{extra}`", hint=f'in the clone: pip install ".[{extra}]"')


class Severity(StrEnum):
    """How much a problem or a finding matters."""

    info = "info"
    warning = "warning"
    error = "error"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Odd input that did not stop us."""

    code: str
    """Stable word for the kind of problem, such as `events-duplicated`."""
    severity: Severity
    message: str
    file: str | None = None
    rank: int | None = None
