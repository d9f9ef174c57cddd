"""The summary of one rank: all that is kept of a trace.

It grows with the communication, not with the events, and is saved as one file: a zip of `head.json` and an Arrow
stream per frame. Times are ns since the epoch where the trace tells its base, else since an unknown moment.
"""

from __future__ import annotations

import io
import os
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import polars as pl

from tracelens.errors import InputError, Problem
from tracelens.results import RanksSource
from tracelens.topology import Mesh, mesh_of, ranks_of

SCHEMA_VERSION = 1
SUFFIX = ".tracelens"

CALLS: dict[str, pl.DataType] = {
    "call": pl.UInt32(),
    "primitive": pl.String(),
    "collective": pl.String(),
    "dtype": pl.String(),
    "group": pl.Int32(),
    "group_size": pl.Int64(),
    "step": pl.Int32(),
    "phase": pl.String(),
    "label": pl.String(),
    "thread": pl.Int32(),
    "issue_ns": pl.Int64(),
    "issue_end_ns": pl.Int64(),
    "launch_ns": pl.Int64(),
    "gpu_start_ns": pl.Int64(),
    "gpu_end_ns": pl.Int64(),
    "kernels": pl.UInt32(),
    "stream": pl.Int64(),
    "ordinal": pl.UInt32(),
    "seq": pl.Int64(),
    "is_async": pl.Int64(),
    "peer": pl.Int64(),
    "root": pl.Int64(),
    "in_elements": pl.Int64(),
    "out_elements": pl.Int64(),
    "in_split_list": pl.List(pl.Int64()),
    "out_split_list": pl.List(pl.Int64()),
    "payload_bytes": pl.Int64(),
    "wire_bytes": pl.Float64(),
    "evidence": pl.String(),
}
"""One row per call in the order of issue. `group` and `step` are indices into the head's lists, `ordinal` counts
the calls of a group (sends and receives apart), `peer` is a global rank, `root` a group rank."""

KERNELS: dict[str, pl.DataType] = {
    "kernel": pl.UInt32(),
    "name": pl.String(),
    "family": pl.String(),
    "hint": pl.String(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "launch_ns": pl.Int64(),
    "step": pl.Int32(),
    "stream": pl.Int64(),
    "device": pl.Int64(),
    "owner": pl.UInt32(),
}
"""One row per communication kernel. `owner` is the call that its time is charged to (null: no call is known)."""

LINKS: dict[str, pl.DataType] = {"kernel": pl.UInt32(), "call": pl.UInt32(), "link": pl.String()}
"""Which kernel serves which calls: launch, external_id or position."""

SEGMENTS: dict[str, pl.DataType] = {
    "segment": pl.UInt32(),
    "kernel": pl.UInt32(),
    "length_ns": pl.Int64(),
    "covered_ns": pl.Int64(),
}
"""The communication timeline cut wherever the set of running kernels changes, a row per segment and kernel, with
the part of the segment that compute covers."""

COMPUTE: dict[str, pl.DataType] = {
    "after_call": pl.UInt32(),
    "thread": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "busy_ns": pl.Int64(),
    "matmul_ns": pl.Int64(),
    "kernels": pl.UInt32(),
}
"""Compute launched between two calls: `after_call` is the last call issued before it (null: before the first)."""

BUDGET: dict[str, pl.DataType] = {
    "step": pl.Int32(),
    "span_ns": pl.Int64(),
    "compute_ns": pl.Int64(),
    "exposed_comm_ns": pl.Int64(),
    "exposed_memory_ns": pl.Int64(),
    "idle_ns": pl.Int64(),
    "comm_ns": pl.Int64(),
    "overlap_ns": pl.Int64(),
    "memory_ns": pl.Int64(),
    "untimed_calls": pl.Int64(),
}
"""Time of each step with GPU work: span = compute + exposed_comm + exposed_memory + idle; and calls of it whose GPU
work the trace does not hold."""

SHAPES: dict[str, pl.DataType] = {"operator": pl.String(), "input_dims": pl.String(), "count": pl.UInt32()}
"""Matrix products by shape, as the CPU operators tell them (needs `record_shapes`)."""

MATMULS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "input_dims": pl.String(),
    "grid": pl.Int32(),
    "alone": pl.UInt32(),
    "alone_ns": pl.Float64(),
    "under": pl.UInt32(),
    "under_ns": pl.Float64(),
    "partly": pl.UInt32(),
}
"""Matrix products by kernel, sizes (where the operators tell them) and grid (a number that stands for equal grids of
this trace): how many ran without any communication beside them and how many under it (nine tenths of their time or
more), each with the median time."""

FRAMES: dict[str, dict[str, pl.DataType]] = {
    "calls": CALLS,
    "kernels": KERNELS,
    "links": LINKS,
    "segments": SEGMENTS,
    "compute": COMPUTE,
    "budget": BUDGET,
    "shapes": SHAPES,
    "matmuls": MATMULS,
}


class LocalGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank knows it."""

    name: str | None
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None
    """Global ranks in the order of the group; None when the trace does not tell them all."""
    ranks_source: RanksSource | None
    backend: str | None = None


class StepSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One profiler step of one rank; ns."""

    number: int | None
    """As in `ProfilerStep#7`; None for a trace without steps, which is one step."""
    cpu_start_ns: int
    cpu_end_ns: int
    gpu_start_ns: int | None = None
    """Start of the first kernel that the step launched; None when it launched none."""
    gpu_end_ns: int | None = None
    """Where the next step's GPU work begins, or the end of all GPU work for the last one."""


class SummaryHead(msgspec.Struct, frozen=True, kw_only=True):
    """What one trace says of itself and its job."""

    schema_version: int = SCHEMA_VERSION
    path: str
    bytes: int
    events: int
    rank: int | None
    rank_source: str | None
    """`metadata` (distributedInfo), `file name`, or None."""
    world_size: int | None
    backend: str | None
    nccl_version: str | None = None
    host: str | None = None
    devices: tuple[str, ...] = ()
    """Names of the GPUs that did the work; empty when the trace does not tell."""
    base_time_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    steps: tuple[StepSpan, ...] = ()
    groups: tuple[LocalGroup, ...] = ()
    comm_ns: int = 0
    """Union of all communication kernels of the trace."""
    overlap_ns: int = 0
    """The part of it that compute covers."""
    capture: msgspec.Raw = msgspec.Raw(b"null")
    """What our own capture wrote into the trace."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's recording window: a head and eight frames, whose columns are declared above."""

    head: SummaryHead
    calls: pl.DataFrame
    kernels: pl.DataFrame
    links: pl.DataFrame
    segments: pl.DataFrame
    compute: pl.DataFrame
    budget: pl.DataFrame
    shapes: pl.DataFrame
    matmuls: pl.DataFrame

    @property
    def rank(self) -> int | None:
        """The global rank, where it is known."""
        return self.head.rank

    def __reduce__(self) -> tuple[object, ...]:
        # between processes and machines as in files: equal groups of thousands of ranks are written as meshes
        return (RankSummary.from_bytes, (self.to_bytes(),))

    def to_bytes(self) -> bytes:
        """The summary as one file's content."""
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("head.json", encode_head(self.head))
            for name in FRAMES:
                buffer = io.BytesIO()
                getattr(self, name).write_ipc_stream(buffer, compression="zstd")
                archive.writestr(f"{name}.arrow", buffer.getvalue())
        return whole.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the summary to one file, whole or not at all; several may write the same file at once.

        Raises:
            InputError: the file can't be written.
        """
        target = Path(path)
        draft = target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            draft.write_bytes(self.to_bytes())
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise InputError(f"can't write `{target}`: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | Path) -> PackedSummary:
        """Read a summary that `save` wrote.

        Raises:
            InputError: the file is no summary, is damaged, or of another version.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"can't read `{path}`: {error.strerror or error}") from error
        return cls.from_bytes(data, path)

    @classmethod
    def from_bytes(cls, data: bytes, path: str | Path = "summary") -> PackedSummary:
        """Read what `to_bytes` gave.

        Args:
            data: the content of a summary file.
            path: what to call it in an error.

        Raises:
            InputError: the file is no summary, is damaged, or of another version.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                head = _decode_head(archive.read("head.json"), path)
                streams = {name: archive.read(f"{name}.arrow") for name in FRAMES}
                frames = {name: pl.read_ipc_stream(stream) for name, stream in streams.items()}
        except (zipfile.BadZipFile, KeyError, EOFError, pl.exceptions.PolarsError) as error:
            hint = "make it again with `tracelens summarize`"
            raise InputError(f"`{path}` is no summary, or a damaged one: {error}", hint=hint) from error
        _check_schemas(frames, path)
        return PackedSummary(head, streams)


class PackedSummary(RankSummary):
    """A summary as it was read: its frames stay packed and are unpacked at each use.

    Thousands of ranks fit into memory this way, a fifth of what their frames would take.
    """

    __slots__ = ("_streams",)
    _streams: Mapping[str, bytes]

    def __init__(self, head: SummaryHead, streams: Mapping[str, bytes]) -> None:
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "_streams", streams)

    def with_head(self, head: SummaryHead) -> PackedSummary:
        """The same frames under another head."""
        return PackedSummary(head, self._streams)

    def __getattr__(self, name: str) -> pl.DataFrame:
        # reached for frames only: their slots stay empty here
        if name not in FRAMES:
            raise AttributeError(name)
        return pl.read_ipc_stream(self._streams[name])


class _StoredGroup(LocalGroup, frozen=True, kw_only=True):
    """A group as it is written: a mesh instead of its ranks where it is one, which stays small for any job."""

    mesh: Mesh | None = None
    first: int | None = None


class _StoredHead(SummaryHead, frozen=True, kw_only=True):
    groups: tuple[_StoredGroup, ...] = ()


def encode_head(head: SummaryHead) -> bytes:
    """A head as JSON."""
    fields = msgspec.structs.asdict(head) | {"groups": tuple(map(_store, head.groups))}
    return msgspec.json.encode(_StoredHead(**fields))


def _store(group: LocalGroup) -> _StoredGroup:
    fields = msgspec.structs.asdict(group)
    ranks = group.ranks
    mesh = None if ranks is None or len(ranks) < 2 else _mesh_of(ranks)
    if ranks is None or mesh is None:
        return _StoredGroup(**fields)
    return _StoredGroup(**fields | {"ranks": None}, mesh=mesh, first=ranks[0])


@lru_cache(maxsize=4096)
def _mesh_of(ranks: tuple[int, ...]) -> Mesh | None:
    """The mesh that gives the ranks back in their order; None when none does."""
    mesh = mesh_of(ranks)
    return mesh if mesh is not None and ranks_of(mesh, ranks[0]) == list(ranks) else None


@lru_cache(maxsize=65536)
def _ranks_of(mesh: Mesh, first: int) -> tuple[int, ...]:
    """The ranks of a mesh; one tuple for all summaries that hold it."""
    return tuple(ranks_of(mesh, first))


def _restore(group: _StoredGroup) -> LocalGroup:
    ranks = group.ranks if group.mesh is None or group.first is None else _ranks_of(group.mesh, group.first)
    names = LocalGroup.__struct_fields__
    return LocalGroup(**{name: getattr(group, name) for name in names} | {"ranks": ranks})


def _decode_head(data: bytes, path: str | Path) -> SummaryHead:
    hint = "make it again with `tracelens summarize`"
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version is not None and version != SCHEMA_VERSION:
            raise InputError(f"`{path}` is a summary of version {version}, this is version {SCHEMA_VERSION}", hint=hint)
        stored = msgspec.json.decode(data, type=_StoredHead)
    except msgspec.DecodeError as error:
        raise InputError(f"`{path}` is no summary, or a damaged one: {error}", hint=hint) from error
    fields = {name: getattr(stored, name) for name in SummaryHead.__struct_fields__}
    return SummaryHead(**fields | {"groups": tuple(map(_restore, stored.groups))})


class _Versioned(msgspec.Struct):
    schema_version: int | None = None


def _check_schemas(frames: Mapping[str, pl.DataFrame], path: str | Path) -> None:
    for name, frame in frames.items():
        if dict(frame.schema) != {key: value for key, value in FRAMES[name].items()}:
            raise InputError(
                f"`{path}` holds a table `{name}` with other columns than this version's",
                hint="make it again with `tracelens summarize`",
            )
