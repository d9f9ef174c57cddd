"""The smallest trace that says something: one step, one matrix product, one all-reduce in a group of two.

Step 3 begins at 0 µs. On the GPU compute runs from 100 to 300 µs and the all-reduce of 1,000,000 bf16 elements
from 200 to 400 µs, so that 100 of its 200 µs are exposed and both ranks send 2,000,000 bytes.
"""

from __future__ import annotations

import json
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
        "traceEvents": [
            _cpu("ProfilerStep#3", "user_annotation", 0, 500, {"External id": 1}),
            _cpu("aten::mm", "cpu_op", 10, 10, {"External id": 2}),
            _cpu("cudaLaunchKernel", "cuda_runtime", 13, 3, {"External id": 2, "correlation": 51}),
            _cpu("record_param_comms", "cpu_op", 50, 20, {"External id": 3, **MESSAGE}),
            _cpu("cuLaunchKernelEx", "cuda_driver", 56, 3, {"External id": 3, "correlation": 52}),
            _gpu("nvjet_tst_256x128", 7, 100, 200, {"External id": 2, "correlation": 51}),
            _gpu(kernel, 20, 200, 200, {"External id": 3, "correlation": 52, **MESSAGE}),
        ],
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
