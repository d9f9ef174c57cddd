"""`tracelens analyze`: the main job."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tracelens.checks.find import find
from tracelens.cli.options import (
    Measuring,
    Reading,
    blind_option,
    explain_option,
    measuring_options,
    reading_options,
    report_options,
)
from tracelens.cli.output import Output
from tracelens.cli.reading import read_job
from tracelens.cli.rendering import write_document
from tracelens.cli.sides import refuse_measuring
from tracelens.errors import UsageError
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.inference.workload import time_primitives
from tracelens.measurement.measure import measure
from tracelens.report.document import Document, make_document
from tracelens.report.saved import is_saved, load_document


@click.command("analyze")
@reading_options
@measuring_options
@report_options
@explain_option
@blind_option
def command(*, reading: Reading, measuring: Measuring, output: Output, explain: bool, blind: bool) -> None:
    """Read traces and report what was communicated, and the layout behind it.

    PATH is a trace (.json, .json.gz, .json.zst), a summary (.tracelens), a folder or a glob; any subset of
    the ranks of one job will do. A result that was saved with -o FILE.json, of `diff` and `check` too, is shown again
    as it is, in any format.

    Exit codes: 0 fine, 2 nothing could be read.
    """
    if any(is_saved(path) for path in reading.paths):
        refuse_measuring(reading.paths[0], reading, measuring, blind=blind)
        saved = _load_alone(reading.paths)
        write_document(saved, output, every_row=measuring.per_rank, explain=explain)
        return
    summaries = read_job(reading)
    measurement = measure(
        summaries,
        steps=measuring.steps,
        per_rank=measuring.per_rank,
        gpus_per_node=measuring.gpus_per_node,
        links=measuring.links,
    )
    reasoning = reason(summaries.ranks, blind=blind)
    labelled = label_measurement(measurement, reasoning)
    inference = time_primitives(reasoning.inference, measurement)
    document = make_document(
        labelled,
        inference=inference,
        findings=find(labelled, inference),
    )
    write_document(document, output, every_row=measuring.per_rank, explain=explain, summaries=summaries.ranks)


def _load_alone(paths: Sequence[str]) -> Document:
    if len(paths) > 1:
        raise UsageError("a saved result must stand alone", hint="give one path")
    return load_document(paths[0])
