"""Records and operators to calls: what the program asked of its process groups.

A call is a `record_param_comms` that is not a `wait`. Since PyTorch 2.2 the record says all; before, the c10d
operator around it names the primitive and their inputs tell part of the sizes. Some operators (all-gathers until
2.1, gloo's) have no record at all; then the operator itself is the call. Where not even gloo's operators were
recorded, what gloo itself ran is: its `gloo:` annotations lie on threads of its own, so that they can't be told from
those of operators that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import polars as pl

from tracelens.collectives import NOT_CALLS, RECORD_PRIMITIVES, Primitive
from tracelens.results import Evidence
from tracelens.trace.lookup import apply_once, look_up
from tracelens.trace.positional import elements_of, fill_positional
from tracelens.trace.tables import RECORD_FIELDS, SCHEMAS


def primitive_of(name: str | None) -> Primitive | None:
    """The primitive behind a record's `Collective name`, of `c10d::allreduce_`, or of `nccl:recv 1<-0`."""
    if name is None:
        return None
    bare = name.rpartition(":")[2].split(" ")[0].lower().removeprefix("all_reduce_")
    return RECORD_PRIMITIVES.get(bare) or RECORD_PRIMITIVES.get(bare.rstrip("_"))


GLOO = "gloo:"
"""Begins the name of what gloo ran, on a thread of its own."""


def find_calls(records: pl.DataFrame, operators: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The calls in the order of their issue, with `primitive`, `evidence`, and sizes where anything tells them.

    Args:
        records: `Events.records`.
        operators: `Events.operators`, whose c10d operators name what old records leave out.
        names: `Events.names`.

    Returns:
        The calls and the number of exact duplicates among the records that were left out.
    """
    if not records["captured"].all():
        records = records.filter(~pl.col("captured"))  # PyTorch's own say the same of the same calls
    identity = ["start_ns", "end_ns", "thread", "external_id", "collective"]
    unique = records.unique(identity, keep="first", maintain_order=True)
    spans = _spans_named(operators, names, "c10d::")
    bare = _without_record(spans, unique)
    ran = _spans_named(operators, names, GLOO)
    if bare.is_empty() and not unique["captured"].any():
        spans = pl.concat([spans, ran]).sort("start_ns", maintain_order=True)
        bare = _without_record(spans, unique)
    told = pl.concat([unique, bare]).sort("start_ns", maintain_order=True)
    told = _with_annotation(_with_operator(told, spans), _spans_named(operators, names, "nccl:"))
    told = _with_gloo(told, ran)
    spoken = pl.col("collective").str.to_lowercase()
    called = pl.coalesce(spoken, pl.col("operator"))
    calls = (
        told.with_columns(
            primitive=apply_once(called, primitive_of, pl.String()),
            evidence=pl.when(pl.col("collective").is_null())
            .then(pl.lit(Evidence.cpu_record.value))
            .otherwise(pl.lit(Evidence.metadata.value)),
        )
        .filter(called.is_not_null() & ~spoken.is_in(list(NOT_CALLS)).fill_null(value=False))
        .with_columns(pl.col("primitive").fill_null(Primitive.other.value))
        .with_row_index("call")
    )
    return fill_positional(calls), len(records) - len(unique)


def _spans_named(operators: pl.DataFrame, names: Sequence[str], prefix: str) -> pl.DataFrame:
    codes = {code: name for code, name in enumerate(names) if name.startswith(prefix) and primitive_of(name)}
    return (
        operators.filter(pl.col("name").is_in(list(codes)))
        .unique(["name", "start_ns", "end_ns", "thread"], keep="first", maintain_order=True)
        .select(
            "thread",
            "start_ns",
            "external_id",
            operator_end="end_ns",
            operator=look_up(pl.col("name"), codes, pl.String()),
            operator_dims="input_dims",
            operator_types="input_types",
        )
        .sort("start_ns")
    )


def _without_record(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Operators inside of which no record begins and that lie in none, in the form of records."""
    starts = records.select("thread", record_ns="start_ns").sort("record_ns")
    around = records.select("thread", around_ns="start_ns", around_end="end_ns").sort("around_ns")
    enclosed = spans.join_asof(
        around, left_on="start_ns", right_on="around_ns", by="thread", strategy="backward", check_sortedness=False
    ).filter((pl.col("around_end") < pl.col("operator_end")) | pl.col("around_end").is_null())
    bare = enclosed.join_asof(
        starts,
        left_on="start_ns",
        right_on="record_ns",
        by="thread",
        strategy="forward",
        check_sortedness=False,
    ).filter(pl.col("record_ns").is_null() | (pl.col("record_ns") > pl.col("operator_end")))
    empty = {name: pl.lit(None, dtype) for name, dtype in RECORD_FIELDS.items() if name != "external_id"}
    return bare.select(
        "start_ns",
        "thread",
        "external_id",
        end_ns="operator_end",
        input_dims=pl.lit(None, pl.String),
        input_types=pl.lit(None, pl.String),
        concrete_inputs=pl.lit(None, pl.String),
        captured=pl.lit(value=False),
        **empty,
    ).select(records.columns)


_TOLD = ("operator", "operator_dims", "operator_types")


def _with_operator(records: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Add the c10d operator around each record that does not name its collective."""
    joined = records.join_asof(
        spans.drop("external_id"), on="start_ns", by="thread", strategy="backward", check_sortedness=False
    )
    # a `wait` follows its operator and lies outside of it
    inside = (pl.col("operator_end") >= pl.col("end_ns")) & pl.col("collective").is_null()
    return joined.with_columns(pl.when(inside).then(pl.col(name)) for name in _TOLD).drop("operator_end")


def _with_annotation(records: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Add the `nccl:` annotation inside each record: it names P2P peers, and before 1.13 the collective itself."""
    found = spans.select(
        "thread",
        pl.col("start_ns").alias("span_start"),
        "operator_end",
        annotation="operator",
        annotation_dims="operator_dims",
        annotation_types="operator_types",
    )
    joined = records.join_asof(
        found, left_on="start_ns", right_on="span_start", by="thread", strategy="forward", check_sortedness=False
    )
    inside = pl.col("operator_end") <= pl.col("end_ns")
    silent = pl.col("collective").is_null() & inside
    # c10d operators that take lists of tensors show no shape until 2.2: `[[], [], [], []]` of `TensorList`
    shapeless = (~pl.col("operator_dims").str.contains(r"\d")).fill_null(value=True)
    nameless = pl.col("operator").is_null()
    return joined.with_columns(
        pl.when(inside).then(pl.col("annotation")),
        pl.when(silent & nameless).then("annotation").otherwise("operator").alias("operator"),
        pl.when(silent & shapeless)
        .then(pl.coalesce("annotation_dims", "operator_dims"))
        .otherwise("operator_dims")
        .alias("operator_dims"),
        pl.when(silent & shapeless)
        .then(pl.coalesce("annotation_types", "operator_types"))
        .otherwise("operator_types")
        .alias("operator_types"),
        shapes_of_input=silent & shapeless,
    ).drop("span_start", "operator_end", "annotation_dims", "annotation_types")


def _with_gloo(calls: pl.DataFrame, ran: pl.DataFrame) -> pl.DataFrame:
    """Give operators on lists of tensors the type that gloo shows of what it ran for them, in the order of issue.

    Only where gloo ran as many of a kind as were issued, each of the elements of its operator.
    """
    bare = (
        calls.with_row_index("row")
        .filter(pl.col("collective").is_null() & pl.col("input_dims").is_null() & pl.col("annotation").is_null())
        .filter(pl.col("operator").str.starts_with("c10d::"))
        .select("row", "operator", "operator_dims")
    )
    if bare.is_empty() or ran.is_empty():
        return calls
    pairs = _in_order(bare).join(
        _in_order(ran.select("operator", ran_dims="operator_dims", ran_types="operator_types")),
        on=["primitive", "number"],
        how="full",
        coalesce=True,
    )
    elements = apply_once(pl.col("ran_dims"), partial(elements_of, position=0), pl.Int64())
    told = [apply_once(pl.col("operator_dims"), partial(elements_of, position=at), pl.Int64()) for at in (0, 1)]
    agrees = pl.any_horizontal(*(elements == own for own in told), ~pl.col("operator_dims").str.contains(r"\d"))
    same = pl.col("row").is_not_null() & agrees.fill_null(value=False)
    known = pairs.filter(same.all().over("primitive")).select("row", "ran_types")
    return (
        calls.with_row_index("row")
        .join(known, on="row", how="left", maintain_order="left")
        .with_columns(operator_types=pl.coalesce("ran_types", "operator_types"))
        .drop("row", "ran_types")
    )


def _in_order(spans: pl.DataFrame) -> pl.DataFrame:
    """With the primitive of the `operator`, and the number of the span among those of its primitive."""
    named = spans.with_columns(primitive=apply_once(pl.col("operator"), primitive_of, pl.String())).drop("operator")
    return named.with_columns(number=pl.int_range(pl.len()).over("primitive"))


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
        captured=pl.lit(value=False),
        input_dims=pl.lit(None, pl.String),
        input_types=pl.lit(None, pl.String),
        concrete_inputs=pl.lit(None, pl.String),
    ).select(*SCHEMAS["records"])
