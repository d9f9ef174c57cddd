"""`tracelens summarize`: traces into small files that every other command reads."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from tracelens.cli.options import Reading, reading_options
from tracelens.cli.output import is_terminal, refuse_overwrite, write_stdout
from tracelens.cli.reading import read
from tracelens.errors import InputError
from tracelens.report.table import printable
from tracelens.summary import SUFFIX
from tracelens.trace.discover import discover
from tracelens.trace.remote import Location

_TRACE_SUFFIXES = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.(?:gz|zst|zstd))?$", re.IGNORECASE)


@click.command("summarize")
@reading_options
@click.option(
    "-o", "--output", "folder", required=True, metavar="DIR", help="Folder for the summaries; made if absent."
)
@click.option("--force", is_flag=True, help="Overwrite existing summaries.")
def command(*, reading: Reading, folder: str, force: bool) -> None:
    """Turn traces into small summary files.

    A summary holds what every command needs of one rank, and stands wherever a trace may. The names of the
    files written go to stdout, as they are to a pipe and without control characters to a terminal.

    Exit codes: 0 fine, 2 nothing could be read or written.
    """
    discovery = discover(reading.paths)
    paths = [source.path for source in discovery.sources]
    targets = dict(zip(paths, plan_targets(paths, Path(folder)), strict=True))
    for target in targets.values():
        refuse_overwrite(target, force=force)
    summaries = read(reading, discovery)
    for source, summary in zip(summaries.sources, summaries.ranks, strict=True):
        target = targets[source.path]
        make_folder(target.parent)
        summary.save(target)
        write_stdout(f"{printable(str(target)) if is_terminal() else target}\n")
    for file in summaries.skipped:
        why = file.why if file.path in file.why else f"{file.path}: {file.why}"
        click.echo(f"skipped: {printable(why)}", err=True)


def plan_targets(paths: Sequence[Location], folder: Path) -> list[Path]:
    """Where each trace's summary goes: the folders of the traces, kept apart below `folder` as they were.

    Two files that differ in their suffixes only, such as `rank0.json` and `rank0.json.gz`, keep them.
    """
    parents = [_folder_of(path) for path in paths]
    top = Path(os.path.commonpath(parents))
    stems = [_TRACE_SUFFIXES.sub("", path.name.removesuffix(SUFFIX)) for path in paths]
    places = [folder / parent.relative_to(top) for parent in parents]
    shared = Counter(zip(places, stems, strict=True))
    return [
        place / f"{stem if shared[place, stem] == 1 else path.name}{SUFFIX}"
        for path, place, stem in zip(paths, places, stems, strict=True)
    ]


def _folder_of(path: Location) -> Path:
    """The folder of a file; behind a URL the host is the topmost one."""
    return path.resolve().parent if isinstance(path, Path) else Path("/", *path.url.split("/")[2:-1])


def make_folder(folder: Path) -> None:
    """Make a folder with its parents.

    Raises:
        InputError: it can't be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder `{folder}`: {error.strerror}", hint="give a folder that you may write to"
        ) from error
