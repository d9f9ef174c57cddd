"""Events to columns: values as they stand in the trace, unknown where they do not, and what was odd."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl
import pytest

from tracelens.trace.columns import Collector, Events
from tracelens.trace.schema import Event
from tracelens.trace.tables import BLOCK_ROWS

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 1}


def collect(*batches: list[dict[str, Any]]) -> Events:
    collector = Collector()
    for batch in batches:
        collector.add(msgspec.json.decode(msgspec.json.encode(batch), type=list[Event]))
    return collector.finish()


def test_a_kernel_keeps_its_ids_and_its_times_in_nanoseconds() -> None:
    args = {"device": 3, "stream": 20, "correlation": 5, "External id": 9}
    events = collect([{**KERNEL, "args": args}])
    (row,) = events.gpu.drop("grid").iter_rows(named=True)
    assert row == {
        "name": 0, "start_ns": 10500, "end_ns": 12500, "work": 0,
        "device": 3, "stream": 20, "correlation": 5, "external_id": 9,
    }  # fmt: skip
    assert events.names == ["k"]
    assert events.told == []


@pytest.mark.parametrize(
    ("tid", "args", "stream"),
    [("stream 7", {}, 7), ("stream 7", {"stream": 9}, 9), (7, {}, 7), ("main", {}, None), (1, {"stream": "12"}, 12)],
)
def test_a_stream_is_told_by_the_arguments_else_by_the_thread(tid: Any, args: dict[str, Any], stream: int) -> None:
    events = collect([{**KERNEL, "tid": tid, "args": args}])
    assert events.gpu["stream"].to_list() == [stream]


def test_an_id_beyond_64_bits_is_unknown() -> None:
    kernels = [{**KERNEL, "args": {"correlation": value}} for value in (1, 2**64, None, 2**63 - 1)]
    assert collect(kernels).gpu["correlation"].to_list() == [1, None, None, 2**63 - 1]


def test_rows_stay_in_order_over_batches_and_blocks() -> None:
    count = 2 * BLOCK_ROWS + 100
    kernels = [{**KERNEL, "ts": number, "args": {"correlation": number}} for number in range(count)]
    events = collect(kernels[:7], [], kernels[7 : BLOCK_ROWS + 50], kernels[BLOCK_ROWS + 50 :])
    assert events.gpu["correlation"].to_list() == list(range(count))
    assert events.gpu["start_ns"].to_list() == list(range(0, 1000 * count, 1000))


def test_kernel_records_point_to_their_kernel_and_leave_others_out() -> None:
    record = {"Collective name": "allreduce", "In msg nelems": 4, "Group size": 2, "Process Group Name": 7}
    events = collect([KERNEL, {**KERNEL, "args": record}], [{**KERNEL, "args": record}])
    assert events.kernel_records["row"].to_list() == [1, 2]
    assert events.kernel_records["group_name"].to_list() == ["7", "7"]


def test_launches_without_a_correlation_serve_nothing() -> None:
    events = collect([LAUNCH, {**LAUNCH, "args": {"correlation": 4}}])
    assert events.launches["correlation"].to_list() == [4]


def test_products_are_kept_by_the_shapes_that_they_have() -> None:
    product = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    shapes = [[[2, 3], [3, 4]], [[2, 3], [3, 5]], [[2, 3], [3, 4]]]
    events = collect(
        [{**product, "args": {"External id": i, "Input Dims": s}} for i, s in enumerate(shapes)], [product]
    )
    texts = [None if code is None else events.texts[code] for code in events.products["dims"]]
    assert texts == ["[[2,3],[3,4]]", "[[2,3],[3,5]]", "[[2,3],[3,4]]", None]


@pytest.mark.parametrize(
    ("change", "code", "kernels"),
    [
        ({"ts": None}, "events-without-time", 1),
        ({"ts": 1e300}, "events-without-time", 1),
        ({"dur": None}, "durations-missing", 2),
        ({"dur": 1e300}, "durations-missing", 2),
        ({"cat": None}, "events-without-category", 1),
        ({"name": None}, "kernels-without-name", 2),
    ],
)
def test_what_is_missing_is_told(change: dict[str, Any], code: str, kernels: int) -> None:
    events = collect([KERNEL, {**KERNEL, **change}])
    assert [told[0] for told in events.told] == [code]
    assert events.told[0][1].startswith("1 ")
    assert len(events.gpu) == kernels


def test_nothing_gives_empty_frames_with_all_their_columns() -> None:
    events = collect([])
    assert events.gpu.schema["start_ns"] == pl.Int64
    assert events.records.is_empty()
    assert events.window_ns is None
