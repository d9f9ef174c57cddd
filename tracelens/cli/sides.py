"""One side of a comparison: traces that are read and measured, or a result that was saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from tracelens.cli.options import Measuring, Reading
from tracelens.cli.reading import read_job
from tracelens.compared import Comparison, RunComparison
from tracelens.errors import UsageError
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.inferred import Inference
from tracelens.measurement.measure import measure
from tracelens.report.saved import is_saved, load_document, measurement_of
from tracelens.report.table import as_text
from tracelens.results import Measurement
from tracelens.summary import RankSummary


@dataclass(frozen=True, slots=True)
class Side:
    """What was measured of a run, and its summaries where they were read."""

    measurement: Measurement
    inference: Inference | None
    summaries: tuple[RankSummary, ...] = ()
    comparison: Comparison | RunComparison | None = None
    name: str = ""
    blind: bool = False
    """Names, and what our own capture wrote, may not be used."""


def read_side(reading: Reading, measuring: Measuring, *, blind: bool = False, lenient: bool = False) -> Side:
    """Read the paths of one run.

    Args:
        reading: the paths, and how to read them.
        measuring: what to measure of traces.
        blind: names may not be used.
        lenient: what options ask of a saved result that it can't do is a warning: they may be meant for another side.

    Raises:
        InputError: no path leads to anything that can be read.
        UsageError: a saved result stands beside other paths, or options ask to measure it again.
    """
    name = ", ".join(reading.paths)
    saved = [path for path in reading.paths if is_saved(path)]
    if saved:
        if len(reading.paths) > 1:
            raise UsageError(f"`{saved[0]}` is a saved result and must stand alone", hint="give one path")
        refuse_measuring(saved[0], reading, measuring, blind=blind, lenient=lenient)
        document = load_document(saved[0])
        return Side(measurement_of(document), document.inference, (), document.comparison, name)
    summaries = read_job(reading)
    measurement = measure(
        summaries,
        steps=measuring.steps,
        per_rank=measuring.per_rank,
        gpus_per_node=measuring.gpus_per_node,
        links=measuring.links,
    )
    reasoning = reason(summaries.ranks, blind=blind)
    return Side(label_measurement(measurement, reasoning), reasoning.inference, summaries.ranks, None, name, blind)


def refuse_measuring(path: str, reading: Reading, measuring: Measuring, *, blind: bool, lenient: bool = False) -> None:
    """Refuse options that a saved result can't follow; or warn, where they may be meant for another side.

    Raises:
        UsageError: such an option is given.
    """
    dropped = options_of_traces(reading, measuring, blind=blind)
    if not dropped:
        return
    told = f"`{path}` is a saved result, which can't be measured again: {', '.join(dropped)} would do nothing"
    if not lenient:
        raise UsageError(told, hint="give the traces, or leave it out")
    click.echo(f"warning: {as_text(told)}", err=True)


def options_of_traces(reading: Reading, measuring: Measuring, *, blind: bool) -> list[str]:
    """The options given that change what is measured of traces, and so need them."""
    given = {
        "--steps": measuring.steps is not None,
        "--gpus-per-node": measuring.gpus_per_node is not None,
        "--link": "inside" in measuring.links,
        "--link-across": "across" in measuring.links,
        "--kernels": reading.kernels is not None,
        "--ranks sample": reading.ranks == "sample",
        "--blind": blind,
    }
    return [name for name, is_given in given.items() if is_given]


def with_paths(reading: Reading, paths: Sequence[str]) -> Reading:
    """The same way of reading, other paths."""
    return msgspec.structs.replace(reading, paths=tuple(paths))


def read_runs(reading: Reading, measuring: Measuring, *, blind: bool = False) -> list[Side]:
    """Several runs: each folder and each saved result is one, files named one by one are one together."""
    alone = [path for path in reading.paths if Path(path).is_dir() or is_saved(path)]
    files = [path for path in reading.paths if path not in alone]
    runs = [read_side(with_paths(reading, [path]), measuring, blind=blind) for path in alone]
    return [*runs, read_side(with_paths(reading, files), measuring, blind=blind)] if files else runs
