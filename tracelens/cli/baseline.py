"""`tracelens baseline`: what good runs did, for `tracelens check`."""

from __future__ import annotations

from pathlib import Path

import click

from tracelens.checks.baseline import Baseline, load_baseline, make_baseline, name_kind, render_baseline
from tracelens.checks.good_runs import GoodRun, require_one_job
from tracelens.cli.options import Measuring, Reading, measuring_options, reading_options
from tracelens.cli.output import refuse_overwrite, replacing
from tracelens.cli.sides import read_runs
from tracelens.units import format_bytes, noun

DEFAULT_FILE = "tracelens.baseline.json"


@click.command("baseline")
@click.argument("action", type=click.Choice(["write", "update"]))
@reading_options
@measuring_options
@click.option("-o", "--output", default=DEFAULT_FILE, show_default=True, metavar="FILE", help="The baseline.")
@click.option("--force", is_flag=True, help="Overwrite an existing file with `write`.")
def command(*, action: str, reading: Reading, measuring: Measuring, output: str, force: bool) -> None:
    """Write, or update, the baseline that `check` holds runs against.

    Each folder, or saved result, is a run of its own; files that are named one by one are one run together. From
    several runs the spread of times is taken.

    Exit codes: 0 written, 2 nothing could be read, or the file is there (write) or not there (update).
    """
    path = Path(output)
    before = load_baseline(path) if action == "update" else None
    if before is None:
        refuse_overwrite(path, force=force)
    runs = read_runs(reading, measuring)
    require_one_job([GoodRun(run.name, run.measurement, run.inference) for run in runs])
    baseline = make_baseline([run.measurement for run in runs], [run.name for run in runs])
    with replacing(path, force=force or before is not None) as temporary:
        temporary.write_text(render_baseline(baseline), encoding="utf-8")
    for line in [] if before is None else _changes(before, baseline):
        click.echo(line, err=True)
    click.echo(f"Wrote {path}", err=True)


def _changes(before: Baseline, after: Baseline) -> list[str]:
    """A line for each kind of call whose calls or bytes are others now."""
    old = {(row.group, row.primitive, row.dtype): row for row in before.rows}
    new = {(row.group, row.primitive, row.dtype): row for row in after.rows}
    lines = []
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        calls = tuple(0.0 if row is None else row.calls for row in (one, other))
        sent = tuple(None if row is None else row.wire_bytes for row in (one, other))
        if calls[0] != calls[1] or sent[0] != sent[1]:
            axis = next((row.axis for row in (other, one) if row is not None and row.axis is not None), None)
            told = name_kind(key[0], axis, key[1], key[2])
            lines.append(
                f"{told}: {calls[0]:.6g} → {calls[1]:.6g} {noun(calls[1], 'call')}, "
                f"{format_bytes(sent[0])} → {format_bytes(sent[1])}"
            )
    return lines or ["calls and bytes are unchanged"]
