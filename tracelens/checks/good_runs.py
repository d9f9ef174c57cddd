"""The good runs that a policy or a baseline is written from: of one job, with one layout and the same groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracelens.checks.baseline import Baseline, kinds_of, name_kind
from tracelens.checks.facts import Facts
from tracelens.checks.limits import check
from tracelens.checks.policy import Expect, Policy
from tracelens.errors import InputError
from tracelens.inferred import Inference
from tracelens.results import Measurement

LEAST_CONFIDENCE = 0.9
_HINT = "give runs of one job, and the same ranks of each"


class GoodRun(NamedTuple):
    """A run with its name and the layout behind its traffic."""

    name: str
    measurement: Measurement
    inference: Inference | None


def require_one_job(runs: Sequence[GoodRun]) -> None:
    """Refuse runs of which a later one could be like one only.

    Raises:
        InputError: their world sizes, their layouts or the groups of their traffic differ.
    """
    first, *others = runs
    for other in others:
        apart = "; ".join(_differences(first, other))
        if apart:
            raise InputError(f"`{other.name}` is of another job than `{first.name}`: {apart}", hint=_HINT)


def _differences(first: GoodRun, other: GoodRun) -> Iterator[str]:
    """In what the second differs, `tp 1, not 2`."""
    worlds = (first.measurement.run.world_size, other.measurement.run.world_size)
    if worlds[0] != worlds[1]:
        yield f"world size {worlds[1]}, not {worlds[0]}"
        return
    one, two = settled_layout(first.inference), settled_layout(other.inference)
    yield from (
        f"{name} {_word(two[name])}, not {_word(one[name])}" for name in one if name in two and one[name] != two[name]
    )
    groups = [{group for group, _, _ in kinds_of(run.measurement)} for run in (first, other)]
    if groups[0] != groups[1]:
        more, less = (", ".join(sorted(these - those)) for these, those in (groups[::-1], groups))
        yield " and ".join([*([f"groups {more} more"] if more else []), *([f"groups {less} less"] if less else [])])


def _word(value: object) -> str:
    return str(value).lower()


def settled_layout(inference: Inference | None) -> dict[str, object]:
    """The fields of a layout that the traffic settles."""
    if inference is None:
        return {}
    sure = {name for name, confidence in inference.confidence.items() if confidence >= LEAST_CONFIDENCE}
    known = {name: getattr(inference.config, name) for name in Expect.__struct_fields__ if name in sure}
    return {name: value for name, value in known.items() if value is not None}


def shared_layout(inferences: Sequence[Inference | None]) -> dict[str, object]:
    """The fields that all runs settle, to the same value."""
    first, *others = [settled_layout(inference) for inference in inferences]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def describe_looseness(runs: Sequence[GoodRun], policy: Policy, baseline: Baseline) -> Iterator[str]:
    """What the runs differ in, so that a policy written from them can't hold a run to it.

    Raises:
        InputError: one of the runs breaks the policy.
    """
    kept = shared_layout([run.inference for run in runs])
    left = sorted({name for run in runs for name in settled_layout(run.inference)} - set(kept))
    if left:
        yield f"left out of [expect], since not every run settles it: {', '.join(left)}"
    for row in baseline.rows:
        if row.calls_differ:
            name = name_kind(row.group, row.axis, row.primitive, row.dtype)
            yield f"{name}: calls differ between the runs by {row.calls_differ:.6g}, and may"
    for run in runs:
        checked = check(Facts(run.measurement, run.inference), policy, baseline)
        unkept = [one.name for one in checked.limits if one.verdict in ("broken", "exceeded")]
        if unkept:
            raise InputError(
                f"`{run.name}` does not keep what the runs have in common: {', '.join(unkept)}", hint=_HINT
            )
        unchecked = [one.name for one in checked.limits if one.verdict == "not_checked"]
        if unchecked:
            yield f"can't be checked in `{run.name}`: {', '.join(unchecked)}"
