"""The columns that are kept of a trace's events, and the tables in which their rows gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

BLOCK_ROWS = 1 << 14
"""Rows that are gathered before they become a frame: many small frames take twice the memory of a few large ones."""


RECORD_FIELDS: dict[str, pl.DataType] = {
    "external_id": pl.Int64(),
    "collective": pl.String(),
    "dtype": pl.String(),
    "in_elements": pl.Int64(),
    "out_elements": pl.Int64(),
    "in_elements_2_2": pl.Int64(),
    "out_elements_2_2": pl.Int64(),
    "in_splits": pl.String(),
    "out_splits": pl.String(),
    "group_size": pl.Int64(),
    "group_name": pl.String(),
    "group_id": pl.String(),
    "group_description": pl.String(),
    "group_ranks": pl.String(),
    "rank_start": pl.Int64(),
    "rank_stride": pl.Int64(),
    "rank": pl.Int64(),
    "src_rank": pl.Int64(),
    "dst_rank": pl.Int64(),
    "seq": pl.Int64(),
    "is_async": pl.Int64(),
}
"""Columns of a `record_param_comms`, as the decoder names them; a communication kernel carries a part of them."""


_SPAN: dict[str, pl.DataType] = {
    "name": pl.UInt32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "thread": pl.Int32(),
}
_IDS: dict[str, pl.DataType] = {"correlation": pl.Int64(), "external_id": pl.Int64()}
_GPU: dict[str, pl.DataType] = {"work": pl.UInt8(), "device": pl.Int64(), "stream": pl.Int64(), "grid": pl.Int32()}

SCHEMAS: dict[str, dict[str, pl.DataType]] = {
    "gpu": {"name": pl.UInt32(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), **_GPU, **_IDS},
    "kernel_records": {"row": pl.UInt32(), **RECORD_FIELDS},
    "launches": {**_SPAN, "correlation": pl.Int64()},
    "records": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "thread": pl.Int32(),
        "captured": pl.Boolean(),
        **RECORD_FIELDS,
        "input_dims": pl.String(),
        "input_types": pl.String(),
        "concrete_inputs": pl.String(),
    },
    "operators": {**_SPAN, "external_id": pl.Int64(), "input_dims": pl.String(), "input_types": pl.String()},
    "products": {"name": pl.UInt32(), "external_id": pl.Int64(), "dims": pl.UInt32()},
    "backward": _SPAN,
    "annotations": _SPAN,
}
"""Columns of the frames of `Events`."""


class Table:
    """Rows of one frame that is not complete yet."""

    def __init__(self, schema: Mapping[str, pl.DataType]) -> None:
        self._schema = schema
        self._blocks: list[pl.DataFrame] = []
        self._clear()

    def _clear(self) -> None:
        self._pending: dict[str, list[Any]] = {name: [] for name in self._schema}
        self._rows = 0

    def put(self, columns: Mapping[str, Any], rows: int) -> None:
        """Add rows; a column is an array or a list."""
        for name, values in columns.items():
            self._pending[name].append(values)
        self._rows += rows
        if self._rows >= BLOCK_ROWS:
            self._flush()

    def _flush(self) -> None:
        joined = {name: _join(parts) for name, parts in self._pending.items()}
        # not strict: a number beyond 64 bits is no id and no size, and becomes unknown
        self._blocks.append(pl.DataFrame(joined, schema=self._schema, strict=False))
        self._clear()

    def finish(self) -> pl.DataFrame:
        """All rows as one frame; nothing is copied."""
        if self._rows or not self._blocks:
            self._flush()
        blocks, self._blocks = self._blocks, []
        return pl.concat(blocks)


def _join(parts: Sequence[Any]) -> Any:
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(chain.from_iterable(part.tolist() if isinstance(part, np.ndarray) else part for part in parts))
