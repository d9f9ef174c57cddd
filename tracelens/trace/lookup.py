"""Look the values of a column up in a small table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl


def look_up(column: pl.Expr, table: Mapping[Any, Any], dtype: pl.DataType) -> pl.Expr:
    """The table's value for each value of a column; null for values that the table lacks."""
    if not table:
        return pl.lit(None, dtype)
    return column.replace_strict(list(table), list(table.values()), default=None, return_dtype=dtype)


def apply_once(column: pl.Expr, function: Callable[[str], Any], dtype: pl.DataType) -> pl.Expr:
    """Apply a function to each distinct text of a column, once; nulls stay null."""

    def mapped(texts: pl.Series) -> pl.Series:
        distinct = texts.unique().drop_nulls()
        values = pl.Series("value", [function(text) for text in distinct], dtype=dtype)
        table = pl.DataFrame({"text": distinct, "value": values})
        keys = pl.DataFrame({"text": texts})
        return keys.join(table, on="text", how="left", maintain_order="left")["value"].rename(texts.name)

    return column.map_batches(mapped, return_dtype=dtype)
