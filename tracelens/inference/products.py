"""Matrix products by shape, as the CPU operators told them."""

from __future__ import annotations

import re

import polars as pl

_MATRIX = re.compile(r"\[(\d+),\s*(\d+)\]")


def read_products(shapes: pl.DataFrame) -> tuple[tuple[int, int, int, int], ...]:
    """Plain matrix products: `mm` and `addmm`, which is what a linear layer ends in."""
    found: list[tuple[int, int, int, int]] = []
    for operator, dims, count in shapes.iter_rows():
        if dims is not None and operator in ("aten::mm", "aten::addmm"):
            matrices = [(int(a), int(b)) for a, b in _MATRIX.findall(dims)][-2:]
            if len(matrices) == 2 and matrices[0][1] == matrices[1][0]:
                found.append((matrices[0][0], matrices[0][1], matrices[1][1], int(count)))
    return tuple(found)


_BATCH = re.compile(r"\[(\d+),\s*(\d+),\s*(\d+)\]")


def read_batched_products(shapes: pl.DataFrame) -> frozenset[tuple[int, int, int, int]]:
    """Products of batches of matrices: `bmm`, and `baddbmm`, whose first matrix is added."""
    found: set[tuple[int, int, int, int]] = set()
    for operator, dims, _ in shapes.iter_rows():
        if dims is not None and operator in ("aten::bmm", "aten::baddbmm"):
            batches = [(int(a), int(b), int(c)) for a, b, c in _BATCH.findall(dims)]
            pair = batches[:2] if operator == "aten::bmm" else batches[1:3]
            if len(pair) == 2 and pair[0][0] == pair[1][0] and pair[0][2] == pair[1][1]:
                found.add((*pair[0], pair[1][2]))
    return frozenset(found)
