"""What each call means: its group, peer, dtype and bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from tracelens.collectives import DTYPES, Primitive, wire_bytes
from tracelens.summary import LocalGroup
from tracelens.trace.groups import global_rank, local_rank, parse_splits, resolve_groups
from tracelens.trace.lookup import apply_once, look_up

P = Primitive
_PAYLOAD_IS_OUTPUT = (P.all_gather, P.gather)


def size_calls(
    calls: pl.DataFrame, configured: Sequence[LocalGroup], rank: int | None, world_size: int | None
) -> tuple[pl.DataFrame, list[LocalGroup]]:
    """Add group, peer, dtype, payload and wire bytes to the calls.

    Args:
        calls: as `find_calls` gives them.
        configured: the groups of the trace head.
        rank: this rank, where it is known.
        world_size: ranks of the job, where it is known.

    Returns:
        The calls with `group` (index into the groups), `peer` (global rank), `dtype` (our names), `payload_bytes`,
        `wire_bytes`, `in_split_list` and `out_split_list`; and the groups.
    """
    groups, indices = resolve_groups(calls, configured, world_size)
    sizes = [None if index is None else groups[index].size for index in indices]
    calls = calls.with_columns(
        group=pl.Series(indices, dtype=pl.Int32),
        group_size=pl.coalesce("group_size", pl.Series(sizes, dtype=pl.Int64)),
        peer=pl.Series(_peers(calls, groups, indices), dtype=pl.Int64),
    )
    calls = _payload(calls)
    shares = [
        _wire(row, None if row["group"] is None else groups[row["group"]], rank)
        for row in _distinct_shapes(calls).iter_rows(named=True)
    ]
    wires = _distinct_shapes(calls).with_columns(wire_bytes=pl.Series(shares, dtype=pl.Float64))
    calls = calls.join(wires, on=wires.columns[:-1], how="left", nulls_equal=True, maintain_order="left")
    return _with_split_lists(calls), groups


_PEER = re.compile(r"(?:send \d+->|recv \d+<-)(\d+)")


def _peers(calls: pl.DataFrame, groups: Sequence[LocalGroup], indices: Sequence[int | None]) -> list[int | None]:
    """Global ranks of the peers of sends and receives.

    `Src Rank` and `Dst Rank` are global (2.5); `Rank` and the annotation `nccl:recv 1<-0` count in the group.
    """
    annotated = apply_once(pl.col("annotation"), _annotated_peer, pl.Int64())
    told = calls.select(
        "primitive",
        known=pl.when(pl.col("primitive") == P.send).then("dst_rank").otherwise("src_rank"),
        local=pl.coalesce("rank", annotated),
    )
    peers: list[int | None] = []
    for (primitive, known, local), index in zip(told.iter_rows(), indices, strict=True):
        group = None if index is None else groups[index]
        if primitive not in (P.send, P.recv):
            peers.append(None)
        elif known is not None and known >= 0:
            peers.append(known)
        else:
            peers.append(global_rank(group, local))
    return peers


def _annotated_peer(name: str) -> int | None:
    match = _PEER.search(name)
    return None if match is None else int(match[1])


def _payload(calls: pl.DataFrame) -> pl.DataFrame:
    names = {key: name for key, (name, _) in DTYPES.items()}
    widths = {key: width for key, (_, width) in DTYPES.items()}
    size = pl.col("group_size")
    into, out = pl.col("in_elements"), pl.col("out_elements")
    elements = (
        pl.when(pl.col("primitive").is_in([p.value for p in _PAYLOAD_IS_OUTPUT]))
        .then(pl.coalesce(out, into * size))
        .when(pl.col("primitive") == P.reduce_scatter.value)
        .then(pl.coalesce(into, out * size))
        .when(pl.col("primitive").is_in([P.send.value, P.recv.value, P.broadcast.value]))
        .then(pl.max_horizontal(into, out))
        .when(pl.col("primitive") == P.barrier.value)
        .then(pl.lit(0))
        .otherwise(pl.coalesce(into, out))
    )
    return calls.with_columns(
        payload_elements=elements,
        payload_bytes=elements * look_up(pl.col("dtype"), widths, pl.Int64()),
        dtype=pl.coalesce(look_up(pl.col("dtype"), names, pl.String()), "dtype"),
    )


_SHAPE = ("primitive", "group", "group_size", "payload_elements", "out_elements", "payload_bytes", "in_splits")


def _distinct_shapes(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(*_SHAPE).unique(maintain_order=True)


def _wire(row: dict[str, object], group: LocalGroup | None, rank: int | None) -> float | None:
    payload, size = row["payload_bytes"], row["group_size"]
    if payload == 0:
        return 0.0
    if not isinstance(payload, int) or not isinstance(size, int):
        return None
    primitive = Primitive(str(row["primitive"]))
    splits = row["in_splits"]
    if primitive is P.all_to_all and isinstance(splits, str) and parse_splits(splits)[0]:
        return _uneven_wire(splits, payload, size, None if group is None else local_rank(group, rank))
    if primitive is P.all_to_all and size > 1 and row["payload_elements"] != row["out_elements"]:
        return None  # equal splits give as much as they take; how much of these the rank keeps is not told
    return wire_bytes(primitive, size, payload)


def _uneven_wire(splits: str, payload: int, size: int, own: int | None) -> float | None:
    """All that is sent but the part that the rank keeps; splits are rows of equal width (or elements).

    None where the list is cut or the own place unknown, for then so is that part.
    """
    listed, cut = parse_splits(splits)
    rows = sum(listed)
    if payload == 0 or size <= 1:
        return 0.0
    if cut or own is None or own >= len(listed) or rows == 0:
        return None
    return payload - payload * listed[own] / rows


def _with_split_lists(calls: pl.DataFrame) -> pl.DataFrame:
    lists = pl.List(pl.Int64())
    return calls.with_columns(
        apply_once(pl.col(f"{side}_splits"), _whole_splits, lists).alias(f"{side}_split_list") for side in ("in", "out")
    )


def _whole_splits(text: str) -> list[int] | None:
    listed, cut = parse_splits(text)
    return None if cut or not listed else listed
