"""One of the four processes."""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection

import msgspec
import torch
import torch.distributed as dist

from tracelens.capture.profiling import profile
from tracelens.capture.toys.catalog import EXERCISES
from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent

TIMED_STEPS = 3


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do."""

    rank: int
    rendezvous: str
    """A file: no port is used that another program could hold."""
    names: tuple[str, ...]
    trace_folders: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one process says of one exercise."""

    name: str
    checks: tuple[Check, ...] = ()
    sent: tuple[Sent, ...] = ()
    step_s: float | None = None
    """Shortest of a few steps without a profiler; measured when traces are asked for."""
    profiled_step_s: float | None = None
    error: str | None = None
    failed_at: float | None = None
    """Of the machine's monotonic clock, in seconds: which rank failed first."""


def run_worker(assignment: Assignment, results: Connection) -> None:
    """Do every exercise and send a report of each."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(assignment.rendezvous, WORLD_SIZE),
        rank=assignment.rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )
    for name in assignment.names:
        try:
            results.send(_run(EXERCISES[name], assignment.trace_folders.get(name)))
        except Exception:
            # whatever it was, the parent has to hear of it: the other ranks wait for this one
            results.send(Report(name=name, error=traceback.format_exc().strip(), failed_at=time.monotonic()))
            return
    dist.destroy_process_group()


def _run(exercise_class: type[Exercise], folder: str | None) -> Report:
    exercise = exercise_class()
    checks = list(exercise.step())
    report = Report(name=exercise.name, checks=tuple(checks), sent=tuple(exercise.sent()))
    if folder is None:
        return report
    plain = min(_time_step(exercise) for _ in range(TIMED_STEPS))
    with profile(folder, layout=exercise.layout, mesh=exercise.mesh) as profiler:
        _time_step(exercise)
        profiler.step()
        profiled = []
        for _ in range(2):
            profiled.append(_time_step(exercise))
            profiler.step()
    return msgspec.structs.replace(report, step_s=plain, profiled_step_s=min(profiled))


def _time_step(exercise: Exercise) -> float:
    begin = time.perf_counter()
    for _ in exercise.step():
        pass
    return time.perf_counter() - begin
