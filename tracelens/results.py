"""What is told of a job: plain immutable structs, one field per JSON key of the contract.

Units are the last part of a name. `None` is unknown, never 0 or "". The JSON Schema is made from these
classes (`tracelens schema`), so their docstrings are its descriptions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from tracelens.collectives import Primitive
from tracelens.errors import Problem, Severity
from tracelens.many_ranks import Clock, Dilation, LinkUse, Pipeline, Routing, Skew
from tracelens.topology import Axis


class Phase(StrEnum):
    """Where in a step a call was issued."""

    forward = "forward"
    backward = "backward"
    optimizer = "optimizer"
    mixed = "mixed"


class Evidence(StrEnum):
    """Where the statement about a call comes from, best first."""

    metadata = "metadata"
    cpu_record = "cpu_record"
    kernel_name = "kernel_name"
    position = "position"


class RanksSource(StrEnum):
    """Where the ranks of a group come from.

    `metadata` is pg_config, `record` the list of the calls, `rebuilt` start, stride and size, or the size of the job,
    `assumed` that of the job for a communicator that is known by its stream only.
    """

    metadata = "metadata"
    record = "record"
    rebuilt = "rebuilt"
    assumed = "assumed"


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One trace or summary that was read."""

    path: str
    rank: int | None
    window: int | None
    """Number of the recording window of this rank, by time, from 0."""
    bytes: int
    events: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was left out, and why."""

    path: str
    why: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the communication the numbers rest on."""

    calls: int
    """Calls that the program issued: records without `wait`."""
    calls_with_bytes: int
    """Calls whose wire bytes are known."""
    calls_with_kernel: int
    kernels: int
    """Communication kernels on the GPU."""
    kernels_with_call: int
    unsized_kernels: int
    """Kernels whose bytes are unknown; they count in time only."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The job and what was read of it."""

    world_size: int | None
    ranks: tuple[int, ...]
    files: tuple[TraceFile, ...]
    steps: tuple[int, ...]
    backend: str | None
    devices: tuple[str, ...]
    gpus_per_node: int | None
    coverage: Coverage
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One set of ranks that communicates; several process groups of equal ranks stand together here."""

    id: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    size: int | None
    ranks: tuple[int, ...] | None
    ranks_source: RanksSource | None
    mesh: tuple[tuple[int, int], ...] | None
    """(size, stride), innermost first; null when irregular or unknown."""
    axis: Axis | None = None
    axes: tuple[Axis, ...] = ()
    roles: tuple[Axis, ...] = ()
    spans_nodes: bool | None = None
    confidence: float | None = None


class CallsPerStep(msgspec.Struct, frozen=True, kw_only=True):
    """Spread of the number of calls over the steps used."""

    min: int
    median: float
    max: int
    mean: float


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that a row rests on, of all its steps and ranks; null where there is no call.

    Bytes and times are sums over the calls that tell them, so where some don't they are lower bounds.
    """

    calls: int | None = None
    """Calls of the row."""
    calls_with_bytes: int | None = None
    """Those whose size is known: with fewer than `calls` the bytes are lower bounds."""
    calls_with_time: int | None = None
    """Those with a kernel: with fewer than `calls` the times are lower bounds."""

    @property
    def lacks_bytes(self) -> bool:
        """Whether calls are without bytes."""
        return self.calls is not None and (self.calls_with_bytes or 0) < self.calls

    @property
    def lacks_time(self) -> bool:
        """Whether calls are without a kernel."""
        return self.calls is not None and (self.calls_with_time or 0) < self.calls


class Traffic(Basis, frozen=True, kw_only=True):
    """What one class of ranks sends in one group with one primitive, per step (means over the steps used)."""

    ranks: tuple[int, ...]
    rank_class: int = msgspec.field(name="class")
    axis: Axis | None
    group: str | None
    names: tuple[str, ...] = ()
    """Process-group names that carried it: groups of equal ranks are kept apart here."""
    primitive: Primitive
    dtype: str | None
    phase: Phase | None
    evidence: Evidence | None
    steps_used: int
    calls_per_step: CallsPerStep
    kernels_per_step: float
    unlinked_kernels: int
    """Kernels launched before the recording began: they belong to no step."""
    payload_bytes_per_step: int | None
    wire_bytes_per_step: int | None
    busy_ns_per_step: int | None
    exposed_ns_per_step: int | None
    sized_busy_ns_per_step: int | None = None
    """Busy time of the calls whose wire bytes are known."""
    calls_with_payload: int | None = None
    """Calls whose payload is known; its splits, and so the bytes sent, may not be."""
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    kernel: str | None = None
    """Kernel name, for rows that no call explains."""

    @property
    def lacks_payload(self) -> bool:
        """Whether calls are without a payload."""
        return self.calls is not None and (self.calls_with_payload or 0) < self.calls

    @property
    def is_partly_sent(self) -> bool:
        """Whether the row sends something, in calls or by kernels, whose bytes are not known."""
        moves = self.calls_per_step.max > 0 or self.kernels_per_step > 0
        return self.lacks_bytes or (moves and self.wire_bytes_per_step is None)

    @property
    def unsized_busy_ns_per_step(self) -> int:
        """Busy time in which no call runs whose bytes are known."""
        busy = self.busy_ns_per_step or 0
        if self.sized_busy_ns_per_step is None:
            return busy if self.wire_bytes_per_step is None else 0
        return busy - self.sized_busy_ns_per_step


class SizeRow(Basis, frozen=True, kw_only=True):
    """A row of traffic cut further by the size of its calls; per step, means over ranks and steps."""

    rank_class: int = msgspec.field(name="class")
    axis: Axis | None = None
    """As of its row of traffic: in a group of several roles that of its calls; null when unknown."""
    group: str | None
    primitive: Primitive
    dtype: str | None
    phase: Phase | None
    from_bytes: int | None
    """Payload of a call, at least; null when unknown."""
    to_bytes: int | None
    """Payload of a call, at most: equal to `from_bytes` unless the key has many sizes."""
    steps_used: int
    calls_per_step: CallsPerStep
    payload_bytes_per_step: int | None
    wire_bytes_per_step: int | None
    busy_ns_per_step: int | None
    exposed_ns_per_step: int | None
    busy_spread_ns: int | None
    """Standard deviation between steps (of the mean over ranks); null with fewer than two steps."""
    exposed_spread_ns: int | None


class GroupTime(Basis, frozen=True, kw_only=True):
    """What one class of ranks spends in one group, all primitives together, per step (means over steps and ranks).

    Times are unions, so calls that run at the same time count once; they may be less than the sum of the rows.
    """

    rank_class: int = msgspec.field(name="class")
    group: str | None
    """null: kernels that belong to no known group."""
    calls_per_step: float
    wire_bytes_per_step: int | None
    busy_ns_per_step: int | None
    exposed_ns_per_step: int | None


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time budget of one rank in one step: span = compute + exposed_comm + exposed_memory + idle, exactly."""

    rank: int | None
    step: int | None
    span_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_memory_ns: int
    idle_ns: int
    comm_ns: int
    overlap_ns: int
    memory_ns: int
    untimed_calls: int = 0
    """Calls of the step without a kernel: what the GPU did for them counts as idle, or not at all."""


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Percent of the communication of a whole trace that compute covers; null without communication."""

    rank: int | None
    comm_overlap_pct: float | None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured of a job."""

    run: Run
    groups: tuple[Group, ...]
    traffic: tuple[Traffic, ...]
    group_time: tuple[GroupTime, ...] = ()
    sizes: tuple[SizeRow, ...] = ()
    time: tuple[StepTime, ...]
    overlap: tuple[Overlap, ...]
    skew: tuple[Skew, ...] | None = None
    """Transfer and waiting; null until several ranks are read."""
    clocks: tuple[Clock, ...] | None = None
    pipeline: Pipeline | None = None
    routing: Routing | None = None
    dilation: Dilation | None = None
    links: tuple[LinkUse, ...] | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth a reader's attention."""

    code: str
    """`TL` and three digits: 1xx input, 2xx classification, 3xx prediction, 4xx limits; docs/findings.md lists them."""
    name: str | None = None
    """The bad thing in words, such as `exposed-communication`."""
    severity: Severity
    message: str
    hint: str | None = None
    axis: Axis | None = None
    ranks: tuple[int, ...] = ()
    measured: float | None = None
    limit: float | None = None
    unit: str | None = None
    """Of `measured` and `limit`: `bytes`, `ns`, `calls`, `fraction`, `ranks`, `bytes_per_s`."""
    claimed_ns: int | None = None
    """Exposed time of a step that this finding speaks for, mean over the ranks; no two findings claim the same."""
    coverage: str | None = None
    """What the numbers rest on."""


LimitVerdict = Literal["kept", "broken", "exceeded", "not_checked"]
"""`broken` fails the job; `exceeded` is not kept either, and only warns: `[severity]` of the policy decides."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of a policy, and how a run stands to it."""

    name: str
    """Its key in the policy (`limits.idle_fraction`, `expect.tp`), or the kind of call that the reference limits."""
    verdict: LimitVerdict
    bound: Literal["exactly", "about", "at most", "at least"]
    """`about` where the policy or the reference allows a difference."""
    measured: float | int | str | None = None
    limit: float | int | str | None = None
    unit: str | None = None
    """As of a finding, or `percent`; null for words and degrees."""
