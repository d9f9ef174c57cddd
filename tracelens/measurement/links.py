"""Bandwidth of groups by size of call, beside what their link can do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracelens.collectives import Primitive, bus_factor
from tracelens.many_ranks import LinkUse
from tracelens.measurement.alignment import P2P, Alignment
from tracelens.results import Group

# Bytes/s per GPU and direction that the makers state for the links inside a node; data sheets of each device. Only
# names that tell the form of the card: an A100 may sit on NVLink or on PCIe, bridged in pairs or not at all.
INSIDE_NODE: tuple[tuple[str, float], ...] = (
    ("V100-SXM[23]", 150e9),
    ("A800-SXM4?", 200e9),
    ("A100-SXM4?", 300e9),
    ("H800", 200e9),
    ("H20(-3e)?", 450e9),
    (r"H100 \d+GB HBM3", 450e9),
    ("GH200", 450e9),
    ("H200", 450e9),
    ("G?B200", 900e9),
    ("G?B300( SXM6 AC)?", 900e9),
    ("MI250X?( / MI250)?", 400e9),
    ("MI300X", 448e9),
    ("MI325X", 448e9),
)
_MAKER = "(Tesla |NVIDIA |AMD Instinct )*"
_MEMORY = r"([ -]\d+ ?GB?)?( HBM\d\w*)?"

_BUCKET = 2
"""Sizes of one bucket lie within a factor of 2^_BUCKET."""

LATENCY_BYTES = 1 << 20
"""Below about this size a call takes its latency, whatever the link can do."""

ACROSS_NODES = "busbw across nodes compares with no single link: part of the ring is inside nodes"
ABOVE_LINE_RATE = "above line rate: reduced in the switch (NVLS), where the bus factor overstates what a GPU sends"
INCOMPLETE = "not all members were read: the transfer may be shorter, the bandwidth higher"
SMALL = "small calls: latency, not bandwidth"
LINK_UNKNOWN = "the link inside a node is not known from the name of the GPU: give its rate with --link"


def measure_links(
    timed: pl.DataFrame,
    alignment: Alignment,
    groups: Sequence[Group],
    devices: Sequence[str],
    gpus_per_node: int | None,
    given: Mapping[str, float] | None = None,
) -> tuple[LinkUse, ...]:
    """Bandwidth per group, primitive and size of call, from the transfer of calls with times on enough ranks.

    Args:
        timed: as `skew.time_calls` gives them.
        alignment: the calls of all ranks.
        groups: the groups of the job.
        devices: names of the GPUs, which stand for the link inside a node.
        gpus_per_node: ranks that share a node.
        given: line rates `inside` and `across` nodes, bytes/s per GPU and direction, instead of the presets.
    """
    used = timed.filter(
        ~pl.col("is_late_profiler")
        & pl.col("owned")
        & (pl.col("payload_bytes") > 0)
        & (pl.col("transfer_ns") > 0)
        & (pl.col("timed") == pl.col("participants"))
        & ((pl.col("what") == P2P) | (2 * pl.col("timed") >= pl.col("group_size")))
    ).unique(["lane", "key"])
    used = used.join(alignment.groups, on="pg").with_columns(pl.col("what").cast(pl.String))
    exponent = (pl.col("payload_bytes").cast(pl.Float64).log(2) / _BUCKET + 1e-9).floor() * _BUCKET
    rows = (
        used.with_columns(from_bytes=pl.lit(2.0).pow(exponent).cast(pl.Int64))
        .group_by("group", "what", "from_bytes")
        .agg(
            calls=pl.len(),
            size=pl.col("group_size").max(),
            timed=pl.col("timed").min(),
            transfer_ns=pl.col("transfer_ns").median().round().cast(pl.Int64),
            algbw=(pl.col("payload_bytes") / pl.col("transfer_ns") * 1e9).median(),
        )
        .sort("group", "what", "from_bytes", nulls_last=True)
    )
    table = {group.id: group for group in groups}
    inside = rate_inside_node(devices) if given is None or "inside" not in given else given["inside"]
    across = None if given is None else given.get("across")
    rates = {False: inside, True: across, None: None}
    return tuple(_link(row, table.get(row["group"]), rates, gpus_per_node) for row in rows.iter_rows(named=True))


def rate_inside_node(devices: Sequence[str]) -> float | None:
    """The one rate that all devices are sold with; None where one of them is of no known form, or they differ."""
    rates = {_rate(device) for device in devices}
    return rates.pop() if len(rates) == 1 else None


def _rate(device: str) -> float | None:
    sold = (rate for name, rate in INSIDE_NODE if re.fullmatch(f"{_MAKER}{name}{_MEMORY}", device.strip()))
    return next(sold, None)


def _link(
    row: dict[str, Any], group: Group | None, rates: Mapping[bool | None, float | None], gpus_per_node: int | None
) -> LinkUse:
    is_p2p, size = row["what"] == P2P, row["size"]
    factor = None if size is None else bus_factor(Primitive.send if is_p2p else Primitive(row["what"]), size)
    bus = None if factor is None else row["algbw"] * factor
    spans = None if group is None else group.spans_nodes
    link = rates[spans]
    share = None if bus is None or link is None else bus / link
    complete = is_p2p or (size is not None and row["timed"] >= size)
    notes = (
        (bool(spans), ACROSS_NODES),
        (share is not None and share > 1, ABOVE_LINE_RATE),
        (spans is False and link is None, LINK_UNKNOWN),
        (not complete, INCOMPLETE),
        (row["from_bytes"] < LATENCY_BYTES, SMALL),
    )
    return LinkUse(
        group=row["group"],
        primitive=row["what"],
        from_bytes=row["from_bytes"],
        calls=row["calls"],
        transfer_ns=row["transfer_ns"],
        algbw_bytes_per_s=row["algbw"],
        busbw_bytes_per_s=bus,
        spans_nodes=spans,
        inter_node_bytes_per_s=_inter_node(row["what"], bus, group, gpus_per_node) if spans else None,
        link_bytes_per_s=link,
        link_fraction=share,
        complete=complete,
        caveats=tuple(text for holds, text in notes if holds),
    )


def _inter_node(primitive: str, bus: float | None, group: Group | None, gpus_per_node: int | None) -> float | None:
    """What crosses nodes per GPU: busbw·(k-1)/(n-1) for an all-reduce of n ranks on k nodes that goes by nodes.

    Source: Bekman, Machine Learning Engineering, network/README (bandwidth across nodes).
    """
    if primitive != Primitive.all_reduce.value or bus is None or group is None or not group.ranks or not gpus_per_node:
        return None
    nodes = len({rank // gpus_per_node for rank in group.ranks})
    return bus * (nodes - 1) / (len(group.ranks) - 1) if len(group.ranks) > nodes else bus
