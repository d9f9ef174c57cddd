"""Every finding that there is: its code, its word, and what it says of itself. Codes never change their meaning.

1xx input, 2xx classification, 3xx prediction, 4xx limits.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tracelens.errors import Severity


class Code(StrEnum):
    """Codes by the word that names the bad thing."""

    traffic_unsized = "TL101"
    not_checked = "TL102"
    layout_differs = "TL201"
    layout_undetermined = "TL202"
    groups_duplicated = "TL203"
    group_of_one = "TL204"
    sequence_parallel_missing = "TL205"
    calls_differ = "TL301"
    bytes_differ = "TL302"
    bytes_unexplained = "TL303"
    accumulation_saves_nothing = "TL304"
    reduction_in_fp32 = "TL305"
    exposed_communication = "TL401"
    tp_across_nodes = "TL402"
    dp_exposed = "TL403"
    messages_small = "TL404"
    bubble_over_promise = "TL405"
    experts_imbalanced = "TL406"
    bandwidth_under_link = "TL407"
    idle_time = "TL408"
    straggler = "TL409"
    group_spans_nodes = "TL410"
    time_regressed = "TL411"
    overlap_lost = "TL412"

    @property
    def word(self) -> str:
        """The bad thing in words: `tp-across-nodes`."""
        return self.name.replace("_", "-")


class About(NamedTuple):
    """What a code stands for."""

    title: str
    severity: Severity
    """Where no policy says otherwise."""


ABOUT: dict[Code, About] = {
    Code.traffic_unsized: About("Traffic whose bytes are unknown", Severity.warning),
    Code.not_checked: About("A limit that could not be checked", Severity.warning),
    Code.layout_differs: About("The traffic shows another layout than the policy expects", Severity.error),
    Code.layout_undetermined: About("The traffic does not settle what the policy expects", Severity.warning),
    Code.groups_duplicated: About("Several process groups of the same ranks", Severity.info),
    Code.group_of_one: About("Groups of one rank that still communicate", Severity.warning),
    Code.sequence_parallel_missing: About("Tensor parallelism without sequence parallelism", Severity.info),
    Code.calls_differ: About("Another number of calls than the reference", Severity.error),
    Code.bytes_differ: About("Other bytes than the reference", Severity.error),
    Code.bytes_unexplained: About("Bytes that the ledger does not explain", Severity.error),
    Code.accumulation_saves_nothing: About("Gradient accumulation that saves no communication", Severity.warning),
    Code.reduction_in_fp32: About("Gradients reduced in fp32", Severity.info),
    Code.exposed_communication: About("More exposed communication than the limit", Severity.warning),
    Code.tp_across_nodes: About("Tensor parallelism across nodes", Severity.warning),
    Code.dp_exposed: About("Data-parallel communication that nothing hides", Severity.warning),
    Code.messages_small: About("Small messages", Severity.warning),
    Code.bubble_over_promise: About("A pipeline bubble larger than promised", Severity.warning),
    Code.experts_imbalanced: About("Experts that receive unequal loads", Severity.warning),
    Code.bandwidth_under_link: About("Bandwidth far under the link", Severity.warning),
    Code.idle_time: About("More idle time than the limit", Severity.warning),
    Code.straggler: About("A rank that keeps the others waiting", Severity.warning),
    Code.group_spans_nodes: About("A group crosses nodes that may not", Severity.error),
    Code.time_regressed: About("A step part that takes longer than the reference", Severity.warning),
    Code.overlap_lost: About("Less communication under compute than the reference", Severity.warning),
}
