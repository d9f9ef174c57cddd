"""Calls of small traces, as what each generation of PyTorch and each backend writes tells them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracelens.measurement.measure import measure
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

MAIN, GLOO = 7, 8
NOTHING: list[list[int]] = [[], [], [], [], [], []]


def span(
    name: str, at: int, lasts: int, dims: list[Any] | None = None, kind: str = "float", **more: Any
) -> dict[str, Any]:
    """An operator or, with `cat`, an annotation, in microseconds."""
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": MAIN, "ts": at, "dur": lasts}
    args = {} if dims is None else {"Input Dims": dims, "Input type": [kind, *[""] * (len(dims) - 1)]}
    return {**event, "args": {"External id": at, **args, **more.pop("args", {})}, **more}


def note(name: str, at: int, lasts: int, dims: list[Any], **more: Any) -> dict[str, Any]:
    """An annotation with the input."""
    return span(name, at, lasts, dims, cat="user_annotation", **more)


def read(tmp_path: Path, *events: dict[str, Any], backend: str = "nccl", groups: int = 1, **head: Any) -> RankSummary:
    config = [
        {"pg_name": str(n), "backend_config": f"cpu:{backend}", "pg_size": 4, "ranks": [0, 1, 2, 3]}
        for n in range(groups)
    ]
    info = {"backend": backend, "rank": 1, "world_size": 4, "pg_count": groups, "pg_config": config} | head
    path = tmp_path / "rank1.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": list(events)}))
    return summarize(path)


# --- PyTorch 1.12 to 2.1 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "annotation", "primitive"),
    [
        ("c10d::allreduce_", "nccl:all_reduce", "all_reduce"),
        ("c10d::broadcast_", "nccl:broadcast", "broadcast"),
        ("c10d::reduce_", "nccl:reduce", "reduce"),
    ],
)
def test_an_operator_on_a_list_of_tensors_has_its_shapes_in_the_annotation(
    tmp_path: Path, operator: str, annotation: str, primitive: str
) -> None:
    # as in PyTorch 2.1: neither operator nor record show the shape of what is in a `TensorList`
    found = read(
        tmp_path,
        span(operator, 10, 86, NOTHING[:4], "TensorList"),
        span("record_param_comms", 16, 79, NOTHING, "TensorList"),
        note(annotation, 26, 65, [[366336]]),
    )
    call = found.calls.row(0, named=True)
    assert (len(found.calls), call["primitive"], call["dtype"]) == (1, primitive, "fp32")
    assert (call["in_elements"], call["payload_bytes"]) == (366_336, 1_465_344)


def test_shapes_of_the_operator_come_before_those_of_the_annotation(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        span("c10d::_reduce_scatter_base_", 10, 86, [[8192, 64], [65536, 64], [], []]),
        span("record_param_comms", 16, 79, [[65536, 64], []]),
        note("nccl:_reduce_scatter_base", 26, 65, [[65536, 64]]),
    )
    call = found.calls.row(0, named=True)
    assert (call["in_elements"], call["out_elements"], call["group_size"]) == (65536 * 64, 8192 * 64, 8)


@pytest.mark.parametrize(
    ("operator", "annotation", "payload"),
    [
        ("c10d::reduce_scatter_", "nccl:reduce_scatter", 16_384),
        ("c10d::allgather_", "nccl:all_gather", None),
        (None, "nccl:_reduce_scatter_base", 16_384),
        (None, "nccl:_all_gather_base", None),
    ],
)
def test_an_annotation_tells_what_goes_in_and_not_how_many_ranks_there_are(
    tmp_path: Path, operator: str | None, annotation: str, payload: int | None
) -> None:
    around = [] if operator is None else [span(operator, 10, 86, NOTHING[:4], "TensorList")]
    found = read(
        tmp_path,
        *around,
        span("record_param_comms", 16, 79, NOTHING, "TensorList"),
        note(annotation, 26, 65, [[64, 64]]),
    )
    call = found.calls.row(0, named=True)
    assert (call["in_elements"], call["out_elements"], call["group_size"]) == (4096, None, None)
    assert (call["payload_bytes"], call["wire_bytes"]) == (payload, None)
