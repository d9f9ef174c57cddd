"""What a report says in one line: whether anything is over a limit, and how much was found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tracelens.compared import Comparison, RunComparison
from tracelens.errors import Severity
from tracelens.report.comparison import percent_down, what_is_compared
from tracelens.report.document import Document
from tracelens.units import plural


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
    """The verdict and what it rests on; None where nothing was judged and nothing found."""
    errors, warnings = _count(document, Severity.error), _count(document, Severity.warning)
    parts = [
        _compared(document.comparison) if document.comparison is not None else "",
        plural(errors, "error") if errors else "",
        plural(warnings, "warning") if warnings else "",
    ]
    text = ", ".join(part for part in parts if part) or "every limit is kept"
    if document.passed is not None:
        return Summary(status=Status.passed if document.passed else Status.failed, text=text)
    return Summary(status=Status.warned, text=text) if errors or warnings else None


def fails_by_comparison(document: Document) -> bool:
    """Whether it is the comparison that fails the job, and not a finding."""
    return document.passed is False and not _count(document, Severity.error)


def _count(document: Document, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in document.findings)


def _compared(comparison: Comparison | RunComparison) -> str:
    side = "inside" if comparison.inside_tolerance else "outside"
    what = "explained" if isinstance(comparison, Comparison) else "unchanged"
    known = what_is_compared(comparison)
    return f"{percent_down(comparison.explained_bytes_fraction)} of the {known} {what}, {side} the tolerance"
