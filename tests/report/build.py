"""Results built by hand: the least that a report needs, with every part replaceable."""

from __future__ import annotations

from typing import Any

from tracelens.collectives import Primitive
from tracelens.errors import Problem, Severity
from tracelens.report.document import Document, make_document
from tracelens.results import (
    CallsPerStep,
    Coverage,
    Evidence,
    Group,
    GroupTime,
    Measurement,
    Overlap,
    Phase,
    RanksSource,
    Run,
    Skipped,
    StepTime,
    TraceFile,
    Traffic,
)
from tracelens.topology import format_mesh, mesh_of

MS = 1_000_000
MIB = 1024**2


def a_run(ranks: tuple[int, ...] = (0, 1), **changes: Any) -> Run:
    defaults: dict[str, Any] = {
        "world_size": len(ranks),
        "ranks": ranks,
        "files": tuple(
            TraceFile(path=f"traces/rank{rank}.json.gz", rank=rank, window=0, bytes=3 * MIB, events=12_345)
            for rank in ranks
        ),
        "steps": (3, 4),
        "backend": "nccl",
        "devices": ("NVIDIA H100 80GB HBM3",),
        "gpus_per_node": 8,
        "coverage": Coverage(
            calls=80, calls_with_bytes=79, calls_with_kernel=78, kernels=79, kernels_with_call=78, unsized_kernels=1
        ),
    }
    return Run(**{**defaults, **changes})


def a_group(ranks: tuple[int, ...], /, name: str, description: str = "undefined", **changes: Any) -> Group:
    mesh = mesh_of(ranks)
    written = "irregular" if mesh is None else format_mesh(mesh)
    defaults: dict[str, Any] = {
        "id": f"{name}:{written}@{ranks[0]}",
        "names": (name,),
        "descriptions": (description,),
        "size": len(ranks),
        "ranks": ranks,
        "ranks_source": RanksSource.metadata,
        "mesh": mesh,
        "spans_nodes": ranks[0] // 8 != ranks[-1] // 8,
    }
    return Group(**{**defaults, **changes})


def a_row(group: Group | None, primitive: Primitive, ranks: tuple[int, ...], /, **changes: Any) -> Traffic:
    defaults: dict[str, Any] = {
        "ranks": ranks,
        "rank_class": 0,
        "axis": None,
        "group": None if group is None else group.id,
        "primitive": primitive,
        "dtype": "bf16",
        "phase": Phase.forward,
        "evidence": Evidence.metadata,
        "steps_used": 2,
        "calls_per_step": CallsPerStep(min=8, median=8, max=8, mean=8),
        "kernels_per_step": 8.0,
        "unlinked_kernels": 0,
        "payload_bytes_per_step": 256 * MIB,
        "wire_bytes_per_step": 256 * MIB,
        "busy_ns_per_step": 12 * MS,
        "exposed_ns_per_step": 4 * MS,
        "algbw_bytes_per_s": 22.4e9,
        "busbw_bytes_per_s": 22.4e9,
        "calls_with_bytes": 16,
        "calls_with_time": 16,
    }
    return Traffic(**{**defaults, **changes})


def an_unsized_row(kernel: str, ranks: tuple[int, ...], /, **changes: Any) -> Traffic:
    unknown: dict[str, Any] = {
        "dtype": None,
        "phase": None,
        "evidence": Evidence.kernel_name,
        "payload_bytes_per_step": None,
        "wire_bytes_per_step": None,
        "algbw_bytes_per_s": None,
        "busbw_bytes_per_s": None,
        "calls_with_bytes": None,
        "calls_with_time": None,
        "calls_per_step": CallsPerStep(min=0, median=0, max=0, mean=0),
        "kernel": kernel,
    }
    return a_row(None, Primitive.other, ranks, **{**unknown, **changes})


def a_step(rank: int | None, step: int | None, *, compute: int = 60, exposed: int = 25) -> StepTime:
    """A step whose parts are given in milliseconds: 5 of exposed memory, 10 idle, 20 of overlap."""
    return StepTime(
        rank=rank,
        step=step,
        span_ns=(compute + exposed + 15) * MS,
        compute_ns=compute * MS,
        exposed_comm_ns=exposed * MS,
        exposed_memory_ns=5 * MS,
        idle_ns=10 * MS,
        comm_ns=(exposed + 20) * MS,
        overlap_ns=20 * MS,
        memory_ns=6 * MS,
    )


def times_of(traffic: tuple[Traffic, ...]) -> tuple[GroupTime, ...]:
    """Group times of calls that never run at the same time: sums over the rows of a class and a group."""
    sets: dict[tuple[int, str | None], list[Traffic]] = {}
    for row in traffic:
        sets.setdefault((row.rank_class, row.group), []).append(row)
    return tuple(
        GroupTime(
            rank_class=number,
            group=group,
            calls_per_step=sum(row.calls_per_step.mean for row in rows),
            wire_bytes_per_step=_known_sum([row.wire_bytes_per_step for row in rows]),
            busy_ns_per_step=_known_sum([row.busy_ns_per_step for row in rows]),
            exposed_ns_per_step=_known_sum([row.exposed_ns_per_step for row in rows]),
        )
        for (number, group), rows in sets.items()
    )


def _known_sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def a_document(**parts: Any) -> Document:
    defaults: dict[str, Any] = {"run": a_run(), "groups": (), "traffic": (), "time": (), "overlap": ()}
    given = {**defaults, "group_time": times_of(parts.get("traffic", ())), **parts}
    return make_document(Measurement(**given))


def ordinary_document() -> Document:
    """Tensor parallelism over 2, data parallelism over 4: all 8 ranks, one kernel without bytes."""
    ranks = tuple(range(8))
    world = a_group(ranks, "0", "default_pg")
    tensor = [a_group((first, first + 1), "1", "mesh_tp") for first in range(0, 8, 2)]
    data = [a_group((first, first + 2, first + 4, first + 6), "2", "mesh_dp") for first in (0, 1)]
    traffic = (
        a_row(world, Primitive.all_reduce, ranks, dtype="fp32", phase=Phase.optimizer,
              calls_per_step=CallsPerStep(min=1, median=1.5, max=2, mean=1.5), payload_bytes_per_step=6,
              wire_bytes_per_step=10, busy_ns_per_step=18_000, exposed_ns_per_step=18_000,
              busbw_bytes_per_s=0.6e6),
        a_row(tensor[0], Primitive.all_gather, ranks),
        a_row(tensor[0], Primitive.reduce_scatter, ranks, phase=Phase.mixed, exposed_ns_per_step=0),
        a_row(data[0], Primitive.reduce_scatter, ranks, dtype="fp32", phase=Phase.backward,
              payload_bytes_per_step=1536 * MIB, wire_bytes_per_step=1152 * MIB,
              busy_ns_per_step=21 * MS, exposed_ns_per_step=17 * MS, busbw_bytes_per_s=57.5e9),
        an_unsized_row("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", ranks,
                       kernels_per_step=0.5, unlinked_kernels=3, busy_ns_per_step=900_000,
                       exposed_ns_per_step=900_000),
    )  # fmt: skip
    return a_document(
        run=a_run(
            ranks,
            skipped=(Skipped(path="traces/merged.json", why="a merged trace of several ranks"),),
            problems=(
                Problem(
                    code="events-duplicated",
                    severity=Severity.warning,
                    message="12 events stand twice in the file and are counted once",
                    file="traces/rank3.json.gz",
                    rank=3,
                ),
            ),
        ),
        groups=(world, *tensor, *data),
        traffic=traffic,
        time=tuple(a_step(rank, step, exposed=24 + rank % 3) for rank in ranks for step in (3, 4)),
        overlap=tuple(Overlap(rank=rank, comm_overlap_pct=44.4) for rank in ranks),
    )


def huge_document() -> Document:
    """512 ranks in 64 tensor-parallel groups and 128 odd ones, each rank a class of its own."""
    ranks = tuple(range(512))
    tensor = [a_group(tuple(range(first, first + 8)), "7", "mesh_tp") for first in range(0, 512, 8)]
    odd = [a_group((first, first + 1, first + 5), str(100 + first), "undefined") for first in range(0, 500, 4)]
    many = tuple(
        a_row(tensor[rank // 8], Primitive.all_reduce, (rank,), rank_class=rank, busy_ns_per_step=rank * MS)
        for rank in ranks
    )
    problem = Problem(code="kernels-unlinked", severity=Severity.info, message="2 kernels have no launch")
    return a_document(
        run=a_run(
            ranks,
            problems=tuple(
                Problem(code=problem.code, severity=problem.severity, message=problem.message, rank=rank)
                for rank in ranks
            ),
            skipped=tuple(Skipped(path=f"logs/{rank}.txt", why="not JSON") for rank in ranks),
        ),
        groups=(*tensor, *odd),
        traffic=many,
        time=tuple(a_step(rank, step, compute=60 + rank % 7) for rank in ranks for step in (3, 4)),
    )


def bare_document() -> Document:
    """A trace that says nothing of itself: no rank, no world, no step, no group."""
    coverage = Coverage(
        calls=0, calls_with_bytes=0, calls_with_kernel=0, kernels=4, kernels_with_call=0, unsized_kernels=4
    )
    file = TraceFile(path="trace.json", rank=None, window=None, bytes=900, events=40)
    return a_document(
        run=a_run((), world_size=None, files=(file,), steps=(), backend=None, devices=(),
                  gpus_per_node=None, coverage=coverage),
        traffic=(an_unsized_row("ncclKernel_AllReduce_RING_LL_Sum_float", (), busy_ns_per_step=4 * MS),),
        time=(a_step(None, None),),
    )  # fmt: skip
