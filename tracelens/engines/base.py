"""What an engine is: something that runs one function over many files, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from tracelens.errors import InputError
from tracelens.summary import RankSummary
from tracelens.trace.discover import Source

Outcome: TypeAlias = RankSummary | InputError
"""A summary, or why there is none: one file that can't be read must not end the others."""

Work: TypeAlias = Callable[[Source], Outcome]
"""What is done with one file; it is pickled, so it is a function of a module or a `partial` of one."""


class Engine(Protocol):
    """Runs work over files."""

    def run(self, work: Work, sources: Sequence[Source]) -> Iterator[tuple[int, Outcome]]:
        """Yield (number of the source, outcome) as they come, in any order, each once."""
        ...


def reader_died(source: Source) -> InputError:
    """The one message for a process that was killed while it read a file, which the system does for want of memory."""
    return InputError(
        f"the process that read `{source.path}` was killed",
        hint="there may be too little memory for as many readers: use fewer --jobs",
    )
