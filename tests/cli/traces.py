"""The smallest trace that says something: one step, one matrix product, one all-reduce in a group of two.

Step 3 begins at 0 µs. On the GPU compute runs from 100 to 300 µs and the all-reduce of 1,000,000 bf16 elements
from 200 to 400 µs, so that 100 of its 200 µs are exposed and both ranks send 2,000,000 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

MESSAGE = {
    "Collective name": "allreduce",
    "In msg nelems": 1_000_000,
    "Out msg nelems": 1_000_000,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}


def write_trace(path: Path, *, rank: int, kernel: str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()") -> Path:
    """Write the trace of one of two ranks, making its folder."""
    return _write(path, rank, _step_events(3, 0, kernel))


def write_steps(
    path: Path, *, rank: int = 0, steps: int, unsized: Collection[int] = (), untimed: Collection[int] = ()
) -> Path:
    """Write a trace of several such steps, from number 3 on, 1 ms apart.

    Args:
        path: of the trace.
        rank: of two.
        steps: how many.
        unsized: numbers of steps whose record lost its element counts.
        untimed: numbers of steps whose all-reduce has no kernel in the trace.
    """
    events = []
    for number in range(3, 3 + steps):
        own = _step_events(number, 1000 * (number - 3))
        if number in untimed:
            own = [event for event in own if not event["name"].startswith("nccl")]
        if number in unsized:
            for event in own:
                event["args"] = {key: value for key, value in event["args"].items() if "nelems" not in key}
        events += own
    return _write(path, rank, events)


def _step_events(
    number: int, at: int, kernel: str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"
) -> list[dict[str, Any]]:
    first, launch = 10 * number, 20 * number
    return [
        _cpu(f"ProfilerStep#{number}", "user_annotation", at, 500, {"External id": first}),
        _cpu("aten::mm", "cpu_op", at + 10, 10, {"External id": first + 1}),
        _cpu("cudaLaunchKernel", "cuda_runtime", at + 13, 3, {"External id": first + 1, "correlation": launch}),
        _cpu("record_param_comms", "cpu_op", at + 50, 20, {"External id": first + 2, **MESSAGE}),
        _cpu("cuLaunchKernelEx", "cuda_driver", at + 56, 3, {"External id": first + 2, "correlation": launch + 1}),
        _gpu("nvjet_tst_256x128", 7, at + 100, 200, {"External id": first + 1, "correlation": launch}),
        _gpu(kernel, 20, at + 200, 200, {"External id": first + 2, "correlation": launch + 1, **MESSAGE}),
    ]


def _write(path: Path, rank: int, events: list[dict[str, Any]]) -> Path:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2}
    trace = {
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": 2,
            "pg_count": 1,
            "pg_config": [{**group, "ranks": [0, 1]}],
        },
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "traceEvents": events,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace), encoding="utf-8")
    return path


def _cpu(name: str, category: str, start: int, duration: int, args: dict[str, Any]) -> dict[str, Any]:
    event = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": start, "dur": duration}
    return {**event, "args": args}


def _gpu(name: str, stream: int, start: int, duration: int, args: dict[str, Any]) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": duration}
    return {**event, "args": {"device": 0, "stream": stream, **args}}
