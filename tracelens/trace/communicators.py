"""Groups of traces that name none: the stream on which a kernel runs is the communicator's identity.

c10d gives each NCCL communicator a stream of its own (ProcessGroupNCCL.cpp, `ncclStreams_`). The size comes from
what goes in and out of gathers and scatters; where the whole trace has one communicator it is taken for the job's.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.summary import LocalGroup
from tracelens.topology import mesh_of
from tracelens.trace.faults import Told
from tracelens.trace.lookup import look_up
from tracelens.units import plural


def name_by_stream(
    calls: pl.DataFrame, comm: pl.DataFrame, links: pl.DataFrame, world_size: int | None
) -> tuple[pl.DataFrame, list[Told]]:
    """Give calls without a group's name or ranks the stream of their kernel for a name, and a size.

    Args:
        calls: with `group_name`, `group_id`, `group_ranks`, `group_size`.
        comm: communication kernels: `row`, `stream`.
        links: `row`, `call`.
        world_size: ranks of the job, where it is known.

    Returns:
        The calls, and what was assumed.
    """
    nameless = pl.col("group_name").is_null() & pl.col("group_id").is_null() & pl.col("group_ranks").is_null()
    if calls.select(nameless.any()).item() is not True:
        return calls, []
    streams = links.join(comm.select("row", "stream"), on="row").group_by("call").agg(pl.col("stream").first())
    calls = calls.join(streams, on="call", how="left", maintain_order="left")
    bare = calls.filter(nameless & pl.col("stream").is_not_null())
    sizes = dict(bare.group_by("stream").agg(pl.col("group_size").drop_nulls().mode().min()).iter_rows())
    told: list[Told] = []
    if len(sizes) == 1 and comm["stream"].n_unique() == 1 and world_size is not None:
        ((stream, size),) = sizes.items()
        if size is None:
            sizes = {stream: world_size}
            told.append(
                (
                    "communicator-assumed",
                    f"the trace names no group and has one communicator: taken for all {world_size} ranks",
                )
            )
    named = pl.format("stream {}", "stream")
    return (
        calls.with_columns(
            group_name=pl.when(nameless & pl.col("stream").is_not_null()).then(named).otherwise("group_name"),
            group_size=pl.when(nameless)
            .then(pl.coalesce("group_size", look_up(pl.col("stream"), sizes, pl.Int64())))
            .otherwise("group_size"),
        ).drop("stream"),
        told,
    )


_GLOO = "gloo"


def take_gloo_group(
    calls: pl.DataFrame, configured: Sequence[LocalGroup], backend: str | None
) -> tuple[pl.DataFrame, list[Told]]:
    """Give calls on gloo the ranks of the job's groups where all have the same ones; else say that they have none.

    Neither gloo nor its operators name a group, and they have no kernel whose stream could tell it.

    Args:
        calls: with `group_name`, `group_id`, `group_ranks`, `group_size`, `rank_start`, `rank_stride`.
        configured: the groups of the trace head.
        backend: of the job.

    Returns:
        The calls, and what was assumed.
    """
    nameless = pl.all_horizontal(pl.col("group_name", "group_id", "group_ranks", "group_size").is_null())
    count = int(calls.select(nameless.sum()).item())
    if backend != _GLOO or not count:
        return calls, []
    ranks = _ranks_of_all(configured)
    mesh = None if ranks is None else mesh_of(ranks)
    untimed = "how long they ran is in no number, for it is no time of a GPU"
    if ranks is None or mesh is None or len(mesh) > 1:
        standing = plural(count, "call stands", "calls stand")
        return calls, [("group-unknown", f"gloo names no group: {standing} without one; {untimed}")]
    told = {"group_size": len(ranks), "rank_start": ranks[0], "rank_stride": mesh[0][1] if mesh else 1}
    filled = [pl.when(nameless).then(value).otherwise(name).alias(name) for name, value in told.items()]
    whose = f"all {plural(len(ranks), 'rank')} that each of the {plural(len(configured), 'group')} holds"
    taken = plural(count, "call is taken", "calls are taken")
    return calls.with_columns(filled), [
        ("communicator-assumed", f"gloo names no group: {taken} for those of {whose}; {untimed}")
    ]


def _ranks_of_all(configured: Sequence[LocalGroup]) -> tuple[int, ...] | None:
    """The ranks of every group; None where they differ, or are not known."""
    ranks = {group.ranks for group in configured}
    return next(iter(ranks)) or None if len(ranks) == 1 else None
