"""`tracelens analyze`: the main job."""

from __future__ import annotations

import click

from tracelens.cli.options import (
    Measuring,
    Reading,
    explain_option,
    measuring_options,
    output_options,
    reading_options,
)
from tracelens.cli.output import Format, Output
from tracelens.cli.reading import read
from tracelens.measurement.measure import measure
from tracelens.report.document import make_document
from tracelens.report.json import render_json
from tracelens.report.terminal import render_text


@click.command("analyze")
@reading_options
@measuring_options
@output_options
@explain_option
def command(*, reading: Reading, measuring: Measuring, output: Output, explain: bool) -> None:
    """Read traces and report what was communicated.

    PATH is a trace (.json, .json.gz, .json.zst), a summary (.tracelens), a folder or a glob; any subset of
    the ranks of one job will do.

    Exit codes: 0 fine, 2 nothing could be read.
    """
    measurement = measure(
        read(reading),
        steps=measuring.steps,
        per_rank=measuring.per_rank,
        gpus_per_node=measuring.gpus_per_node,
    )
    document = make_document(measurement)
    if output.format is Format.json:
        output.write(render_json(document))
        return
    output.write(render_text(document, colour=output.wants_colour, every_row=measuring.per_rank, explain=explain))
