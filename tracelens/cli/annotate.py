"""`tracelens annotate`: a trace with a track per axis, for Perfetto."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import click

from tracelens.annotate.copy import SUFFIXES, compressed, copy_trace
from tracelens.annotate.events import write_events
from tracelens.annotate.tracks import Track, lay_tracks
from tracelens.cli.options import Reading
from tracelens.cli.output import refuse_overwrite, replacing
from tracelens.cli.reading import read
from tracelens.errors import Problem, UsageError
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.measurement.measure import measure
from tracelens.report.document import make_document
from tracelens.report.table import printable
from tracelens.summary import RankSummary
from tracelens.trace.discover import Discovery, discover
from tracelens.trace.remote import Location
from tracelens.trace.source import is_archive
from tracelens.units import plural


@click.command("annotate")
@click.argument("path", metavar="PATH")
@click.option(
    "-o", "--output", "output", required=True, metavar="FILE", help="The new trace: .json, .json.gz or .json.zst."
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--kernels", metavar="FILE.toml", help="Communication kernels of yours, beside the known ones.")
@click.option("--no-progress", is_flag=True, help="Draw no progress bar.")
def command(*, path: str, output: str, force: bool, kernels: str | None, no_progress: bool) -> None:
    """Copy a trace with a track per axis, for Perfetto.

    Every communication kernel becomes a slice such as `tp all_reduce 470 MiB` with its bytes, bandwidth, exposed time
    and group; so does every call without a kernel, where it was issued. The events of the trace stay as they are.

    Exit codes: 0 fine, 2 the trace could not be read or the file not be written.
    """
    target = _check_target(output, force=force)
    found = _find_trace(path)
    _keep_source(target, found.sources[0].path)
    reading = Reading(paths=(path,), jobs=1, progress=not no_progress, kernels=kernels)
    (summary,) = read(reading, found).ranks
    tracks = _lay(summary)
    with replacing(target, force=force) as draft, compressed(draft, target.name) as out:
        events, problems = copy_trace(found.sources[0].path, out, partial(write_events, tracks))
    _tell(target, tracks, events, problems)


def _check_target(output: str, *, force: bool) -> Path:
    target = Path(output)
    if not target.name.endswith(SUFFIXES):
        raise UsageError(f"cannot tell the format of `{output}` by its suffix", hint=f"use {' or '.join(SUFFIXES)}")
    refuse_overwrite(target, force=force)
    return target


def _find_trace(path: str) -> Discovery:
    found = discover([path])
    if len(found.sources) != 1:
        raise UsageError(f"`{path}` holds {len(found.sources)} traces", hint="name the one to annotate")
    if is_archive(found.sources[0].path):
        raise UsageError(f"`{path}` is a summary, which holds no events to copy", hint="annotate the trace itself")
    return found


def _keep_source(target: Path, source: Location) -> None:
    """A trace can't be recorded again: not even --force replaces it by its copy."""
    if isinstance(source, Path) and target.exists() and target.samefile(source):
        raise UsageError(f"`{target}` is the trace itself", hint="give the copy another name")


def _lay(summary: RankSummary) -> tuple[Track, ...]:
    measurement = measure([summary])
    reasoning = reason([summary])
    return lay_tracks(summary, make_document(label_measurement(measurement, reasoning), inference=reasoning.inference))


def _tell(target: Path, tracks: tuple[Track, ...], events: int, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        click.echo(f"{problem.severity}: {printable(problem.message)}", err=True)
    slices = Counter({track.label: len(track.kernels) + len(track.issued) for track in tracks})
    told = ", ".join(f"{printable(label)} {count:,}" for label, count in slices.items()) or "no communication"
    click.echo(f"{plural(events, 'event')} copied, {plural(slices.total(), 'slice')} added ({told})", err=True)
    click.echo(f"Wrote {target}", err=True)
