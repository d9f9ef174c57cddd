"""The report as workflow commands: annotations that GitHub shows beside a run.

Escaping: actions/toolkit, packages/core/src/command.ts (`escapeData`, `escapeProperty`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tracelens.compared import Comparison
from tracelens.errors import Severity
from tracelens.report.document import Document
from tracelens.report.headline import describe_run
from tracelens.report.sections_compared import describe_difference, differences
from tracelens.report.table import printable
from tracelens.report.verdict import Status, fails_by_comparison, summarize_verdict
from tracelens.results import Finding

MOST_ANNOTATIONS = 10
"""Of each kind and step; GitHub drops what is beyond."""

_KINDS = {Severity.error: "error", Severity.warning: "warning", Severity.info: "notice"}
_STATUSES = {
    Status.failed: "error",
    Status.warned: "warning",
    Status.passed_with_warnings: "warning",
    Status.passed: "notice",
}

_Command = tuple[str, str, str]
"""Kind, title and message."""


def render_github(document: Document) -> str:
    """A workflow command a line, the verdict first; ends in a newline."""
    lines = []
    for kind in ("error", "warning", "notice"):
        commands = [command for command in _commands(document) if command[0] == kind]
        shown = list(islice(commands, MOST_ANNOTATIONS - 1 if len(commands) > MOST_ANNOTATIONS else None))
        lines += [format_command(*command) for command in shown]
        if len(shown) < len(commands):
            rest = f"{len(commands) - len(shown)} more stand in the report"
            lines.append(format_command(kind, "tracelens", rest))
    return "".join(f"{line}\n" for line in lines)


def format_command(kind: str, title: str, message: str) -> str:
    r"""One workflow command, with what would end it or its title early written out.

    >>> format_command("error", "a:b", "50 %\nmore")
    '::error title=a%3Ab::50 %25%0Amore'
    """
    return f"::{kind} title={_escape_property(title)}::{_escape_data(message)}"


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _commands(document: Document) -> Iterator[_Command]:
    verdict = summarize_verdict(document)
    run = printable(describe_run(document.run))
    if verdict is None:
        yield "notice", "tracelens", run
    else:
        yield (
            _STATUSES[verdict.status],
            f"tracelens: {verdict.status.label.lower()}",
            f"{printable(verdict.text)}\n{run}",
        )
    for finding in document.findings:
        yield _KINDS[finding.severity], _title(finding), _message(finding.message, finding.hint)
    comparison = document.comparison
    if isinstance(comparison, Comparison):
        kind = "error" if fails_by_comparison(document) else "notice"
        for row in differences(comparison):
            yield kind, f"tracelens {row.verdict}", printable(describe_difference(row))
    for problem in document.run.problems:
        if problem.severity is not Severity.info:
            yield "warning", f"tracelens {printable(problem.code)}", _message(problem.message, problem.file)


def _title(finding: Finding) -> str:
    return printable(f"{finding.code} {finding.name}" if finding.name else finding.code)


def _message(text: str, more: str | None) -> str:
    return "\n".join(printable(part) for part in (text, more) if part)
