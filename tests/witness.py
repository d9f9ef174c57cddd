"""A second, deliberately naive reader of one trace: lists, loops and exact decimals, nothing of the package.

It shares no code and no table with `tracelens`, so where both agree it is not by the same mistake.

`witness(path)` returns a dict:

* `rank`, `world_size`: from `distributedInfo`, None where it does not say.
* `traffic`: {(group name | None, primitive, dtype): row} with `calls`, `calls_by_step` {step | None: calls},
  `payload_bytes`, `wire_bytes` (exact, rounded once), `kernels`, `busy_ns`, `exposed_ns` (of the row's own
  kernels), `ranks` (tuple or None), `peers` (set of global ranks).
* `shared`: {(group name | None, (primitive, ...)): row} for kernels that carry several calls: `kernels`,
  `busy_ns`, `exposed_ns`. Such a kernel stands in no row of `traffic`.
* `unattributed`: `kernels`, `busy_ns`, `exposed_ns` of communication kernels that belong to no call.
* `comm_ns`, `overlap_ns`, `comm_overlap_pct`: unions over the whole trace, None without any.
* `time`: {step | None: budget} with `span_ns`, `compute_ns`, `exposed_comm_ns`, `exposed_memory_ns`,
  `idle_ns`, `comm_ns`, `overlap_ns`, `memory_ns`. Without any ProfilerStep the recording is one step, None.
* `coverage`: `calls`, `calls_with_kernel`, `kernels`, `kernels_with_call`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Intervals = list[tuple[int, int]]

PRIMITIVES = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce",
    "all_gather": "all_gather", "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all", "all_to_allv": "all_to_all",
    "send": "send", "recv": "recv", "broadcast": "broadcast", "_broadcast_oop": "broadcast",
    "reduce": "reduce", "barrier": "barrier",
}  # fmt: skip
TYPES = {
    "Float": ("fp32", 4), "Half": ("fp16", 2), "BFloat16": ("bf16", 2), "Double": ("fp64", 8),
    "Byte": ("uint8", 1), "Char": ("int8", 1), "Int": ("int32", 4), "Long": ("int64", 8), "Bool": ("bool", 1),
    "Float8_e4m3fn": ("fp8_e4m3", 1), "Float8_e5m2": ("fp8_e5m2", 1),
}  # fmt: skip
COMM_NAMES = ("nccl", "oneccl", "all_reduce_kernel", "ep::internode")


def read(path: Path) -> tuple[Event, list[Event]]:
    """The object of a trace and its events, fractions as exact decimals."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = json.loads(text, parse_float=Decimal)
    events, seen = [], set()
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or "dur" not in event:
            continue
        args = event.get("args") or {}
        if category(event) == "kernel" and not event["ts"]:
            continue  # the profiler lost its time
        mark = (event["name"], event["ts"], event["dur"], event["pid"], event["tid"], args.get("correlation"))
        if mark not in seen:
            seen.add(mark)
            events.append(event)
    return trace, events


def start_ns(event: Event) -> int:
    return int(Decimal(event["ts"]) * 1000)


def end_ns(event: Event) -> int:
    return start_ns(event) + int(Decimal(event["dur"]) * 1000)


def union(intervals: Intervals) -> Intervals:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def length(intervals: Intervals) -> int:
    return sum(end - start for start, end in union(intervals))


def common(a: Intervals, b: Intervals) -> int:
    """Length of the intersection, since |a| + |b| counts it twice and the union once."""
    return length(a) + length(b) - length([*a, *b])


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    return [(max(a, start), min(b, end)) for a, b in intervals if a < end and b > start]


def spans(events: list[Event]) -> Intervals:
    return [(start_ns(event), end_ns(event)) for event in events]


def category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def is_comm(kernel: Event) -> bool:
    name = kernel["name"].lower()
    return "Collective name" in kernel["args"] or any(word in name for word in COMM_NAMES)


def numbers(text: str | None) -> list[int] | None:
    """The list in a string such as "[4, 4]"; None when it is cut, missing or empty."""
    if not text or "..." in text:
        return None
    return [int(number) for number in re.findall(r"-?\d+", text)] or None


def group_ranks(args: Event, info: Event) -> tuple[int, ...] | None:
    for group in info.get("pg_config", []):
        if group["pg_name"] == args.get("Process Group Name") and isinstance(group["ranks"], list):
            return tuple(group["ranks"])
    listed = numbers(args.get("Process Group Ranks"))
    if listed:
        return tuple(listed)
    first, stride = args.get("Global rank start"), args.get("Global rank stride")
    if first is None or not stride:
        return None
    return tuple(first + stride * place for place in range(args["Group size"]))


def payload(args: Event) -> int:
    """The full buffer of a call."""
    into = int(args["In msg nelems"] if "In msg nelems" in args else args["In msg size"])
    out = int(args["Out msg nelems"] if "Out msg nelems" in args else args["Out msg size"])
    primitive = PRIMITIVES[args["Collective name"]]
    elements = max(into, out) if primitive in ("all_gather", "reduce_scatter") else into
    size: int = TYPES[args["dtype"]][1]
    return elements * size


def wire(args: Event, rank: int | None, ranks: tuple[int, ...] | None) -> Fraction:
    """What this rank sends."""
    primitive, size = PRIMITIVES[args["Collective name"]], args["Group size"]
    total = Fraction(payload(args))
    if size == 1 or primitive in ("recv", "barrier"):
        return Fraction(0)
    if primitive in ("send", "broadcast", "reduce"):
        return total
    splits = numbers(args.get("In split size"))
    if primitive == "all_to_all" and splits and sum(splits):
        place = ranks.index(rank) if ranks and rank in ranks else args["Rank"]
        return total * (sum(splits) - splits[place]) / sum(splits)
    share = Fraction(size - 1, size)
    return total * share * (2 if primitive == "all_reduce" else 1)


def calls_of(events: list[Event]) -> list[Event]:
    """Records of calls, in order of time; `wait` is none."""
    records = [e for e in events if e["name"] == "record_param_comms" and "Collective name" in e["args"]]
    return sorted((r for r in records if r["args"]["Collective name"] in PRIMITIVES), key=start_ns)


def attribute(events: list[Event], records: list[Event], kernels: list[Event]) -> dict[int, list[int]]:
    """Index of a communication kernel to the indices of its calls: by External id, else by its batch."""
    by_id = {record["args"]["External id"]: index for index, record in enumerate(records)}
    launches = launches_of(events)
    owners: dict[int, list[int]] = {}
    bare = []
    for number, kernel in enumerate(kernels):
        index = by_id.get(kernel["args"].get("External id"))
        if index is not None:
            owners[number] = [index]
        else:
            bare.append(number)
    claimed = {index for calls in owners.values() for index in calls}
    batches = [event for event in events if event["name"] == "nccl:coalesced" and category(event) == "user_annotation"]
    for number in bare:
        launch = launches.get(kernels[number]["args"].get("correlation"))
        if launch is not None:
            calls = enclosing_call(launch, records) or batch_calls(launch, batches, records, claimed)
            claimed.update(calls)
            if calls:
                owners[number] = calls
    return owners


def enclosing_call(launch: Event, records: list[Event]) -> list[int]:
    """The call whose record was open on the thread of a launch."""
    at = start_ns(launch)
    return [
        index
        for index, record in enumerate(records)
        if record["tid"] == launch["tid"] and start_ns(record) <= at < end_ns(record)
    ]


def batch_calls(launch: Event, batches: list[Event], records: list[Event], claimed: set[int]) -> list[int]:
    """Calls whose records precede the `nccl:coalesced` range around a launch, back to the range before it."""
    here = [b for b in batches if b["tid"] == launch["tid"] and start_ns(b) <= start_ns(launch)]
    here.sort(key=start_ns)
    if not here or end_ns(here[-1]) < start_ns(launch):
        return []
    since = start_ns(here[-2]) if len(here) > 1 else 0
    return [
        index
        for index, record in enumerate(records)
        if index not in claimed
        and record["tid"] == launch["tid"]
        and record["args"]["Group size"] > 1
        and since < start_ns(record) <= start_ns(launch)
    ]


def launches_of(events: list[Event]) -> dict[Any, Event]:
    runtime = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime")
    return {e["args"].get("correlation"): e for e in events if category(e) in runtime}


def steps_of(events: list[Event]) -> list[tuple[int | None, int, int]]:
    """(number, start, end) of each ProfilerStep on the CPU; one endless step where there is none."""
    found = []
    for event in events:
        match = re.fullmatch(r"ProfilerStep\s*#(\d+)", event["name"])
        if match and category(event) != "gpu_user_annotation":
            found.append((int(match[1]), start_ns(event), end_ns(event)))
    return sorted(found, key=lambda step: step[1]) if found else [(None, -(10**19), 10**19)]


def step_at(steps: list[tuple[int | None, int, int]], ns: int) -> tuple[bool, int | None]:
    for number, start, end in steps:
        if start <= ns < end:
            return True, number
    return False, None


def traffic_rows(
    trace: Event, events: list[Event], records: list[Event], sums: dict[str, Any]
) -> dict[tuple[str | None, str, str], dict[str, Any]]:
    info = trace.get("distributedInfo") or {}
    steps = steps_of(events)
    rows: dict[tuple[str | None, str, str], dict[str, Any]] = {}
    own_kernels: dict[tuple[str | None, str, str], Intervals] = defaultdict(list)
    for index, record in enumerate(records):
        args = record["args"]
        key = (args.get("Process Group Name"), PRIMITIVES[args["Collective name"]], TYPES[args["dtype"]][0])
        ranks = group_ranks(args, info)
        row = rows.setdefault(
            key,
            {"calls": 0, "calls_by_step": {}, "payload_bytes": 0, "wire_bytes": Fraction(0), "kernels": 0,
             "ranks": ranks, "peers": set()},
        )  # fmt: skip
        inside, step = step_at(steps, start_ns(record))
        row["calls"] += 1
        if inside:
            row["calls_by_step"][step] = row["calls_by_step"].get(step, 0) + 1
        row["payload_bytes"] += payload(args)
        row["wire_bytes"] += wire(args, info.get("rank"), ranks)
        row["peers"] |= peers_of(record, events, ranks)
        mine = [number for number, calls in sums["owners"].items() if calls == [index]]
        row["kernels"] += len(mine)
        own_kernels[key] += spans([sums["kernels"][number] for number in mine])
    for key, row in rows.items():
        row["wire_bytes"] = round(row["wire_bytes"])
        row["busy_ns"] = length(own_kernels[key])
        row["exposed_ns"] = row["busy_ns"] - common(own_kernels[key], sums["compute"])
    return rows


def peers_of(record: Event, events: list[Event], ranks: tuple[int, ...] | None) -> set[int]:
    """Global rank at the other end of a send or recv: from the record, else from the annotation inside it."""
    args = record["args"]
    if args["Collective name"] not in ("send", "recv"):
        return set()
    known = {args[word] for word in ("Src Rank", "Dst Rank") if args.get(word) is not None}
    if known or not ranks:
        return known
    for event in events:
        match = re.fullmatch(r"nccl:(?:send|recv) \d+(?:->|<-)(\d+)", event["name"])
        inside = start_ns(record) <= start_ns(event) < end_ns(record)
        if match and category(event) == "user_annotation" and inside:
            return {ranks[int(match[1])]}
    return set()


def shared_rows(records: list[Event], sums: dict[str, Any]) -> dict[tuple[str | None, tuple[str, ...]], dict[str, int]]:
    carriers: dict[tuple[str | None, tuple[str, ...]], list[Event]] = defaultdict(list)
    for number, calls in sums["owners"].items():
        if len(calls) > 1:
            args = [records[call]["args"] for call in calls]
            primitives = tuple(sorted({PRIMITIVES[a["Collective name"]] for a in args}))
            carriers[(args[0].get("Process Group Name"), primitives)].append(sums["kernels"][number])
    return {key: times(kernels, sums["compute"]) for key, kernels in carriers.items()}


def times(kernels: list[Event], compute: Intervals) -> dict[str, int]:
    busy = spans(kernels)
    return {
        "kernels": len(kernels),
        "busy_ns": length(busy),
        "exposed_ns": length(busy) - common(busy, compute),
    }


def budget(start: int, end: int, compute: Intervals, comm: Intervals, memory: Intervals) -> dict[str, int]:
    """What a window was used for; copies are exposed where neither compute nor communication runs."""
    compute, comm, memory = (clip(kind, start, end) for kind in (compute, comm, memory))
    used, all_used = length([*compute, *comm]), length([*compute, *comm, *memory])
    return {
        "span_ns": end - start,
        "compute_ns": length(compute),
        "exposed_comm_ns": used - length(compute),
        "exposed_memory_ns": all_used - used,
        "idle_ns": end - start - all_used,
        "comm_ns": length(comm),
        "overlap_ns": common(comm, compute),
        "memory_ns": length(memory),
    }


def time_rows(events: list[Event], sums: dict[str, Any]) -> dict[int | None, dict[str, int]]:
    steps, launches = steps_of(events), launches_of(events)
    first: dict[int | None, int] = {}
    for kernel in sums["all_kernels"]:
        launch = launches.get(kernel["args"].get("correlation"))
        if launch is not None:
            inside, step = step_at(steps, start_ns(launch))
            if inside:
                first[step] = min(first.get(step, start_ns(kernel)), start_ns(kernel))
    order = [number for number, _, _ in steps if number in first]
    last_end = max((end_ns(event) for event in [*sums["all_kernels"], *sums["memory_events"]]), default=0)
    ends = [first[number] for number in order[1:]] + [last_end] * bool(order)
    return {
        number: budget(first[number], end, sums["compute"], sums["comm"], sums["memory"])
        for number, end in zip(order, ends, strict=True)
    }


def witness(path: Path) -> dict[str, Any]:
    """Everything that can be said of one trace; see the module's docstring for the keys."""
    trace, events = read(path)
    kernels = [event for event in events if category(event) == "kernel"]
    comm = [kernel for kernel in kernels if is_comm(kernel)]
    memory = [event for event in events if category(event) in ("gpu_memcpy", "gpu_memset")]
    records = calls_of(events)
    sums: dict[str, Any] = {
        "all_kernels": kernels,
        "kernels": comm,
        "memory_events": memory,
        "owners": attribute(events, records, comm),
        "comm": union(spans(comm)),
        "compute": union(spans([kernel for kernel in kernels if not is_comm(kernel)])),
        "memory": union(spans(memory)),
    }
    owners = sums["owners"]
    info = trace.get("distributedInfo") or {}
    comm_ns, overlap_ns = length(sums["comm"]), common(sums["comm"], sums["compute"])
    return {
        "rank": info.get("rank"),
        "world_size": info.get("world_size"),
        "traffic": traffic_rows(trace, events, records, sums),
        "shared": shared_rows(records, sums),
        "unattributed": times([k for n, k in enumerate(comm) if n not in owners], sums["compute"]),
        "comm_ns": comm_ns,
        "overlap_ns": overlap_ns,
        "comm_overlap_pct": 100 * overlap_ns / comm_ns if comm_ns else None,
        "time": time_rows(events, sums),
        "coverage": {
            "calls": len(records),
            "calls_with_kernel": len({call for calls in owners.values() for call in calls}),
            "kernels": len(comm),
            "kernels_with_call": len(owners),
        },
    }
