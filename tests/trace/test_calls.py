"""Calls of small traces, as what each generation of PyTorch and each backend writes tells them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


# --- gloo -------------------------------------------------------------------------------------------------

GLOO_RAN = (
    note("gloo:all_reduce", 100, 400, [[1000]], tid=GLOO),
    note("gloo:all_reduce", 300, 400, [[3000]], tid=GLOO + 1),
    note("gloo:all_gather", 900, 50, [[500]], tid=GLOO),
)


def test_what_gloo_ran_are_the_calls_of_a_trace_that_holds_nothing_else(tmp_path: Path) -> None:
    found = read(tmp_path, *GLOO_RAN, backend="gloo", groups=3)
    assert found.calls["primitive"].to_list() == ["all_reduce", "all_reduce", "all_gather"]
    # all groups hold the same four ranks: 2 (n-1)/n of 4,000 and 12,000 B, (n-1)/n of the 8,000 B gathered
    assert found.calls["payload_bytes"].to_list() == [4000, 12_000, 8000]
    assert found.calls["wire_bytes"].to_list() == [6000, 18_000, 6000]
    assert found.calls["kernels"].to_list() == [0, 0, 0]
    (told,) = [problem for problem in found.head.problems if problem.code == "communicator-assumed"]
    assert "3 calls" in told.message
    (group,) = measure([found]).groups
    assert (group.names, group.ranks) == (("0", "1", "2"), (0, 1, 2, 3))


def test_groups_of_other_ranks_leave_the_group_of_gloo_open(tmp_path: Path) -> None:
    two = [
        {"pg_name": "0", "backend_config": "cpu:gloo", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "backend_config": "cpu:gloo", "pg_size": 2, "ranks": [0, 1]},
    ]
    found = read(tmp_path, *GLOO_RAN, backend="gloo", pg_config=two)
    assert found.calls["group"].null_count() == 3
    assert found.calls["payload_bytes"].to_list() == [4000, 12_000, None]
    assert found.calls["wire_bytes"].null_count() == 3
    assert "group-unknown" in {problem.code for problem in found.head.problems}


@pytest.mark.parametrize(
    "issued",
    [
        [span("c10d::allreduce_", at, 20, [[[n]], [], [], []]) for at, n in ((90, 1000), (290, 3000))]
        + [span("c10d::_allgather_base_", 880, 20, [[2000], [500], []])],
        [
            span("tracelens::record_param_comms", at, 20, args={"Collective name": name, "In msg nelems": n})
            for at, n, name in ((90, 1000, "allreduce"), (290, 3000, "allreduce"), (880, 500, "_allgather_base"))
        ],
    ],
    ids=["operators", "our capture"],
)
def test_what_gloo_ran_for_a_call_that_is_there_counts_no_second_time(
    tmp_path: Path, issued: list[dict[str, Any]]
) -> None:
    found = read(tmp_path, *issued, *GLOO_RAN, backend="gloo")
    assert found.calls["primitive"].to_list() == ["all_reduce", "all_reduce", "all_gather"]
    assert found.calls["in_elements"].to_list() == [1000, 3000, 500]


def listed(name: str, at: int, elements: int) -> dict[str, Any]:
    """An operator on a list of one tensor, as PyTorch 2.13 writes it for gloo: shapes, and no type."""
    return span(name, at, 20, [[[elements]], [], [], []], "TensorList")


def test_the_type_of_an_operator_on_a_list_is_that_of_what_gloo_ran(tmp_path: Path) -> None:
    # as DDP on gloo: two threads take turns at what the main thread issues
    found = read(
        tmp_path,
        *(listed("c10d::allreduce_", at, n) for at, n in ((90, 1000), (200, 3000))),
        listed("c10d::broadcast_", 150, 5),
        *GLOO_RAN[:2],
        span("gloo:broadcast", 160, 9, [[5]], "long", tid=GLOO + 1, cat="user_annotation"),
        backend="gloo",
    )
    assert found.calls.select("primitive", "dtype", "payload_bytes", "wire_bytes").rows() == [
        ("all_reduce", "fp32", 4000, 6000.0),
        ("broadcast", "int64", 40, 40.0),
        ("all_reduce", "fp32", 12_000, 18_000.0),
    ]


@pytest.mark.parametrize("issued", [[(90, 1000)], [(90, 1000), (200, 3001)], [(90, 3000), (200, 1000)]])
def test_what_gloo_ran_for_other_calls_tells_no_type(tmp_path: Path, issued: list[tuple[int, int]]) -> None:
    found = read(tmp_path, *(listed("c10d::allreduce_", at, n) for at, n in issued), *GLOO_RAN[:2], backend="gloo")
    assert found.calls.select("dtype", "in_elements").rows() == [(None, n) for _, n in issued]


def test_gloo_beside_nccl_counts_too(tmp_path: Path) -> None:
    record = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "Float", "Group size": 4}
    found = read(tmp_path, span("record_param_comms", 10, 20, args=record), *GLOO_RAN)
    assert found.calls["in_elements"].to_list() == [64, 1000, 3000, 500]


# --- all-to-all -------------------------------------------------------------------------------------------


def exchange(taken: int, given: int, **more: Any) -> dict[str, Any]:
    fields = {"Collective name": "all_to_all", "dtype": "Int", "Group size": 4, "Process Group Name": "0"}
    return span("record_param_comms", 10, 20, args=fields | {"In msg nelems": taken, "Out msg nelems": given} | more)


@pytest.mark.parametrize(
    ("call", "payload", "wire"),
    [
        (exchange(3392, 3392), 13_568, 10_176.0),  # (n-1)/n of it
        (exchange(3392, 768), 13_568, None),  # so splits are not equal, and what stays is not known
        (exchange(3392, 13_312), 13_568, None),
        (exchange(0, 768), 0, 0.0),
        (exchange(3392, 768, **{"Group size": 1}), 13_568, 0.0),
        # rank 1 keeps 53 of 106 rows of 32 elements
        (exchange(3392, 768, **{"In split size": "[13, 53, 20, 20]"}), 13_568, 6784.0),
        (exchange(3392, 768, **{"In split size": "[13, 53, ...]"}), 13_568, None),
        (exchange(3392, 3392, **{"In split size": "[]"}), 13_568, 10_176.0),
    ],
)
def test_bytes_of_an_all_to_all_are_known_where_its_splits_are(
    tmp_path: Path, call: dict[str, Any], payload: int, wire: float | None
) -> None:
    found = read(tmp_path, call)
    assert found.calls.select("payload_bytes", "wire_bytes").rows() == [(payload, wire)]


def test_a_row_without_wire_bytes_keeps_its_payload_and_has_no_bus_bandwidth(tmp_path: Path) -> None:
    launch = span("cuLaunchKernelEx", 15, 2, cat="cuda_driver", args={"External id": 10, "correlation": 5})
    kernel = span("ncclDevKernel_SendRecv", 50, 100, cat="kernel", pid=0, tid=20)
    kernel["args"] = {"device": 0, "stream": 20, "correlation": 5, "External id": 10}
    (row,) = measure([read(tmp_path, exchange(3392, 768), launch, kernel)]).traffic
    assert (row.payload_bytes_per_step, row.wire_bytes_per_step, row.busy_ns_per_step) == (13_568, None, 100_000)
    assert row.algbw_bytes_per_s == pytest.approx(13_568 / 1e-4)
    assert row.busbw_bytes_per_s is None


# --- steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "categories", [("Operator",), ("cpu_op",), ("user_annotation",), ("cpu_op", "user_annotation")]
)
def test_a_step_of_the_profiler_is_one_whatever_its_category(tmp_path: Path, categories: tuple[str, ...]) -> None:
    marks = [
        span(f"ProfilerStep#{number}", 1000 * number + late, 900 - late, cat=category, tid="3340707648")
        for number in (5, 6, 7)
        for late, category in enumerate(categories)
    ]
    work = span("volta_sgemm_128x64_nn", 5100, 300, cat="Kernel", pid=0, tid="stream 7")
    found = read(tmp_path, *marks, work)
    assert [step.number for step in found.head.steps] == [5, 6, 7]
    assert "no-steps" not in {problem.code for problem in found.head.problems}


def test_a_kernel_is_missing_only_where_a_call_needs_one(tmp_path: Path) -> None:
    record = {"Collective name": "allreduce", "dtype": "Float", "Process Group Name": "0", "Group size": 4}
    calls = [
        span("record_param_comms", 10, 5, args=record | {"In msg nelems": 64}),
        span("record_param_comms", 20, 5, args=record | {"In msg nelems": 0}),
        span(
            "record_param_comms", 30, 5, args=record | {"In msg nelems": 64, "Process Group Name": "1", "Group size": 1}
        ),
    ]
    launch = span("cudaLaunchKernel", 1, 2, cat="cuda_runtime", args={"correlation": 4})
    work = span("gemm", 100, 50, cat="kernel", pid=0, tid=7, args={"device": 0, "stream": 7, "correlation": 4})
    step = span("ProfilerStep#0", 0, 90, cat="user_annotation")
    on_gloo = note("gloo:all_reduce", 40, 5, [[64]], tid=GLOO)
    found = read(tmp_path, step, launch, *calls, on_gloo, work)
    assert found.budget["untimed_calls"].to_list() == [1]
    assert found.calls["kernels"].to_list() == [0, 0, 0, 0]
