"""Groups of traces that name none: the stream on which a kernel runs is the communicator's identity.

c10d gives each NCCL communicator a stream of its own (ProcessGroupNCCL.cpp, `ncclStreams_`). The size comes from
what goes in and out of gathers and scatters; where the whole trace has one communicator it is taken for the job's.
"""

from __future__ import annotations

import polars as pl

from tracelens.trace.faults import Told
from tracelens.trace.lookup import look_up


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
