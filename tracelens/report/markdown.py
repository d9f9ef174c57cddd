"""The report as GitHub-flavoured Markdown, short enough for a job summary or a comment on a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tracelens.compared import Comparison, RunComparison
from tracelens.report.document import Document
from tracelens.report.families import Family, find_families, find_owners, total_families
from tracelens.report.headline import describe_coverage, describe_run, describe_spread
from tracelens.report.limits import limits_table
from tracelens.report.sections import (
    Table,
    groups_table,
    name,
    number_columns,
    size,
    table_of,
    text_columns,
    time,
    traffic_table,
    unsized_table,
)
from tracelens.report.sections_compared import (
    comparison_table,
    describe_difference,
    differences,
    format_example,
    metrics_table,
    runs_table,
)
from tracelens.report.sections_ranks import problems_table, skew_table
from tracelens.report.table import printable
from tracelens.report.tiles import make_tiles
from tracelens.report.verdict import summarize_verdict
from tracelens.results import Finding

MOST_CHARACTERS = 60_000
"""GitHub refuses a comment of more than 65,536 characters; a job summary may be longer."""

_MOST_FINDINGS, _MOST_DIFFERENCES, _MOST_ROWS = 20, 5, 40

# What has a meaning in Markdown. An underscore inside a word has none.
_SPECIAL = re.compile(r"[\\`*{}\[\]<>|~!#&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_AT_START = re.compile(r"^(\s*)([-+=]|\d+(?=[.)](?:\s|$)))")
# What GitHub makes links and pictures of even where Markdown sees plain text: @name, #12, www., ://, :word:
_ACTIVE = re.compile(r"(@|(?<=#)(?=\d)|(?<=www)(?=\.)|:(?=//)|:(?=[\w+-]+:))", re.IGNORECASE)
_NO_BREAK = "\u2060"


def escape_markdown(text: str) -> str:
    r"""The text such that GitHub shows it as it is: no markup, link, mention, reference or picture.

    >>> print(escape_markdown("<b>*x*</b> reduce_scatter"))
    \<b\>\*x\*\</b\> reduce_scatter
    """
    plain = _ACTIVE.sub(lambda found: found[0] + _NO_BREAK, printable(text))
    escaped = _SPECIAL.sub(lambda found: "\\" + found[0], plain)
    return _AT_START.sub(
        lambda found: f"{found[1]}{found[2]}\\" if found[2].isdigit() else f"{found[1]}\\{found[2]}", escaped
    )


def render_markdown(document: Document) -> str:
    """The document as Markdown that ends in a newline: verdict, numbers and findings, then tables to unfold."""
    text = "\n".join(_opening(document))
    left_out = 0
    for table in _tables(document):
        folded = "\n".join(_folded(table))
        if len(text) + len(folded) > MOST_CHARACTERS:
            left_out += 1
        else:
            text += folded
    if left_out:
        text += f"\n{left_out} more tables are left out, so that this fits a comment; `--format html` has them.\n"
    return text


def _opening(document: Document) -> Iterator[str]:
    verdict = summarize_verdict(document)
    yield "## TraceLens" if verdict is None else f"## TraceLens: {verdict.status.label.lower()}"
    yield ""
    if verdict is not None:
        yield f"**{escape_markdown(verdict.text)}**"
        yield ""
    yield f"{escape_markdown(describe_run(document.run))}  "
    yield escape_markdown(describe_spread(document)) or "no time on a GPU in this trace"
    yield ""
    yield from _numbers(document)
    yield from _findings(document.findings)
    if isinstance(document.comparison, Comparison):
        yield from _differences(document.comparison)


def _numbers(document: Document) -> Iterator[str]:
    tiles = make_tiles(document)
    if tiles:
        yield _row([tile.label for tile in tiles])
        yield _row(["---:"] * len(tiles))
        yield _row([f"**{tile.value}**<br>{tile.detail}" for tile in tiles])
        yield ""
    if document.inference is not None and document.inference.launcher_line:
        yield f"Layout ({document.inference.status}): {escape_markdown(document.inference.launcher_line)}"
        yield ""


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        return
    yield "### Findings"
    yield ""
    for finding in findings[:_MOST_FINDINGS]:
        yield f"- **{finding.severity}** {escape_markdown(f'{finding.code}: {finding.message}')}"
        if finding.hint:
            yield f"  <br>{escape_markdown(finding.hint)}"
    if len(findings) > _MOST_FINDINGS:
        yield f"- {len(findings) - _MOST_FINDINGS} more; `--format html` has them"
    yield ""


def _differences(comparison: Comparison) -> Iterator[str]:
    rows = differences(comparison)
    if not rows:
        return
    yield "### Not as predicted"
    yield ""
    for row in rows[:_MOST_DIFFERENCES]:
        yield f"- {escape_markdown(describe_difference(row))}"
        if row.example is not None:
            yield f"  <br>{escape_markdown(format_example(row.example))}"
    if len(rows) > _MOST_DIFFERENCES:
        yield f"- {len(rows) - _MOST_DIFFERENCES} more in the table below"
    yield ""


def _tables(document: Document) -> Iterator[Table]:
    families = find_families(document.groups, world_size=document.run.world_size)
    comparison = document.comparison
    candidates = [
        limits_table(document.limits),
        metrics_table(comparison) if isinstance(comparison, RunComparison) else None,
        runs_table(comparison) if isinstance(comparison, RunComparison) else None,
        comparison_table(comparison) if isinstance(comparison, Comparison) else None,
        _axis_table(document, families),
        traffic_table(document, families),
        unsized_table(document),
        groups_table(families),
        skew_table(document, find_owners(families)),
        problems_table(document),
    ]
    yield from (table for table in candidates if table is not None)


def _axis_table(document: Document, families: Sequence[Family]) -> Table | None:
    totals = sorted(total_families(document, families).items(), key=lambda item: -(item[1].exposed_ns or 0))
    columns = [*text_columns("group", "primitives"), *number_columns("sent", "busy", "exposed")]
    rows = [
        [
            name(label),
            name(", ".join(sums.primitives)),
            size(sums.wire_bytes, partial=sums.has_unsized),
            time(sums.busy_ns, partial=sums.has_untimed),
            time(sums.exposed_ns, partial=sums.has_untimed),
        ]
        for label, sums in totals
    ]
    return table_of("Time by kind of group, per rank and step", columns, rows, note=describe_coverage(document))


def _folded(table: Table) -> Iterator[str]:
    shown = table.rows[:_MOST_ROWS]
    rest = len(table.rows) - len(shown) + table.left_out
    total = len(table.rows) + table.left_out
    yield ""
    yield f"<details><summary>{table.title} ({total:,} row{'' if total == 1 else 's'})</summary>"
    yield ""
    yield _row([column.title for column in table.columns])
    yield _row([":---" if column.is_name else "---:" for column in table.columns])
    for row in shown:
        yield _row([escape_markdown(cell.text) for cell in row])
    yield ""
    if table.note:
        yield escape_markdown(table.note)
        yield ""
    if rest:
        yield f"{rest:,} more rows stand in the JSON."
        yield ""
    yield "</details>"
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
