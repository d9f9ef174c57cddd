"""Kernels to calls: which call made which GPU work.

Tried in order, and noted with the link: the kernel was launched inside the record; it carries the record's
External id; it was launched at the end of a coalesced range, after the records that it serves (batched P2P, whose
kernels carry nothing). A kernel without a launch was launched before the recording began.
"""

from __future__ import annotations

from enum import StrEnum

import polars as pl

from tracelens.trace.columns import Events, GpuWork
from tracelens.trace.kernels import Family, find_family, is_matmul

_PYTORCH_COMPUTE = "at::native"


class Link(StrEnum):
    """How a kernel was found to belong to a call."""

    launch = "launch"
    external_id = "external_id"
    position = "position"


def classify_gpu(events: Events, extra: tuple[Family, ...]) -> pl.DataFrame:
    """The GPU work of a trace with what its names tell.

    Returns:
        `Events.gpu` with `row`, `is_comm`, `is_matmul`, `family` (library), `hint` (primitive proven by the name),
        `launch_ns`, `launch_thread` (null when launched before the window) and `replayed` (by a CUDA graph).
        Communication is told by name or by
        the record that a kernel carries, never by stream.
    """
    gpu = events.gpu.with_row_index("row")
    names = gpu["name"].unique().to_list()
    families = [find_family(events.names[code], extra) for code in names]
    table = pl.DataFrame(
        {
            "name": names,
            "named_comm": [family is not None for family in families],
            "computes": [_PYTORCH_COMPUTE in events.names[code] for code in names],
            "is_matmul": [is_matmul(events.names[code]) for code in names],
            "family": [None if family is None else family.library for family in families],
            "hint": [family and family.primitive and family.primitive.value for family in families],
        },
        schema={
            "name": pl.UInt32,
            "named_comm": pl.Boolean,
            "computes": pl.Boolean,
            "is_matmul": pl.Boolean,
            "family": pl.String,
            "hint": pl.String,
        },
    )  # fmt: skip
    recorded = events.kernel_records.select("row", recorded=pl.lit(value=True))
    replays = [code for code, name in enumerate(events.names) if "GraphLaunch" in name]
    launches = (
        events.launches.filter(pl.col("correlation").is_not_null())
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", launch_ns="start_ns", launch_thread="thread", replayed=pl.col("name").is_in(replays))
    )
    is_kernel = pl.col("work") == GpuWork.kernel
    carries = pl.col("recorded").fill_null(value=False) & ~pl.col("computes")
    return (
        gpu.join(table, on="name", how="left", maintain_order="left")
        .join(recorded, on="row", how="left", maintain_order="left")
        .join(launches, on="correlation", how="left", maintain_order="left")
        .with_columns(is_comm=is_kernel & (pl.col("named_comm") | carries))
        .drop("named_comm", "computes", "recorded")
    )


def drop_duplicates(gpu: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """GPU work without exact repetitions of an event, and how many there were."""
    identity = ["start_ns", "end_ns", "name", "stream", "device", "correlation"]
    unique = gpu.unique(identity, keep="first", maintain_order=True)
    return unique, len(gpu) - len(unique)


def link_kernels(comm: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Which kernel serves which call.

    Args:
        comm: communication kernels: `row`, `external_id`, `correlation`, `launch_ns`, `launch_thread`, `hint`.
        calls: `call`, `start_ns`, `end_ns`, `thread`, `external_id`, `primitive`, `group_size`.

    Returns:
        `row`, `call`, `link`; a kernel may serve several calls and a call may have several kernels.
    """
    by_launch = _link_by_launch(comm, calls)
    rest = comm.join(by_launch, on="row", how="anti")
    by_id = _link_by_external_id(rest, calls)
    rest = rest.join(by_id, on="row", how="anti")
    found = pl.concat([by_launch, by_id])
    # a group of one sends nothing: what it copies, it copies inside its record
    waiting = calls.filter(pl.col("group_size").fill_null(2) > 1).join(found, on="call", how="anti")
    by_position = _link_by_position(rest, comm, waiting)
    return pl.concat([found, by_position]).sort("row", "call")


def _link_by_launch(comm: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    launched = comm.filter(pl.col("launch_ns").is_not_null()).sort("launch_ns")
    spans = calls.select("call", "thread", span_start="start_ns", span_end="end_ns").sort("span_start")
    joined = launched.join_asof(
        spans,
        left_on="launch_ns",
        right_on="span_start",
        by_left="launch_thread",
        by_right="thread",
        check_sortedness=False,
    )
    return _links(joined.filter(pl.col("launch_ns") <= pl.col("span_end")), Link.launch)


def _link_by_external_id(comm: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    # until 2.1 a kernel's External id repeats its correlation and means nothing
    named = comm.filter((pl.col("external_id") != pl.col("correlation")).fill_null(value=False))
    once = calls.select("call", "external_id").unique("external_id", keep="first")
    return _links(named.join(once, on="external_id"), Link.external_id)


def _link_by_position(bare: pl.DataFrame, comm: pl.DataFrame, pending: pl.DataFrame) -> pl.DataFrame:
    """Calls without a kernel to the next kernel that their thread launches, if that one belongs to no call yet."""
    launches = (
        comm.filter(pl.col("launch_ns").is_not_null())
        .select("row", "launch_ns", "launch_thread", "hint")
        .sort("launch_ns")
    )
    joined = pending.sort("end_ns").join_asof(
        launches,
        left_on="end_ns",
        right_on="launch_ns",
        by_left="thread",
        by_right="launch_thread",
        strategy="forward",
        check_sortedness=False,
    )
    fits = pl.col("hint").is_null() | (pl.col("hint") == pl.col("primitive"))
    # what a CUDA graph replays was recorded when the graph was captured, so no call waits for it
    served = bare.filter(~pl.col("replayed").fill_null(value=False)).select("row")
    return _links(joined.join(served, on="row", how="semi").filter(fits), Link.position)


def _links(found: pl.DataFrame, link: Link) -> pl.DataFrame:
    return found.select(pl.col("row").cast(pl.UInt32), pl.col("call").cast(pl.UInt32), link=pl.lit(link.value))
