"""Records to calls: what the program asked of its process groups, with primitive, group and bytes.

A call is a `record_param_comms` that is not a `wait`. Since 2.2 the record says all; before, its operator and
positional inputs say part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import polars as pl

from tracelens.collectives import DTYPES, NOT_CALLS, RECORD_PRIMITIVES, Primitive, wire_bytes
from tracelens.results import Evidence
from tracelens.summary import LocalGroup
from tracelens.trace.columns import RECORD_FIELDS
from tracelens.trace.groups import global_rank, local_rank, parse_splits, resolve_groups
from tracelens.trace.lookup import apply_once, look_up

P = Primitive
_PAYLOAD_IS_OUTPUT = (P.all_gather, P.gather)


def primitive_of(name: str | None) -> Primitive | None:
    """The primitive behind a record's `Collective name` or a c10d operator such as `c10d::allreduce_`."""
    if name is None:
        return None
    bare = name.rpartition("::")[2].rpartition(":")[2].lower()
    return RECORD_PRIMITIVES.get(bare) or RECORD_PRIMITIVES.get(bare.rstrip("_"))


def find_calls(records: pl.DataFrame, operators: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The records that are calls, in the order of their issue, with `primitive` and `evidence`.

    Args:
        records: `Events.records`.
        operators: `Events.operators`, whose c10d operators name what old records leave out.
        names: `Events.names`.

    Returns:
        The calls and the number of exact duplicates among the records that were left out.
    """
    identity = ["start_ns", "end_ns", "thread", "external_id", "collective"]
    unique = records.unique(identity, keep="first", maintain_order=True)
    named = _with_operator(unique.sort("start_ns", maintain_order=True), operators, names)
    spoken = pl.col("collective").str.to_lowercase()
    called = pl.coalesce(spoken, pl.col("operator"))
    calls = (
        named.with_columns(
            primitive=apply_once(called, primitive_of, pl.String()),
            evidence=pl.when(pl.col("collective").is_null())
            .then(pl.lit(Evidence.cpu_record.value))
            .otherwise(pl.lit(Evidence.metadata.value)),
        )
        .filter(called.is_not_null() & ~spoken.is_in(list(NOT_CALLS)).fill_null(value=False))
        .with_columns(pl.col("primitive").fill_null(P.other.value))
        .with_row_index("call")
    )
    return _fill_positional(calls), len(records) - len(unique)


def _with_operator(records: pl.DataFrame, operators: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Add the c10d operator around each record that does not name its collective: `operator`, `operator_dims`."""
    silent = records.filter(pl.col("collective").is_null())
    if silent.is_empty():
        return records.with_columns(operator=pl.lit(None, pl.String), operator_dims=pl.lit(None, pl.String))
    codes = [code for code, name in enumerate(names) if primitive_of(name) and "::" in name]
    spans = (
        operators.filter(pl.col("name").is_in(codes))
        .select(
            "thread",
            "start_ns",
            operator_end="end_ns",
            operator=look_up(pl.col("name"), {code: names[code] for code in codes}, pl.String()),
            operator_dims="input_dims",
        )
        .sort("start_ns")
    )
    joined = records.join_asof(spans, on="start_ns", by="thread", strategy="backward", check_sortedness=False)
    # `c10d::wait` is no operator, and a record that follows one is outside of it
    inside = (pl.col("operator_end") >= pl.col("end_ns")) & pl.col("collective").is_null()
    return joined.with_columns(pl.when(inside).then(pl.col(c)) for c in ("operator", "operator_dims")).drop(
        "operator_end"
    )


_POSITIONAL_SIZE = re.compile(r'"(\d+)"\s*\]\s*$')
_TYPES = {"c10::BFloat16": "BFloat16", "c10::Half": "Half", "float": "Float", "double": "Double"}
_TYPES |= {"long int": "Long", "long": "Long", "int": "Int", "unsigned char": "Byte", "signed char": "Char"}
_TYPES |= {"bool": "Bool", "c10::Float8_e4m3fn": "Float8_e4m3fn", "c10::Float8_e5m2": "Float8_e5m2"}


def _fill_positional(calls: pl.DataFrame) -> pl.DataFrame:
    """Fill in what old records hold only by position: element counts from shapes, size and dtype from inputs.

    Old records list `seq, pointer, rank, name, in splits, out splits, ..., group size` without names
    (torch/csrc/distributed/c10d/ParamCommsUtils.hpp, RECORD_PARAM_COMMS of 1.13 to 2.1).
    """
    silent = pl.col("collective").is_null()
    dims = pl.coalesce(pl.col("operator_dims"), pl.col("input_dims"))
    filled = calls.with_columns(
        in_elements=pl.coalesce("in_elements", "in_elements_2_2"),
        out_elements=pl.coalesce("out_elements", "out_elements_2_2"),
        positional=apply_once(dims, elements_of, pl.Int64()),
        positional_type=apply_once(pl.col("input_types"), _first_type, pl.String()),
    )
    return filled.with_columns(
        in_elements=pl.when(silent).then(pl.coalesce("in_elements", "positional")).otherwise("in_elements"),
        dtype=pl.coalesce("dtype", "positional_type"),
    ).drop("positional", "positional_type", "in_elements_2_2", "out_elements_2_2")


def _first_type(types: str) -> str | None:
    first = re.search(r'"([^"]*)"', types)
    return None if first is None else _TYPES.get(first[1])


def elements_of(dims: str) -> int | None:
    """Elements of the first tensor, or tensor list, of an operator's `Input Dims` text.

    >>> elements_of("[[[64, 2], [3]], []]")
    131
    """
    try:
        shapes = msgspec.json.decode(dims)
    except msgspec.DecodeError:
        return None
    if not isinstance(shapes, list) or not shapes:
        return None
    first = shapes[0]
    if not isinstance(first, list) or not first:
        return None
    tensors = first if isinstance(first[0], list) else [first]
    return sum(_product(shape) for shape in tensors if shape)


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


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


def _peers(calls: pl.DataFrame, groups: Sequence[LocalGroup], indices: Sequence[int | None]) -> list[int | None]:
    columns = calls.select("primitive", "src_rank", "dst_rank", "rank").iter_rows()
    peers: list[int | None] = []
    for (primitive, source, destination, local), index in zip(columns, indices, strict=True):
        if primitive == P.send:
            peer = destination
        elif primitive == P.recv:
            peer = source
        else:
            peers.append(None)
            continue
        group = None if index is None else groups[index]
        peers.append(peer if peer is not None and peer >= 0 else global_rank(group, local))
    return peers


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


_SHAPE = ("primitive", "group", "group_size", "payload_elements", "payload_bytes", "in_splits")


def _distinct_shapes(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select(*_SHAPE).unique(maintain_order=True)


def _wire(row: dict[str, object], group: LocalGroup | None, rank: int | None) -> float | None:
    payload, size = row["payload_bytes"], row["group_size"]
    if not isinstance(payload, int) or not isinstance(size, int):
        return None
    primitive = Primitive(str(row["primitive"]))
    splits = row["in_splits"]
    if primitive is P.all_to_all and isinstance(splits, str) and parse_splits(splits)[0]:
        return _uneven_wire(splits, payload, size, None if group is None else local_rank(group, rank))
    return wire_bytes(primitive, size, payload)


def _uneven_wire(splits: str, payload: int, size: int, own: int | None) -> float | None:
    """All that is sent but the part that the rank keeps; splits are rows of equal width (or elements).

    Where the list is cut or the own place unknown, the own part is taken to be the mean one: `is_estimated`.
    """
    listed, cut = parse_splits(splits)
    rows = sum(listed)
    if payload == 0 or size <= 1:
        return 0.0
    if cut or own is None or own >= len(listed) or rows == 0:
        return wire_bytes(P.all_to_all, size, payload)
    return payload - payload * listed[own] / rows


def _with_split_lists(calls: pl.DataFrame) -> pl.DataFrame:
    lists = pl.List(pl.Int64())
    return calls.with_columns(
        apply_once(pl.col(f"{side}_splits"), _whole_splits, lists).alias(f"{side}_split_list") for side in ("in", "out")
    )


def _whole_splits(text: str) -> list[int] | None:
    listed, cut = parse_splits(text)
    return None if cut or not listed else listed


def calls_from_kernels(kernel_records: pl.DataFrame) -> pl.DataFrame:
    """Calls told only by kernels that carry a record's fields, for traces without CPU events.

    Args:
        kernel_records: rows of `Events.kernel_records` that no record explains, with `start_ns` and `end_ns`.

    Returns:
        One row per call in the form of `Events.records`; kernels of one call share an External id.
    """
    key = pl.coalesce(pl.col("external_id"), -pl.col("row").cast(pl.Int64) - 1)
    first = kernel_records.with_columns(key=key).unique("key", keep="first", maintain_order=True)
    return first.select(
        "start_ns",
        end_ns="start_ns",
        thread=pl.lit(None, pl.Int32),
        **{name: pl.col(name) for name in RECORD_FIELDS},
        input_dims=pl.lit(None, pl.String),
        input_types=pl.lit(None, pl.String),
        concrete_inputs=pl.lit(None, pl.String),
    )
