"""A document to the output in the format that was asked for."""

from __future__ import annotations

from tracelens.cli.output import Format, Output
from tracelens.report.document import Document
from tracelens.report.json import render_json
from tracelens.report.terminal import render_text


def write_document(document: Document, output: Output, *, every_row: bool, explain: bool) -> None:
    """Render and write."""
    if output.format is Format.json:
        output.write(render_json(document))
        return
    output.write(render_text(document, colour=output.wants_colour, every_row=every_row, explain=explain))
