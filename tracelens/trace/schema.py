"""The fields that are read of a Kineto trace: one declared table, everything else is skipped by the decoder.

Names are Kineto's own (libkineto/src/output_json.cpp, torch/csrc/profiler/util.cpp `saveNcclMeta`); the version in
a comment is the first PyTorch release that writes the field.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

# Beyond these a number is no number of ranks, no size and no time: products of them would overflow 64 bits, and lists
# of ranks fill the memory. Such an event counts as broken.
Ranks = Annotated[int, Meta(ge=-(1 << 20), le=1 << 20)]
Number = Annotated[int, Meta(ge=-(1 << 48), le=1 << 48)]
EpochNs = Annotated[int, Meta(ge=0, le=1 << 61)]

NO_TEXT = msgspec.Raw()


def _named(key: str) -> Any:
    return msgspec.field(default=None, name=key)


def _text(key: str) -> Any:
    return msgspec.field(default=NO_TEXT, name=key)


class Args(msgspec.Struct, gc=False):
    """The `args` of an event that are of use."""

    correlation: int | None = None
    external_id: int | None = _named("External id")
    device: int | None = None
    stream: int | str | None = None
    grid: msgspec.Raw = NO_TEXT
    """Blocks of a kernel, as text: with the name it tells one matrix product from another."""
    name: str | None = None
    """Of metadata events: the name of a process or thread."""
    collective: str | None = _named("Collective name")
    dtype: str | None = None
    in_elements: Number | None = _named("In msg nelems")
    out_elements: Number | None = _named("Out msg nelems")
    in_elements_2_2: Number | None = _named("In msg size")
    out_elements_2_2: Number | None = _named("Out msg size")
    in_splits: str | None = _named("In split size")
    out_splits: str | None = _named("Out split size")
    group_size: Ranks | None = _named("Group size")
    group_name: str | int | None = _named("Process Group Name")
    group_id: str | int | None = _named("Process Group ID")
    group_description: str | None = _named("Process Group Description")
    group_ranks: str | None = _named("Process Group Ranks")
    rank_start: Number | None = _named("Global rank start")
    rank_stride: Number | None = _named("Global rank stride")
    rank: Number | None = _named("Rank")
    src_rank: Number | None = _named("Src Rank")
    dst_rank: Number | None = _named("Dst Rank")
    seq: int | None = _named("Seq")
    is_async: int | bool | None = _named("Is asynchronized op")
    input_dims: msgspec.Raw = _text("Input Dims")
    input_types: msgspec.Raw = _text("Input type")
    concrete_inputs: msgspec.Raw = _text("Concrete Inputs")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One trace event; microseconds."""

    name: str | None = None
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | None = None
    dur: float | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose timestamp keeps its digits: for absolute microseconds with a fraction, too long for a float."""

    name: str | None = None
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = NO_TEXT
    dur: float | None = None
    args: Args | None = None


class Kind(IntEnum):
    """What an event is to us. `skip` is dropped at once."""

    skip = 0
    gpu = 1
    launch = 2
    cpu = 3
    annotation = 4
    metadata = 5
    span = 6


# Kineto's categories in both spellings (until 2021 capitalised); see ActivityType.cpp.
KINDS: dict[str | None, Kind] = {
    None: Kind.metadata,
    "": Kind.metadata,
    "__metadata": Kind.metadata,
    "kernel": Kind.gpu,
    "Kernel": Kind.gpu,
    "gpu_memcpy": Kind.gpu,
    "Memcpy": Kind.gpu,
    "gpu_memset": Kind.gpu,
    "Memset": Kind.gpu,
    "mtia_ccp_events": Kind.gpu,
    "cuda_runtime": Kind.launch,
    "Runtime": Kind.launch,
    "cuda_driver": Kind.launch,
    "hip_runtime": Kind.launch,
    "privateuse1_runtime": Kind.launch,
    "xpu_runtime": Kind.launch,
    "mtia_runtime": Kind.launch,
    "cpu_op": Kind.cpu,
    "Operator": Kind.cpu,
    "user_annotation": Kind.annotation,
    "User_annotation": Kind.annotation,
    "Trace": Kind.span,
}

MEMCPY_CATEGORIES = frozenset({"gpu_memcpy", "Memcpy"})
MEMSET_CATEGORIES = frozenset({"gpu_memset", "Memset"})


class GroupConfig(msgspec.Struct):
    """One entry of `distributedInfo.pg_config` (2.3; `pg_desc` and `ranks` as written by 2.5)."""

    pg_name: str | int | None = None
    pg_desc: str | None = None
    backend_config: str | None = None
    pg_size: Ranks | None = None
    ranks: list[Number] | str | None = None


class DistributedInfo(msgspec.Struct):
    """What `torch.distributed` told the profiler about the job."""

    backend: str | None = None
    rank: Number | str | None = None
    world_size: Ranks | str | None = None
    pg_count: Number | None = None
    pg_config: list[GroupConfig] | str | None = None
    nccl_version: str | None = None


class DeviceProperties(msgspec.Struct):
    """One GPU that the process could see."""

    id: int | None = None
    name: str | None = None


class TraceHead(msgspec.Struct):
    """The top-level keys of a trace file that are of use."""

    schema_version: int | None = _named("schemaVersion")
    distributed_info: DistributedInfo | None = _named("distributedInfo")
    device_properties: list[DeviceProperties] | None = _named("deviceProperties")
    base_time_ns: EpochNs | None = _named("baseTimeNanoseconds")
    host_name: str | None = None
    trace_name: str | None = _named("traceName")
    vllm_version: str | None = None
    tracelens: msgspec.Raw = NO_TEXT
    """What our own capture wrote."""
