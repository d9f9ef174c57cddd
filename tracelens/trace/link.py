"""Kernels to calls: which call made which GPU work.

Tried in order, and noted with the link: the kernel was launched inside the record; it carries the record's
External id; it was launched at the end of a coalesced range, after the records that it serves (batched P2P, whose
kernels carry nothing). A kernel without a launch was launched before the recording began.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
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
    told = _tell_by_name(gpu["name"], events.names, extra)
    recorded = np.zeros(len(gpu), np.bool_)
    recorded[events.kernel_records["row"].to_numpy()] = True
    carries = pl.Series(recorded) & ~told["computes"]
    launches = events.launches.drop_nulls("correlation")
    rows = _find_first(launches["correlation"].to_numpy(), gpu["correlation"])
    replays = [code for code, name in enumerate(events.names) if "GraphLaunch" in name]
    return gpu.with_columns(
        is_comm=(gpu["work"] == GpuWork.kernel) & (told["named_comm"] | carries),
        is_matmul=told["is_matmul"],
        family=told["family"],
        hint=told["hint"],
        launch_ns=launches["start_ns"].gather(rows),
        launch_thread=launches["thread"].gather(rows),
        replayed=launches["name"].is_in(replays).gather(rows),
    )


def _tell_by_name(codes: pl.Series, names: Sequence[str], extra: tuple[Family, ...]) -> pl.DataFrame:
    """What the names of kernels tell, a row per kernel; each name is looked at once."""
    used = set(codes.unique())
    families = [find_family(name, extra) if code in used else None for code, name in enumerate(names)]
    hints = [family and family.primitive and family.primitive.value for family in families]
    libraries = [family and family.library for family in families]
    table = pl.DataFrame(
        {
            "named_comm": pl.Series([family is not None for family in families], dtype=pl.Boolean),
            "computes": pl.Series([_PYTORCH_COMPUTE in name for name in names], dtype=pl.Boolean),
            "is_matmul": pl.Series([is_matmul(name) for name in names], dtype=pl.Boolean),
            "family": pl.Series(libraries, dtype=pl.Enum(sorted({library for library in libraries if library}))),
            "hint": pl.Series(hints, dtype=pl.Enum(sorted({hint for hint in hints if hint}))),
        }
    )
    return table[codes.to_numpy()]


def _find_first(ids: npt.NDArray[np.int64], wanted: pl.Series) -> pl.Series:
    """Where each wanted id stands first among the ids; null where it does not."""
    order = np.argsort(ids, kind="stable")
    want = wanted.fill_null(0).to_numpy()
    place = np.searchsorted(ids, want, sorter=order)
    place[place == len(ids)] = 0
    rows = order[place] if len(ids) else place
    found = pl.Series(ids[rows] == want) if len(ids) else pl.repeat(value=False, n=len(want), eager=True)
    return pl.Series(rows).set(~found | wanted.is_null(), None)


def drop_duplicates(gpu: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """GPU work without exact repetitions of an event, and how many there were."""
    identity = ["start_ns", "end_ns", "name", "stream", "device", "correlation"]
    starts = np.sort(gpu["start_ns"].to_numpy())
    shared = pl.Series(starts[1:][starts[1:] == starts[:-1]]).unique()
    # few kernels start at the same ns; to compare all with all would need twice their memory
    if not gpu.filter(pl.col("start_ns").is_in(shared.implode())).select(identity).is_duplicated().any():
        return gpu, 0
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
    fits = pl.col("hint").is_null() | (pl.col("hint").cast(pl.String) == pl.col("primitive"))
    # what a CUDA graph replays was recorded when the graph was captured, so no call waits for it
    served = bare.filter(~pl.col("replayed").fill_null(value=False)).select("row")
    return _links(joined.join(served, on="row", how="semi").filter(fits), Link.position)


def _links(found: pl.DataFrame, link: Link) -> pl.DataFrame:
    return found.select(pl.col("row").cast(pl.UInt32), pl.col("call").cast(pl.UInt32), link=pl.lit(link.value))
