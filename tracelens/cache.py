"""Summaries kept for the next time, by what is in the trace: moving or renaming a file changes nothing.

Two runs may fill one cache at once, and either may be killed: an entry is written beside its place and moved there
whole, so that it is complete or absent, and equal whoever wrote it. What can't be read counts as absent.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

import tracelens.trace.summarize
from tracelens.errors import InputError
from tracelens.summary import SCHEMA_VERSION, SUFFIX, PackedSummary, RankSummary
from tracelens.trace.discover import rank_from_name
from tracelens.trace.kernels import Family
from tracelens.trace.remote import Location, RemoteFile
from tracelens.trace.source import is_archive
from tracelens.trace.summarize import summarize

_BLOCK_BYTES = 1 << 20
_ABANDONED_S = 24 * 3600


class SummaryCache(msgspec.Struct, frozen=True):
    """A folder of summaries; made when the first one is kept."""

    folder: Path

    def summarize(self, path: Location, kernels: tuple[Family, ...] = ()) -> RankSummary:
        """The summary of a trace, from the cache where it is there, else made and kept.

        A cache that can't be written is no reason to fail: the summary is made again next time.

        Raises:
            InputError: the trace can't be read.
        """
        if is_archive(path):
            return summarize(path)
        place = self._place(path, kernels)
        kept = _load(place)
        if kept is not None:
            return _relabel(kept, str(path))
        summary = summarize(path, kernels=kernels)
        with suppress(OSError, InputError):
            place.parent.mkdir(parents=True, exist_ok=True)
            _sweep(place.parent)
            summary.save(place)
        return summary

    def _place(self, path: Location, kernels: tuple[Family, ...]) -> Path:
        """Where the summary of this content stands: by the bytes, by what else goes into it, and by who makes it."""
        digest = hashlib.blake2b(digest_size=20)
        families = [(family.library, family.pattern.pattern, str(family.primitive)) for family in kernels]
        # a trace that does not tell its rank gets it from its name
        digest.update(repr((_code(), SCHEMA_VERSION, rank_from_name(path.name), families)).encode())
        if isinstance(path, RemoteFile):
            digest.update(path.fingerprint().encode())
        else:
            _add_content(digest, path)
        name = digest.hexdigest()
        return self.folder / name[:2] / f"{name}{SUFFIX}"


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind; one that still writes is younger."""
    for draft in folder.glob(".*.tmp"):
        if time.time() - draft.stat().st_mtime > _ABANDONED_S:
            draft.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _code() -> str:
    """What stands for the reader itself: another reader may see more in the same trace."""
    digest = hashlib.blake2b(digest_size=20)
    for file in sorted(Path(tracelens.trace.summarize.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _add_content(digest: hashlib.blake2b, path: Path) -> None:
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise InputError(f"can't read `{path}`: {error.strerror or error}", hint="check the permissions") from error


def _load(place: Path) -> PackedSummary | None:
    try:
        return RankSummary.load(place)
    except InputError:
        return None


def _relabel(summary: PackedSummary, path: str) -> RankSummary:
    """The summary as if it had been made of this file: paths are where the content lay when it was kept."""
    head = summary.head
    problems = tuple(
        msgspec.structs.replace(problem, file=path) if problem.file == head.path else problem
        for problem in head.problems
    )
    head = msgspec.structs.replace(head, path=path, problems=problems)
    return summary.with_head(head)
