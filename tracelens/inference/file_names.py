"""Coordinates in file names (`tp0_pp1`, `TP-0-DP-1`, `tp0-of-2`): hints, held against the axes that were found.

Source: vLLM vllm/profiler/wrapper.py, verl utils/profiler/torch_profile.py, SGLang's profiling guide. They decide
nothing: a copied or renamed file keeps its traffic, not its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from tracelens.errors import Severity
from tracelens.inference.evidence import Case
from tracelens.inferred import InferredAxis
from tracelens.results import Finding
from tracelens.summary import RankSummary
from tracelens.topology import Axis

_COORDINATE = re.compile(r"(?<![a-z])(tp|pp|cp|dp|ep)[-_]?(\d+)(?:-of-(\d+))?(?![a-z0-9])", re.IGNORECASE)


def coordinates_in(name: str) -> dict[str, tuple[int, int | None]]:
    """Coordinates that a file's name tells, by axis, with the size of the axis where it is there.

    >>> coordinates_in("actor_rank5-of-8_tp1-of-2_pp0_pid12.json.gz")
    {'tp': (1, 2), 'pp': (0, None)}
    """
    return {axis.lower(): (int(at), int(size) if size else None) for axis, at, size in _COORDINATE.findall(name)}


def check_file_names(summaries: Iterable[RankSummary], axes: Sequence[InferredAxis], case: Case) -> list[Finding]:
    """Object where a name says what the traffic does not; one finding per axis."""
    meshes = {axis.name.value: (axis.size, axis.stride) for axis in axes}
    told: dict[str, str] = {}
    for summary in summaries:
        name = PurePath(summary.head.path).name
        for axis, (at, size) in coordinates_in(name).items():
            why = _contradiction(summary.rank, axis, (at, size), meshes, case)
            if why is not None:
                told.setdefault(axis, f"`{name}` says {axis} {at}{'' if size is None else f' of {size}'}, but {why}")
    for axis, message in told.items():
        case.object_to(axis, message)
    return [
        Finding(
            code="file-name-contradicted",
            severity=Severity.warning,
            message=message,
            hint="the traffic was believed; look whether files were copied or renamed",
            axis=Axis(axis),
        )
        for axis, message in told.items()
    ]


def _contradiction(
    rank: int | None,
    axis: str,
    said: tuple[int, int | None],
    meshes: Mapping[str, tuple[int, int | None]],
    case: Case,
) -> str | None:
    at, size = said
    found = case.value(axis)
    if found is None:
        return None
    if size is not None and size != found:
        return f"{axis} is {found} by the traffic"
    if at >= found:
        return f"{axis} has {found} place{'' if found == 1 else 's'} by the traffic"
    ranks, stride = meshes.get(axis, (found, None))
    if rank is not None and stride and ranks == found and rank // stride % found != at:
        return f"rank {rank} is place {rank // stride % found} of {axis} by the traffic"
    return None
