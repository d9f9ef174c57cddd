"""How a run stands to one limit: kept, broken with a finding, or not to be told."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from tracelens.checks.codes import Code
from tracelens.checks.facts import finding
from tracelens.results import Finding, Limit, LimitVerdict

Bound: TypeAlias = Literal["exactly", "about", "at most", "at least"]
Value: TypeAlias = float | int | str | None
OTHER_RANKS = "the baseline was made from other ranks, and ranks differ among themselves"


class Judged(NamedTuple):
    """A limit with what was found where it is not kept."""

    limit: Limit
    finding: Finding | None = None


def judge(
    name: str, bound: Bound, measured: Value, limit: Value, *, unit: str | None = None, broken: Finding | None
) -> Judged:
    """A limit that was checked; kept without a finding."""
    verdict: LimitVerdict = "kept" if broken is None else "broken"
    told = Limit(name=name, verdict=verdict, bound=bound, measured=measured, limit=limit, unit=unit)
    return Judged(told, broken)


def not_checked(name: str, bound: Bound, limit: Value, *, why: str, unit: str | None = None) -> Judged:
    """A limit without a measured value: a gate that checks nothing must not look green."""
    told = Limit(name=name, verdict="not_checked", bound=bound, limit=limit, unit=unit)
    return Judged(
        told,
        finding(Code.not_checked, f"{name} can't be checked: {why}", hint="give what it needs, or take the limit out"),
    )
