"""`tracelens analyze`: the main job."""

from __future__ import annotations

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
from tracelens.cli.reading import read
from tracelens.cli.rendering import write_document
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.measurement.measure import measure
from tracelens.report.document import make_document


@click.command("analyze")
@reading_options
@measuring_options
@report_options
@explain_option
@blind_option
def command(*, reading: Reading, measuring: Measuring, output: Output, explain: bool, blind: bool) -> None:
    """Read traces and report what was communicated, and the layout behind it.

    PATH is a trace (.json, .json.gz, .json.zst), a summary (.tracelens), a folder or a glob; any subset of
    the ranks of one job will do.

    Exit codes: 0 fine, 2 nothing could be read.
    """
    summaries = read(reading)
    measurement = measure(
        summaries,
        steps=measuring.steps,
        per_rank=measuring.per_rank,
        gpus_per_node=measuring.gpus_per_node,
        links=measuring.links,
    )
    reasoning = reason(summaries.ranks, blind=blind)
    labelled = label_measurement(measurement, reasoning)
    document = make_document(
        labelled,
        inference=reasoning.inference,
        findings=find(labelled, reasoning.inference),
    )
    write_document(document, output, every_row=measuring.per_rank, explain=explain, summaries=summaries.ranks)
