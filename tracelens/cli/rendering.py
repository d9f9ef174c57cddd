"""A document to the output in the format that was asked for; a renderer is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.cli.output import Format, Output
from tracelens.report.document import Document
from tracelens.summary import RankSummary


def write_document(
    document: Document,
    output: Output,
    *,
    every_row: bool,
    explain: bool,
    summaries: Sequence[RankSummary] = (),
) -> None:
    """Render and write.

    Args:
        document: what to tell.
        output: where, and as what.
        every_row: for text, show all rows.
        explain: for text, show what every number rests on.
        summaries: those that the document was measured from, for the timeline of a page; none when it was saved.
    """
    if output.format is Format.text:
        from tracelens.report.terminal import render_text

        output.write(render_text(document, colour=output.wants_colour, every_row=every_row, explain=explain))
    elif output.format is Format.html:
        from tracelens.report.html import render_html
        from tracelens.report.timeline import lay_timeline

        output.write(render_html(document, lay_timeline(summaries, document)))
    else:
        output.write(_render(document, output.format))


def _render(document: Document, kind: Format) -> str:
    """The formats that take a document and nothing else."""
    if kind is Format.markdown:
        from tracelens.report.markdown import render_markdown as render
    elif kind is Format.junit:
        from tracelens.report.junit import render_junit as render
    elif kind is Format.github:
        from tracelens.report.github import render_github as render
    else:
        from tracelens.report.json import render_json as render
    return render(document)
