"""Findings that teach: what is odd or slow in a job, with its numbers and what to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracelens.checks.exposed import find_exposed_dp
from tracelens.checks.facts import Facts
from tracelens.checks.gradients import (
    find_fp32_reduction,
    find_idle_accumulation,
    find_small_messages,
)
from tracelens.checks.placement import (
    find_duplicated_groups,
    find_groups_of_one,
    find_missing_sequence_parallel,
    find_tp_across_nodes,
    find_unsized_traffic,
)
from tracelens.checks.waiting import find_idle, find_large_bubble, find_slow_links, find_unequal_experts
from tracelens.compared import Comparison
from tracelens.errors import Severity
from tracelens.inferred import Inference
from tracelens.results import Finding, Measurement

FINDERS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    find_tp_across_nodes,
    find_groups_of_one,
    find_unequal_experts,
    find_large_bubble,
    find_idle_accumulation,
    find_small_messages,
    find_slow_links,
    find_exposed_dp,
    find_fp32_reduction,
    find_missing_sequence_parallel,
    find_duplicated_groups,
    find_unsized_traffic,
    find_idle,
)
"""The more a finding knows of a cause, the sooner it may claim exposed time."""

_RANK = {Severity.error: 0, Severity.warning: 1, Severity.info: 2}


def find(
    measurement: Measurement, inference: Inference | None = None, comparison: Comparison | None = None
) -> tuple[Finding, ...]:
    """Everything worth a reader's attention, the gravest and costliest first.

    No two findings claim the same exposed time, and all together claim no more than there is.

    Args:
        measurement: with axes on its groups, where they are known.
        inference: the layout behind the traffic.
        comparison: with the ledger.
    """
    facts = Facts(measurement, inference, comparison)
    found = [finding for finder in FINDERS for finding in finder(facts)]
    if inference is not None:
        found += inference.findings
    return tuple(sorted(found, key=lambda one: (_RANK[one.severity], -(one.claimed_ns or 0), one.code)))
