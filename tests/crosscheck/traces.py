"""Small traces in µs, to show one thing at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]

GEMM, ALL_REDUCE = "nvjet_tst_128x128", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def step(number: int, start: float, duration: float) -> Event:
    return _event("user_annotation", f"ProfilerStep#{number}", start, duration, pid=9, tid=9, args={})


def launch(correlation: int, at: float) -> Event:
    return _event("cuda_runtime", "cudaLaunchKernel", at, 1, pid=9, tid=9, args={"correlation": correlation})


def kernel(name: str, start: float, duration: float, correlation: int, *, stream: int = 7) -> Event:
    return on_stream("kernel", name, start, duration, {"correlation": correlation, "stream": stream})


def on_stream(category: str, name: str, start: float, duration: float, args: Event) -> Event:
    return _event(category, name, start, duration, pid=0, tid=args.get("stream", 9), args={"device": 0, **args})


def _event(category: str, name: str, start: float, duration: float, *, pid: int, tid: int, args: Event) -> Event:
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration}
    return {**event, "args": args}


def write_trace(path: Path, *events: Event, rank: int | None = 0) -> Path:
    head = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path
