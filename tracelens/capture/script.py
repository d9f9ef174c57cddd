"""Dry runs of a whole script, unmodified, one rank after the other, each in a process of its own."""

from __future__ import annotations

import runpy
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tracelens.capture.dryrun import check_ranks, rehearse
from tracelens.capture.fakeworld import FakeWorld
from tracelens.capture.processes import ProcessError, workers
from tracelens.capture.stages import Shapes, UnknownShapes, run_with_stages
from tracelens.capture.steps import StepTracker
from tracelens.capture.traffic import DryRun, RankCalls
from tracelens.errors import InputError


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A script, its arguments, and the steps of it that count."""

    path: str
    arguments: tuple[str, ...] = ()
    steps: tuple[int, int] = (2, 2)
    """First and last step that count, from 0; the script ends after the last."""


class _Assignment(msgspec.Struct, frozen=True, kw_only=True):
    script: Script
    world: FakeWorld


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    calls: RankCalls | None = None
    error: str | None = None
    exit_code: object = None
    """What the script gave to `sys.exit`, where that is no success."""
    stage_shapes: Shapes = {}
    waits_for: int | None = None
    """Rank whose pipeline stage has to run first."""


def dry_run_script(script: Script, world: FakeWorld, ranks: Sequence[int]) -> DryRun:
    """Run a script as some ranks of a job that does not exist, and note what it would send.

    Args:
        script: what to run.
        world: the job that does not exist.
        ranks: the ranks of it to be, one after the other.

    Raises:
        InputError: there is no such script.
        ProcessError: the script failed; the message has its own error.
        UsageError: a rank outside the world.
    """
    check_ranks(ranks, world.world_size)
    if not Path(script.path).is_file():
        raise InputError(f"no script `{script.path}`")

    def run_as(rank: int) -> RankCalls:
        return _run_as_rank(script, msgspec.structs.replace(world, rank=rank))

    calls = tuple(run_with_stages(run_as, rank) for rank in ranks)
    return DryRun(world_size=world.world_size, ranks=calls)


def _run_as_rank(script: Script, world: FakeWorld) -> RankCalls:
    assignment = _Assignment(script=script, world=world)
    with (
        tempfile.TemporaryDirectory(prefix="tracelens-dry-run-") as scratch,
        workers(_run_script, [assignment], Path(scratch)) as (worker,),
    ):
        answer = worker.receive(what=f"`{script.path}` as rank {world.rank}")
        last_words = worker.last_words()
    world.stage_shapes.update(answer.stage_shapes)
    if answer.waits_for is not None:
        raise UnknownShapes(answer.waits_for)
    if answer.exit_code is not None:
        raise ProcessError(_tell_exit(script, world, answer.exit_code, last_words))
    if answer.calls is None:
        raise ProcessError(f"`{script.path}` failed as rank {world.rank}\n{answer.error}", hint=_hint(answer.error))
    return answer.calls


def _tell_exit(script: Script, world: FakeWorld, code: object, last_words: str) -> str:
    """A script that gave up by itself; what is no number, Python would print and make 1."""
    number, said = (code, last_words) if isinstance(code, int) else (1, f"{last_words}\n{code}")
    return f"`{script.path}` ended with exit code {number} as rank {world.rank}\n{said.strip()}".strip()


def _hint(error: str) -> str | None:
    if "DataDependent" in error or "DynamicOutputShape" in error:
        return "what is sent depends on values here: --real-tensors computes with them, for small models"
    return None


def _run_script(assignment: _Assignment, results: Any) -> None:
    """In a process of its own: be the script."""
    script = assignment.script
    sys.argv = [script.path, *script.arguments]
    sys.path[0] = str(Path(script.path).resolve().parent)
    tracker = StepTracker(last_step=script.steps[1])
    try:
        calls = rehearse(
            lambda _: _run_to_its_end(script.path),
            assignment.world,
            tracker,
            steps=script.steps,
        )
        results.send(_Answer(calls=calls, stage_shapes=assignment.world.stage_shapes))
    except UnknownShapes as unknown:
        results.send(_Answer(waits_for=unknown.rank))
    except SystemExit as end:
        sys.stdout.flush()
        results.send(_Answer(exit_code=end.code))
    except Exception as error:
        # whatever the script raises is its user's to see
        results.send(_Answer(error=_own_traceback(error, script.path)))


def _run_to_its_end(path: str) -> None:
    """Be the script; `sys.exit` without a code, or with 0, is one of the ways to end."""
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _own_traceback(error: BaseException, path: str) -> str:
    """The traceback from the script's first line on, without the frames that lead to it."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != path:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__)).strip()
