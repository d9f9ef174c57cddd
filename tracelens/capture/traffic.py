"""From single calls to the rows that a trace gives: calls and bytes per step, by group and primitive."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from tracelens.capture.calls import Call, ProcessGroup
from tracelens.capture.frames import frame_of, group_rows, size_rows
from tracelens.collectives import DTYPES, Primitive
from tracelens.errors import Problem
from tracelens.measurement.traffic import REPORTED
from tracelens.results import CallsPerStep, Coverage, Evidence, Group, Measurement, Phase, RanksSource, Run, Traffic
from tracelens.topology import format_mesh, mesh_of


class RankCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank issued, in order."""

    rank: int
    calls: tuple[Call, ...]
    steps: tuple[int, ...]
    """The steps that count: those after the warm-up."""
    problems: tuple[Problem, ...] = ()
    """Where these are not the steps that were asked for."""


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a program would send, as seen by some of its ranks."""

    world_size: int
    ranks: tuple[RankCalls, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The process groups that carried a call in the steps that count, equal ranks together."""
        by_ranks: dict[tuple[int, ...], list[ProcessGroup]] = defaultdict(list)
        for rank in self.ranks:
            for call in _counted(rank):
                if call.group not in by_ranks[call.group.ranks]:
                    by_ranks[call.group.ranks].append(call.group)
        return tuple(_group(ranks, groups) for ranks, groups in sorted(by_ranks.items()))

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Rows as a trace has them, one rank each."""
        return tuple(row for index, rank in enumerate(self.ranks) for row in _rank_traffic(index, rank))

    @property
    def measurement(self) -> Measurement:
        """What a trace of these ranks would be measured as, without its times."""
        count = sum(1 for rank in self.ranks for _ in _counted(rank))
        run = Run(
            world_size=self.world_size,
            ranks=tuple(rank.rank for rank in self.ranks),
            files=(),
            steps=tuple(sorted({step for rank in self.ranks for step in rank.steps})),
            backend="fake",
            devices=(),
            gpus_per_node=None,
            coverage=Coverage(
                calls=count,
                calls_with_kernel=0,
                kernels=0,
                kernels_with_call=0,
                unsized_kernels=0,
                calls_with_bytes=count,
            ),
            problems=tuple(problem for rank in self.ranks for problem in rank.problems),
        )
        calls = frame_of(row for index, rank in enumerate(self.ranks) for row in _frame_rows(index, rank))
        steps = [rank.steps for rank in self.ranks]
        return Measurement(
            run=run,
            groups=self.groups,
            traffic=self.traffic,
            group_time=group_rows(calls, steps),
            sizes=size_rows(calls, [len(used) for used in steps]),
            time=(),
            overlap=(),
        )

    def call_rows(self) -> list[dict[str, object]]:
        """Every single call of the steps that count, with its module."""
        return [_call_row(rank.rank, call) for rank in self.ranks for call in _counted(rank)]


_Key = tuple[tuple[int, ...], Primitive, str | None, Phase | None]


def _counted(rank: RankCalls) -> Iterable[Call]:
    return (call for call in rank.calls if call.step in rank.steps)


def _call_row(rank: int, call: Call) -> dict[str, object]:
    return {
        "rank": rank,
        "step": call.step,
        "phase": call.phase,
        "module": call.module,
        "primitive": call.primitive,
        "name": call.name,
        "group": group_id(call.group.ranks),
        "dtype": DTYPES[call.dtype][0] if call.dtype else None,
        "in_elements": call.in_elements,
        "out_elements": call.out_elements,
        "peer": call.peer,
    }


def _frame_rows(index: int, rank: RankCalls) -> Iterable[dict[str, object]]:
    """The rows of `frames.CALLS` of one rank."""
    for call in _counted(rank):
        group = group_id(call.group.ranks)
        yield {
            "rank_index": index,
            "rank_class": index,
            "step": call.step,
            "kind": group,
            "group": group,
            "primitive": _reported(call.primitive),
            "dtype": DTYPES[call.dtype][0] if call.dtype else None,
            "phase": call.phase,
            "payload_bytes": call.payload_bytes,
            "wire_bytes": call.wire_bytes(rank.rank),
            "kernels": 0,
        }


def _reported(primitive: Primitive) -> Primitive:
    """The primitive in the contract's words."""
    return primitive if primitive in REPORTED else Primitive.other


def _rank_traffic(rank_class: int, rank: RankCalls) -> Iterable[Traffic]:
    rows: dict[_Key, list[Call]] = defaultdict(list)
    for call in _counted(rank):
        dtype = DTYPES[call.dtype][0] if call.dtype else None
        rows[call.group.ranks, _reported(call.primitive), dtype, call.phase].append(call)
    for (ranks, primitive, dtype, phase), calls in rows.items():
        yield Traffic(
            ranks=(rank.rank,),
            rank_class=rank_class,
            axis=None,
            group=group_id(ranks),
            names=tuple(sorted({call.group.name for call in calls})),
            primitive=primitive,
            dtype=dtype,
            phase=phase,
            evidence=Evidence.cpu_record,
            steps_used=len(rank.steps),
            calls_per_step=_calls_per_step(calls, rank.steps),
            kernels_per_step=0.0,
            unlinked_kernels=0,
            payload_bytes_per_step=round(sum(call.payload_bytes for call in calls) / len(rank.steps)),
            wire_bytes_per_step=round(sum(call.wire_bytes(rank.rank) for call in calls) / len(rank.steps)),
            busy_ns_per_step=None,
            exposed_ns_per_step=None,
            algbw_bytes_per_s=None,
            busbw_bytes_per_s=None,
            calls=len(calls),
            calls_with_payload=len(calls),
            calls_with_bytes=len(calls),
            calls_with_time=0,
        )


def _calls_per_step(calls: Sequence[Call], steps: Sequence[int]) -> CallsPerStep:
    counts = [sum(call.step == step for call in calls) for step in steps]
    return CallsPerStep(
        min=min(counts), median=statistics.median(counts), max=max(counts), mean=statistics.mean(counts)
    )


def group_id(ranks: tuple[int, ...]) -> str:
    """A name for a set of ranks that says which: `[[8,1]]@0`, or the ranks where they are no mesh."""
    mesh = mesh_of(ranks)
    return ",".join(map(str, ranks)) if mesh is None else f"{format_mesh(mesh)}@{ranks[0]}"


def _group(ranks: tuple[int, ...], groups: Sequence[ProcessGroup]) -> Group:
    return Group(
        id=group_id(ranks),
        names=tuple(group.name for group in groups),
        descriptions=tuple(sorted({group.description for group in groups})),
        size=len(ranks),
        ranks=ranks,
        ranks_source=RanksSource.metadata,
        mesh=mesh_of(ranks),
    )
