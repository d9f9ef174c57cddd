"""`tracelens crosscheck`: our numbers beside those of an independent tool."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from tracelens import __version__
from tracelens.cli.options import Reading, output_options, reading_options
from tracelens.cli.output import Format, Output
from tracelens.cli.progress import reading_progress
from tracelens.cli.reading import known_kernels, read
from tracelens.crosscheck.faults import MEANINGS
from tracelens.crosscheck.figures import decimals_of
from tracelens.report.table import WIDTH, Column, lay_out, printable
from tracelens.units import plural

if TYPE_CHECKING:
    from tracelens.crosscheck.compare import FileComparison, HtaComparison, Row

EXIT_DIFFERS = 1
_COLUMNS = (
    Column("figure", is_name=True),
    Column("ours"),
    Column("HTA"),
    Column("", is_name=True),
    Column("ours with HTA's faults put in", is_name=True),
)


@click.command("crosscheck")
@reading_options
@output_options
def command(*, reading: Reading, output: Output) -> int:
    """Compare our numbers with HolisticTraceAnalysis' on the same files.

    A difference is explained when a stated fault of HTA's, put into our own computation, turns our number into
    HTA's to the last printed digit. Needs the extra `hta`.

    Exit codes: 0 all equal or explained, 1 a number differs and nothing explains it, 2 nothing could be read.
    """
    from tracelens.crosscheck.compare import compare_with_hta
    from tracelens.crosscheck.neighbour import require_hta

    require_hta()
    summaries = read(reading)
    total_bytes = sum(summary.head.bytes for summary in summaries.ranks)
    with reading_progress(total_bytes, sys.stderr, wanted=reading.progress) as report:
        comparison = compare_with_hta(summaries.ranks, kernels=known_kernels(reading), progress=report)
    for file in summaries.skipped:
        click.echo(f"skipped: {file.why if file.path in file.why else f'{file.path}: {file.why}'}", err=True)
    output.write(_render_json(comparison) if output.format is Format.json else _render_text(comparison))
    return EXIT_DIFFERS if comparison.unexplained else 0


def _render_json(comparison: HtaComparison) -> str:
    document = {
        "schema_version": 1,
        "tracelens_version": __version__,
        "hta_version": comparison.hta_version,
        "unexplained": comparison.unexplained,
        "faults": MEANINGS,
        "files": comparison.files,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def _render_text(comparison: HtaComparison) -> str:
    lines = [f"Our numbers beside HolisticTraceAnalysis {comparison.hta_version}", ""]
    for file in comparison.files:
        lines += [*_file_lines(file), ""]
    return "\n".join([*lines, *_fault_lines(comparison), _summarize(comparison)]) + "\n"


def _file_lines(file: FileComparison) -> list[str]:
    title = f"{printable(file.path)}, rank {'unknown' if file.rank is None else file.rank}"
    if file.hta_error is not None:
        return [title, *_wrap(f"HTA fails on this file: {printable(file.hta_error)}")]
    shown = [row for row in file.rows if row.ours or row.hta]
    return [title, *lay_out(_COLUMNS, [_cells(row) for row in shown])]


def _cells(row: Row) -> tuple[str, ...]:
    digits = decimals_of(row.figure)
    steps = ", ".join(f"{step.fault} {_number(step.value, digits)}" for step in row.steps)
    mark = row.verdict.upper() if row.verdict == "unexplained" else row.verdict.value
    return row.figure, _number(row.ours, digits), _number(row.hta, digits), mark, steps


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _fault_lines(comparison: HtaComparison) -> list[str]:
    """What the faults that were met mean."""
    met = {step.fault for file in comparison.files for row in file.rows for step in row.steps}
    return [line for fault, meaning in MEANINGS.items() if fault in met for line in _wrap(f"{fault}: {meaning}")]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _summarize(comparison: HtaComparison) -> str:
    verdicts = Counter(row.verdict.value for file in comparison.files for row in file.rows)
    failed = sum(file.hta_error is not None for file in comparison.files)
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ("equal", "explained", "unexplained"))
    end = f"; HTA fails on {failed}" if failed else ""
    return f"{plural(verdicts.total(), 'number')} of {plural(len(comparison.files), 'file')}: {counts}{end}"
