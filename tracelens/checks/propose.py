"""A policy proposed from good runs: their layout, their limits with room for chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec

from tracelens.checks.baseline import Baseline, is_lower_bound, part_of_steps, share_of_step
from tracelens.checks.good_runs import shared_layout
from tracelens.checks.policy import Expect, Limits, Policy, Reference, TimeLimits
from tracelens.comparison.step_times import deviation
from tracelens.inferred import Inference
from tracelens.results import Measurement
from tracelens.topology import Axis

LEAST_RELATIVE = 0.05
SIGMAS = 3.0
"""Tolerance of times: max(5 %, 3 sigma)."""
LEAST_ROOM = 0.01
"""Of the step: a few ns of idle time in a good run are no measure of what the next may have."""
_DIGITS = 4
_NODE_LOCAL = (Axis.tp, Axis.etp)

COMMENTS = {
    "expect": "the layout that the traffic must show",
    "reference": "calls are exact and bytes too (all-to-all: 1 %)",
    "time": "max(relative, sigmas) and absolute_ms must be passed; a warning unless [severity] says error",
    "limits": "fractions of the step; proposed with the same room, at least 0.01",
}


def propose_policy(
    measurements: Sequence[Measurement], inferences: Sequence[Inference | None], baseline: Baseline, baseline_path: str
) -> Policy:
    """The limits that these runs keep, with tolerances of max(5 %, 3 sigma) for time and none for counts and bytes.

    Args:
        measurements: good runs of one job.
        inferences: the layout of each.
        baseline: made from the same runs.
        baseline_path: where it is, seen from the policy.
    """
    step = baseline.part("step_time")
    relative = max(LEAST_RELATIVE, SIGMAS * step.deviation / step.mean) if step and step.mean else LEAST_RELATIVE
    return Policy(
        expect=msgspec.convert(shared_layout(inferences), Expect),
        reference=Reference(baseline=baseline_path),
        # beyond its double, `sigmas` alone tell
        time=TimeLimits(relative=min(round(relative, 4), 1.0)),
        limits=Limits(
            exposed_comm_fraction=_share(measurements, "exposed_comm"),
            idle_fraction=_share(measurements, "idle"),
            node_local=tuple(axis for axis in _NODE_LOCAL if _is_local(measurements, axis)),
        ),
    )


def _share(measurements: Sequence[Measurement], name: str) -> float | None:
    """The largest share of the step seen, with room for chance; None without time, and where any share would do."""
    shares = [
        part / span
        for one in measurements
        for part, span in zip(part_of_steps(one, name), part_of_steps(one, "step_time"), strict=True)
        if span
    ]
    if any(is_lower_bound(one, name) for one in measurements):
        return None
    means = [share for one in measurements if (share := share_of_step(one, name)) is not None]
    if not means:
        return None
    most = max(*shares, *means)
    room = max(LEAST_RELATIVE * most, SIGMAS * deviation(shares), LEAST_ROOM)
    # rounded up: what was seen is never beyond the limit
    limit = ceil((most + room) * 10**_DIGITS) / 10**_DIGITS
    return limit if limit < 1 else None


def _is_local(measurements: Sequence[Measurement], axis: Axis) -> bool:
    spans = [group.spans_nodes for one in measurements for group in one.groups if group.axis is axis]
    return bool(spans) and not any(spans)
