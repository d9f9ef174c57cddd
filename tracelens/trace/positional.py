"""What records before PyTorch 2.2 hold only by position: elements from shapes, dtype and group size from inputs.

The record's first input is the tensor that goes in; c10d operators of the `_base` kind take the output first and
then the input (torch/csrc/distributed/c10d/Ops.cpp). Where concrete inputs are kept, those of a record end with
the group size (ParamCommsUtils.hpp, `RECORD_PARAM_COMMS` until 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.trace.lookup import apply_once

_TYPES = {
    "c10::BFloat16": "BFloat16",
    "c10::Half": "Half",
    "float": "Float",
    "double": "Double",
    "long": "Long",
    "long int": "Long",
    "int": "Int",
    "unsigned char": "Byte",
    "signed char": "Char",
    "bool": "Bool",
    "c10::Float8_e4m3fn": "Float8_e4m3fn",
    "c10::Float8_e5m2": "Float8_e5m2",
}
_LARGER_OR_SMALLER = ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
"""What comes out of these need not be what goes in."""

_OUTPUT_FIRST = ("allgather_base", "reduce_scatter_base", "alltoall_base", "allgather_", "reduce_scatter_", "alltoall_")


def fill_positional(calls: pl.DataFrame) -> pl.DataFrame:
    """Fill in sizes that a call without `Collective name` tells by position.

    Adds nothing to records that name their fields, except the element counts of 2.2, which have another key.
    """
    silent = pl.col("collective").is_null()
    whole = pl.Int64()
    by_c10d = pl.col("operator").str.starts_with("c10d::") & ~pl.col("shapes_of_input")
    is_pair = (by_c10d & pl.col("operator").str.contains("|".join(_OUTPUT_FIRST))).fill_null(value=False)
    # annotations (`nccl:`, `gloo:`) hold what goes in, and nothing of what comes out
    is_open = ~by_c10d.fill_null(value=False) & pl.col("primitive").is_in(_LARGER_OR_SMALLER)
    first = apply_once(pl.col("operator_dims"), lambda text: elements_of(text, 0), whole)
    second = apply_once(pl.col("operator_dims"), lambda text: elements_of(text, 1), whole)
    own = apply_once(pl.col("input_dims"), lambda text: elements_of(text, 0), whole)
    filled = calls.with_columns(
        in_elements=pl.coalesce("in_elements", "in_elements_2_2"),
        out_elements=pl.coalesce("out_elements", "out_elements_2_2"),
        told_in=pl.coalesce(own, pl.when(is_pair).then(second).otherwise(first)),
        told_out=pl.when(is_pair).then(first).when(~is_open).then(pl.coalesce(own, first)),
        told_type=pl.coalesce(
            apply_once(pl.col("input_types"), _first_dtype, pl.String()),
            apply_once(pl.col("operator_types"), _first_dtype, pl.String()),
        ),
        told_size=apply_once(pl.col("concrete_inputs"), _last_number, whole),
    ).with_columns(
        in_elements=pl.when(silent).then(pl.coalesce("in_elements", "told_in")).otherwise("in_elements"),
        out_elements=pl.when(silent).then(pl.coalesce("out_elements", "told_out")).otherwise("out_elements"),
        dtype=pl.when(silent).then(pl.coalesce("dtype", "told_type")).otherwise("dtype"),
        group_size=pl.when(silent)
        .then(pl.coalesce("group_size", "told_size", _size_from_ratio()))
        .otherwise("group_size"),
    )
    return filled.drop(
        "told_in",
        "told_out",
        "told_type",
        "told_size",
        "operator",
        "operator_dims",
        "operator_types",
        "shapes_of_input",
        "in_elements_2_2",
        "out_elements_2_2",
    )


def _size_from_ratio() -> pl.Expr:
    """Ranks of a group from what goes in and comes out of a gather or a scatter."""
    gathered = pl.col("told_out") // pl.col("told_in")
    scattered = pl.col("told_in") // pl.col("told_out")
    return (
        pl.when((pl.col("primitive") == "all_gather") & (pl.col("told_out") % pl.col("told_in") == 0))
        .then(gathered)
        .when((pl.col("primitive") == "reduce_scatter") & (pl.col("told_in") % pl.col("told_out") == 0))
        .then(scattered)
    )


def elements_of(dims: str, position: int) -> int | None:
    """Elements of the tensor, or the list of tensors, at a position of an operator's `Input Dims` text.

    >>> elements_of("[[[64, 2], [3]], []]", 0)
    131
    """
    try:
        shapes = msgspec.json.decode(dims)
    except msgspec.DecodeError:
        return None
    if not isinstance(shapes, list) or len(shapes) <= position:
        return None
    return _count(shapes[position])


def _count(shape: Any) -> int | None:
    if not isinstance(shape, list) or not shape:
        return None
    if isinstance(shape[0], list):
        counts = [_count(inner) for inner in shape]
        return sum(count for count in counts if count is not None)
    return _product(shape)


def _product(shape: Sequence[Any]) -> int | None:
    total = 1
    for size in shape:
        if not isinstance(size, int):
            return None
        total *= size
    return total


def _first_dtype(types: str) -> str | None:
    try:
        listed = msgspec.json.decode(types, type=list[str])
    except msgspec.DecodeError:
        return None
    return next((_TYPES[name] for name in listed if name in _TYPES), None)


def _last_number(inputs: str) -> int | None:
    """The group size: the last input of `["", seq, pointer, rank, "", "[]", "[]", size]`."""
    try:
        listed = msgspec.json.decode(inputs, type=list[str])
    except msgspec.DecodeError:
        return None
    last = listed[-1] if listed else ""
    return int(last) if last.isdecimal() and len(listed) >= 7 else None
