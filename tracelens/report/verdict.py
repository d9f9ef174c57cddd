"""What a report says in one line: whether anything is over a limit, and how much was found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tracelens.errors import Severity
from tracelens.report.comparison import percent_down
from tracelens.report.document import Document
from tracelens.report.lines import plural
from tracelens.results import Comparison, Finding


class Status(StrEnum):
    """Whether a job passes."""

    failed = "failed"
    warned = "warned"
    passed = "passed"

    @property
    def label(self) -> str:
        """The status for people."""
        return {"failed": "Failed", "warned": "Worth a look", "passed": "Passed"}[self.value]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and its reason."""

    status: Status
    text: str


def summarize_verdict(document: Document) -> Summary | None:
    """The verdict over findings and comparison; None where nothing was judged."""
    findings, comparison = document.findings, document.comparison
    if comparison is None and not findings:
        return None
    errors, warnings = _count(findings, Severity.error), _count(findings, Severity.warning)
    outside = comparison is not None and not comparison.inside_tolerance
    parts = []
    if comparison is not None:
        parts.append(_compared(document, outside=outside))
    if errors:
        parts.append(plural(errors, "error"))
    if warnings:
        parts.append(plural(warnings, "warning"))
    status = Status.failed if errors or outside else Status.warned if warnings else Status.passed
    return Summary(status=status, text=", ".join(parts) or "nothing is over a limit")


def _count(findings: tuple[Finding, ...], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)


def _compared(document: Document, *, outside: bool) -> str:
    comparison = document.comparison
    assert comparison is not None
    side = "outside" if outside else "inside"
    explained = percent_down(comparison.explained_bytes_fraction)
    what = "explained" if isinstance(comparison, Comparison) else "unchanged"
    return f"{explained} of the bytes {what}, {side} the tolerance"
