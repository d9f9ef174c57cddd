"""How much longer matrix products run while a collective takes bandwidth and multiprocessors beside them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.many_ranks import Dilation
from tracelens.summary import RankSummary


def measure_dilation(ranks: Sequence[RankSummary]) -> Dilation | None:
    """Compare the same matrix products under communication and alone, within each rank.

    Products are the same when kernel, grid and sizes are. Without sizes (`record_shapes`) the depth of a product stays
    open and unlike ones would be compared, so those say nothing.

    Returns:
        None where no product of known sizes ran both ways.
    """
    frames = [summary.matmuls.with_columns(at=pl.lit(n)) for n, summary in enumerate(ranks)]
    products = pl.concat(frames)
    rows = products.filter((pl.col("alone") > 0) & (pl.col("under") > 0) & pl.col("input_dims").is_not_null())
    if rows.is_empty():
        return None
    rows = rows.with_columns(
        expected=pl.col("under") * pl.col("alone_ns"), measured=pl.col("under") * pl.col("under_ns")
    ).with_columns(cost=pl.col("measured") - pl.col("expected"))
    seen = [ranks[n].rank for n in rows["at"].unique().sort()]
    measured, expected = float(rows["measured"].sum()), float(rows["expected"].sum())
    dearest = rows.group_by("name").agg(pl.col("cost").sum()).sort("cost", "name", descending=[True, False])
    return Dilation(
        ranks=tuple(sorted({rank for rank in seen if rank is not None})),
        kernels_alone=int(rows["alone"].sum()),
        kernels_under=int(rows["under"].sum()),
        all_kernels_under=int(products["under"].sum()),
        ratio=measured / expected,
        alone_ns=round(expected),
        cost_ns=round(measured - expected),
        worst=dearest["name"][0] if dearest["cost"][0] > 0 else None,
    )
