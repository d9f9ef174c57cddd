"""Record a trace that says what it recorded: `torch.profiler` with the settings that make traces useful."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast
from torch.distributed.device_mesh import DeviceMesh

from tracelens.capture.calls import Call, CallObserver
from tracelens.capture.layout import describe_mesh, layout_of_megatron, layout_of_mesh
from tracelens.collectives import Primitive
from tracelens.errors import InputError, UsageError

RECORD = "tracelens::record_param_comms"
"""Name of the CPU operator that carries a call which PyTorch itself did not record."""

METADATA_KEY = "tracelens"
METADATA_SCHEMA = 1


@contextlib.contextmanager
def profile(  # noqa: PLR0913 - the options of a public function, all named
    directory: str | Path,
    *,
    model: Mapping[str, Any] | None = None,
    layout: Mapping[str, Any] | None = None,
    mesh: DeviceMesh | None = None,
    warmup: int = 1,
    active: int = 2,
    record_calls: bool | None = None,
) -> Iterator[torch.profiler.profile]:
    """Profile a training loop on every rank and write `directory/rank<r>.json.gz` on each.

    Call `step()` on what the block gives after every training step, as with `torch.profiler.profile`.

    Args:
        directory: where the traces go; made if it is not there.
        model: what `tracelens diff` shall take for the model (`hidden`, `layers`, ...), as JSON values.
        layout: degrees such as `{"tp": 2, "dp_shard": 4}`; from `mesh`, or else from Megatron's parallel
            state, where left out.
        mesh: the DeviceMesh of the job.
        warmup: steps before the recording.
        active: steps recorded. Two or more: the first one recorded often starts with work of the one before.
        record_calls: also write what PyTorch leaves out on other backends than NCCL, the group and the sizes
            of every call; None does it where no NCCL takes part. Costs a Python call per operator.

    Raises:
        UsageError: the block ended before a step was recorded.
        InputError: the trace can't be written.
    """
    metadata = trace_metadata(model=model, layout=layout, mesh=mesh)
    recorder = CallRecorder() if _wants_records(record_calls) else contextlib.nullcontext()
    profiler = _SelfDescribingProfile(metadata, warmup=warmup, active=active, directory=Path(directory))
    with profiler:
        try:
            with recorder:
                yield profiler
        except BaseException:
            # half a recording is worse than none
            profiler.on_trace_ready = None
            raise
    if not profiler.written:
        raise UsageError(
            f"no step was recorded: {profiler.step_num} ran, and {warmup} of them warm up",
            hint="call step() after each training step, or run more steps",
        )


def trace_metadata(
    *, model: Mapping[str, Any] | None, layout: Mapping[str, Any] | None, mesh: DeviceMesh | None
) -> dict[str, Any]:
    """What our capture says about a job in its trace; the schema is in docs/capture.md."""
    if layout is None:
        layout = layout_of_mesh(mesh) if mesh is not None else layout_of_megatron()
    return {
        "schema": METADATA_SCHEMA,
        "model": None if model is None else dict(model),
        "layout": None if layout is None else dict(layout),
        "mesh": None if mesh is None else describe_mesh(mesh),
    }


def _wants_records(asked: bool | None) -> bool:  # noqa: FBT001
    if asked is not None:
        return asked
    return dist.is_initialized() and "nccl" not in str(dist.get_backend_config())


class _SelfDescribingProfile(torch.profiler.profile):
    """A profiler that writes its metadata when the recording starts, and its trace when it ends."""

    def __init__(self, metadata: dict[str, Any], *, warmup: int, active: int, directory: Path) -> None:
        super().__init__(
            schedule=torch.profiler.schedule(wait=0, warmup=warmup, active=active, repeat=1),
            on_trace_ready=lambda _: self._write(),
            record_shapes=True,
        )
        self.written: Path | None = None
        self._metadata = metadata
        self._directory = directory

    def start_trace(self) -> None:
        super().start_trace()
        self.add_metadata_json(METADATA_KEY, json.dumps(self._metadata))

    def _write(self) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        target = self._directory / f"rank{rank}.json.gz"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            # beside the target, so that the last step is a rename and no half file is ever seen
            with tempfile.TemporaryDirectory(dir=self._directory, prefix=".writing-") as scratch:
                plain, packed = Path(scratch) / f"rank{rank}.json", Path(scratch) / target.name
                self.export_chrome_trace(str(plain))
                with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as sink:
                    shutil.copyfileobj(source, sink)
                packed.replace(target)
        except OSError as error:
            raise InputError(
                f"cannot write `{target}`: {error.strerror}", hint="name a folder that can be written"
            ) from error
        self.written = target


class CallRecorder(CallObserver):
    """Writes a record into the running profile around each collective, in the words of Kineto's own."""

    def __init__(self) -> None:
        super().__init__()
        self._sequence: Counter[tuple[str, bool]] = Counter()

    def on_call(self, call: Call, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the collective inside its record."""
        is_p2p = call.primitive in (Primitive.send, Primitive.recv)
        # Kineto counts collectives and P2P of a group apart
        self._sequence[call.group.name, is_p2p] += 1
        record = record_arguments(call, sequence=self._sequence[call.group.name, is_p2p])
        with _RecordFunctionFast(RECORD, [], record):
            return func(*args, **kwargs)


def record_arguments(call: Call, *, sequence: int) -> dict[str, int | str]:
    """The arguments of Kineto's `record_param_comms` (torch/csrc/profiler/util.cpp), lists never shortened."""
    record: dict[str, int | str] = {
        "Collective name": call.name,
        "dtype": call.dtype or "Byte",
        "In msg nelems": call.in_elements,
        "Out msg nelems": call.out_elements,
        "In split size": str(list(call.in_splits)),
        "Out split size": str(list(call.out_splits)),
        "Group size": len(call.group.ranks),
        "Process Group Name": call.group.name,
        "Process Group Description": call.group.description,
        "Process Group Ranks": str(list(call.group.ranks)),
        "Rank": call.group.ranks.index(dist.get_rank() if call.peer is None else call.peer),
        "Seq": sequence,
    }
    if call.peer is not None:
        key = "Dst Rank" if call.primitive is Primitive.send else "Src Rank"
        record[key] = call.peer
    return record
