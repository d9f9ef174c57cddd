"""The findings for a terminal: what is bad, its numbers, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.report.lines import TITLE, Line, note, remark
from tracelens.results import Finding
from tracelens.units import format_time, plural


def finding_lines(findings: Sequence[Finding], *, explain: bool) -> list[Line]:
    """Every finding with its hint, one that several share once; with `explain` also what it claims and rests on."""
    if not findings:
        return []
    lines = [Line(f"Findings ({plural(len(findings), 'finding')})", TITLE)]
    hints: set[tuple[str, str]] = set()
    for finding in findings:
        title = finding.code if finding.name is None else f"{finding.code} {finding.name}"
        lines += note(f"{finding.severity} {title}: {finding.message}")
        if finding.hint and (finding.code, finding.hint) not in hints:
            hints.add((finding.code, finding.hint))
            lines += remark(f"try: {finding.hint}", indent=4)
        if explain and finding.claimed_ns is not None:
            lines += remark(f"speaks for {format_time(finding.claimed_ns)} of exposed time in a step", indent=4)
        if explain and finding.coverage:
            lines += remark(f"rests on {finding.coverage}", indent=4)
    return lines
