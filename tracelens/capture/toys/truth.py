"""The truth beside a trace: what each rank of an exercise sends in a step, as TOML."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tracelens.capture.toys.exercise import WORLD_SIZE, Exercise, Sent
from tracelens.errors import InputError, UsageError


def render_truth(exercise: type[Exercise], sent_by_rank: Sequence[Sequence[Sent]]) -> str:
    """`truth.toml` of one exercise; ranks that send the same stand together.

    Args:
        exercise: whose layout it is.
        sent_by_rank: what each rank sends in one step.
    """
    ranks: dict[Sent, list[int]] = defaultdict(list)
    for rank, rows in enumerate(sent_by_rank):
        for row in rows:
            ranks[row].append(rank)
    lines = [
        f"exercise = {json.dumps(exercise.name)}",
        f"title = {json.dumps(exercise.title)}",
        f"world_size = {WORLD_SIZE}",
        "",
        "[layout]",
        *(f"{key} = {json.dumps(value)}" for key, value in exercise.layout.items()),
    ]
    for row, senders in ranks.items():
        lines += [
            "",
            "[[traffic]]",
            f"ranks = {senders}",
            f"group = {list(row.group)}",
            f'primitive = "{row.primitive}"',
            f'dtype = "{row.dtype}"',
            f"calls_per_step = {row.calls}",
            f"payload_bytes_per_step = {row.payload_bytes}",
            f"wire_bytes_per_step = {row.wire_bytes}",
        ]
    return "\n".join(lines) + "\n"


@contextmanager
def staged_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder to fill, and move its content into `folder` when the block succeeds.

    Whatever happens, nothing half-done stands in `folder`, and no other file is left.

    Raises:
        UsageError: `folder` has content and `force` is not given, or is a file.
        InputError: the place can't be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"`{folder}` is a file", hint="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"will not write into `{folder}`, which is not empty", hint="--force overwrites")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tracelens-toys-") as scratch:
            yield Path(scratch)
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write `{folder}`: {error.strerror}") from error
