"""Classes of ranks: those that play the same role and make the same calls."""

from __future__ import annotations

import polars as pl

_SIGNATURE = ("kind", "primitive", "dtype", "phase", "calls", "payload_bytes")


def find_classes(rows: pl.DataFrame, ranks: int) -> list[int]:
    """Number the classes in the order of their first rank.

    Two ranks are alike when their groups have the same mesh and name and carry the same calls with the same bytes
    per step. What an all-to-all sends depends on the data, so its bytes do not count; nor do kernels launched
    before the window, which differ by accident.

    Args:
        rows: traffic of all ranks (`traffic.ROWS`).
        ranks: how many summaries there are.

    Returns:
        The class of each summary.
    """
    uneven = pl.col("primitive") == "all_to_all"
    per_step = pl.col("steps").clip(1)
    told = (
        rows.filter(pl.col("calls") > 0)
        .with_columns(
            calls=pl.col("calls") / per_step,
            payload_bytes=pl.when(~uneven).then(pl.col("payload_bytes") / per_step),
        )
        .select("rank_index", pl.struct(_SIGNATURE).hash().alias("row"))
        .sort("rank_index", "row")
        .group_by("rank_index", maintain_order=True)
        .agg("row")
    )
    signatures = {rank: tuple(row) for rank, row in told.iter_rows()}
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(signatures.get(rank, ()), len(numbers)) for rank in range(ranks)]
