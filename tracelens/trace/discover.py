"""Paths to trace files: one file, several, a folder, a glob; what is no trace is left out with the reason."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tracelens.errors import InputError
from tracelens.results import Skipped
from tracelens.summary import SUFFIX
from tracelens.trace.remote import Location, is_url, list_files, size_of

_TRACE = re.compile(r"\.json(?:\.(?:gz|zst|zstd|\d+))*$|\.trace$", re.IGNORECASE)
_FILE = re.compile(f"{_TRACE.pattern}|{re.escape(SUFFIX)}$", re.IGNORECASE)
_CHAKRA = r"(?:^|[/_.-])chakra|execution[_-]?trace|(?:^|[_.-])et[_.-]"
_INTRUDERS = (
    (re.compile(r"^merged[-_.]|[-_.]merged\.", re.IGNORECASE), "several ranks merged into one file"),
    (re.compile(r"async_llm", re.IGNORECASE), "trace of a front-end process, not of a rank"),
    (re.compile(_CHAKRA, re.IGNORECASE), "execution trace (chakra)"),
    (re.compile(r"\.tmp$", re.IGNORECASE), "left over from a profiler that did not finish"),
    (re.compile(r"memory_snapshot|_snapshot\.", re.IGNORECASE), "memory snapshot"),
)  # fmt: skip

# The clearest name first. `[3]` and `-3-of-8` are seen too (Primus, verl).
_RANK_NAMES = (
    re.compile(r"global_?rank[-_=\[]*(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])rank[-_=\[]*(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[-_=\[]*(\d+)", re.IGNORECASE),
    re.compile(r"^profile_(\d+)\.json", re.IGNORECASE),
    re.compile(r"(?:node|host)[^/]*_(\d{1,4})\.json", re.IGNORECASE),
)


class Source(msgspec.Struct, frozen=True):
    """A file to read."""

    path: Location
    bytes: int


class Discovery(msgspec.Struct, frozen=True):
    """The files behind the paths that a user gave."""

    sources: tuple[Source, ...]
    skipped: tuple[Skipped, ...]


def discover(paths: Sequence[str | Path]) -> Discovery:
    """Find the traces and summaries behind paths.

    Args:
        paths: files, folders (searched with their sub-folders) and globs, here or behind a URL (s3, gs, http).

    Raises:
        InputError: a path that isn't there, or no trace behind any of them.
    """
    found: dict[Location, None] = {}
    skipped: dict[str, Skipped] = {}
    for path in paths:
        for file, named in _expand(path):
            why = None if named else _intruder(file)
            if why is None:
                found.setdefault(file)
            else:
                skipped.setdefault(str(file), Skipped(path=str(file), why=why))
    if not found:
        raise _nothing(paths, skipped)
    sources = tuple(Source(file, size_of(file)) for file in found)
    return Discovery(sources, tuple(skipped.values()))


def _expand(given: str | Path) -> Iterable[tuple[Location, bool]]:
    """Files behind one path, and whether the user named the file himself."""
    if is_url(str(given)):
        return sorted(list_files(str(given), is_file=_FILE), key=lambda found: _by_number(found[0]))
    if not str(given):
        raise InputError("a path is empty", hint="look for a variable that is not set")
    path = Path(given)
    if path.is_dir():
        return [(file, False) for file in _sorted(path.rglob("*")) if file.is_file()]
    if path.is_file():
        return [(path, True)]
    if path.exists():
        # a file is opened twice, which a pipe can't bear; without a writer it would never end
        raise InputError(f"`{path}` is a pipe or a device, not a file", hint="write the trace to a file first")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - absolute globs too
    if not matches:
        raise InputError(f"no such file or folder: `{path}`", hint="check the path; a glob must match something")
    return [(file, False) for file in _sorted(matches) if file.is_file()]


def _sorted(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=_by_number)


def _by_number(file: Location) -> list[tuple[int, str]]:
    """By name, with numbers in the order of their value: rank2 before rank10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(file))]


def _intruder(file: Location) -> str | None:
    if file.name.endswith(SUFFIX):
        return None
    folder = str(file).replace("\\", "/").split("/")[-2:-1]
    for pattern, why in _INTRUDERS:
        if pattern.search(file.name) or (folder and pattern.search(f"/{folder[0]}/")):
            return why
    return None if _TRACE.search(file.name) else "not a trace by its name"


def _nothing(paths: Sequence[str | Path], skipped: dict[str, Skipped]) -> InputError:
    where = ", ".join(f"`{path}`" for path in paths)
    why = f" ({len(skipped)} other files are there)" if skipped else ""
    return InputError(
        f"no traces in {where}{why}",
        hint="give a folder with .json, .json.gz or .json.zst files written by torch.profiler",
    )


def rank_from_name(name: str) -> int | None:
    """The rank that a file's name tells, such as 3 for `rank3_trace.json.gz`; None when it tells none."""
    for pattern in _RANK_NAMES:
        match = pattern.search(name)
        if match:
            return int(match[1])
    return None
