"""What the checks look at, and the exposed time that they may speak for: no millisecond is claimed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from tracelens.checks.codes import ABOUT, Code
from tracelens.compared import Comparison
from tracelens.inferred import Inference
from tracelens.many_ranks import Skew
from tracelens.results import Finding, Group, Measurement, SizeRow, Traffic
from tracelens.topology import Axis
from tracelens.units import noun, plural

DATA_AXES = frozenset({Axis.dp, Axis.dp_shard, Axis.dp_replicate, Axis.expert_dp})


class Facts:
    """A measurement with its inference and comparison, where there are any, and the claims made so far."""

    def __init__(
        self, measurement: Measurement, inference: Inference | None = None, comparison: Comparison | None = None
    ) -> None:
        self.measurement = measurement
        self.inference = inference
        self.comparison = comparison
        self.claims = Claims(measurement)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """The groups by their id."""
        return {group.id: group for group in self.measurement.groups}

    @cached_property
    def span_ns(self) -> float | None:
        """Mean length of a step; None without time."""
        return _mean([row.span_ns for row in self.measurement.time])

    @cached_property
    def exposed_ns(self) -> float | None:
        """Mean exposed communication of a step."""
        return _mean([row.exposed_comm_ns for row in self.measurement.time])

    def axis_of(self, row: Traffic | SizeRow) -> Axis | None:
        """What a row is for: of a group in several roles that of its calls, else that of its group."""
        group = self.groups.get(row.group or "")
        return row.axis or (None if group is None else group.axis)

    def rows(self, wanted: Callable[[Traffic], bool]) -> list[Traffic]:
        """The rows of traffic that fit."""
        return [row for row in self.measurement.traffic if wanted(row)]

    def mean(self, rows: Iterable[Traffic], read: Callable[[Traffic], float | None]) -> float:
        """Sum of a value over rows, as a mean over all ranks read: a lower bound where calls do not tell it."""
        everyone = self.claims.ranks
        return sum((read(row) or 0) * weight(row) for row in rows) / everyone if everyone else 0.0

    def share(self, row: Traffic | SizeRow) -> float:
        """The part of all ranks read that a row speaks for."""
        return self.claims.share(row.rank_class)

    def coverage(self, rows: Sequence[Traffic]) -> str:
        """What the numbers of some rows rest on."""
        calls = sum(row.calls_per_step.mean * row.steps_used for row in rows)
        timed = sum(row.calls_with_time or 0 for row in rows)
        missing = any(row.lacks_time for row in rows)
        issued = sum(row.calls or 0 for row in rows)
        run = self.measurement.run
        world = "?" if run.world_size is None else str(run.world_size)
        steps = max((row.steps_used for row in rows), default=0)
        known = f"{timed:,} of {plural(issued, 'call')}" if missing else plural(timed, "call")
        told = f"{known} with time, " if calls else ""
        return f"{told}{plural(steps, 'step')}, {len(run.ranks) or 1} of {world} {noun(run.world_size or 2, 'rank')}"

    def doubt(self, rows: Sequence[Traffic], *said: Literal["bytes", "time"]) -> str:
        """What makes numbers of some rows lower bounds, to end a message with; nothing where all is known.

        A call among one rank sends nothing, and needs no kernel.
        """
        told = [row for row in rows if row.calls and (group := self.groups.get(row.group or "")) and group.size != 1]
        calls = sum(row.calls or 0 for row in told)
        known = {
            "bytes": sum(row.calls_with_bytes or 0 for row in told),
            "time": sum(row.calls_with_time or 0 for row in told),
        }
        parts = [
            f"the {word} of {calls - count:,} of {plural(calls, 'call')}"
            for word in said
            if (count := known[word]) < calls
        ]
        return f" (lower bounds: {' and '.join(parts)} not known)" if parts else ""

    @cached_property
    def untimed_calls(self) -> int:
        """Calls without a kernel in the steps used: communication takes at least what is told, idling at most."""
        return sum(row.untimed_calls for row in self.measurement.time)


def weight(row: Traffic) -> int:
    """Ranks that a row speaks for."""
    return max(1, len(row.ranks))


def waited_for(skew: Skew) -> float:
    """What a rank waits on average for the one that is named last, ns."""
    return 0 if skew.last is None else (skew.wait_ns or 0) if skew.last.waited_ns is None else skew.last.waited_ns


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class Claims:
    """The exposed time of each class of ranks, handed out once.

    A row may be claimed once. Rows of a group that run at the same time have no more exposed time together than the
    group, and all groups no more than the step; so what is handed out never sums to more than the exposed time.
    """

    def __init__(self, measurement: Measurement) -> None:
        classes: dict[int, tuple[int, ...]] = {}
        for row in measurement.traffic:
            classes.setdefault(row.rank_class, row.ranks)
        self._weights = {number: max(1, len(ranks)) for number, ranks in classes.items()}
        # ranks without traffic have a share in the mean too
        self.ranks = max(sum(self._weights.values()), len({row.rank for row in measurement.time}))
        self._left = _exposed_by_class(measurement, classes)
        self._meshes = {group.id: group.mesh for group in measurement.groups}
        self._groups: dict[object, float] = {}
        for time in measurement.group_time:
            key = self._key(time.rank_class, time.group)
            self._groups[key] = self._groups.get(key, 0.0) + (time.exposed_ns_per_step or 0)
        self._taken: set[int] = set()

    def share(self, number: int) -> float:
        """The part of all ranks that are of a class."""
        return self._weights.get(number, 1) / self.ranks

    def _key(self, number: int, group: str | None) -> object:
        """Ranks of a class are in groups of their own, which a row tells of as one: those of equal mesh."""
        mesh = None if group is None else self._meshes.get(group)
        return (number, mesh if mesh is not None else group)

    def take(self, rows: Iterable[Traffic], at_most: float | None = None) -> int | None:
        """Claim the exposed time of rows; returns what is left to claim, mean over the ranks, None for nothing.

        Args:
            rows: of the measurement itself.
            at_most: ns, mean over the ranks, where the finding speaks for a part only.
        """
        total = 0.0
        room = float("inf") if at_most is None else max(0.0, at_most)
        for row in rows:
            if id(row) in self._taken or row.rank_class not in self._left:
                continue
            self._taken.add(id(row))
            share = self.share(row.rank_class)
            key = self._key(row.rank_class, row.group)
            available = min(
                float(row.exposed_ns_per_step or 0),
                self._left[row.rank_class],
                self._groups.get(key, float("inf")),
                (room - total) / share,
            )
            got = max(0.0, available)
            self._left[row.rank_class] -= got
            if key in self._groups:
                self._groups[key] -= got
            total += got * share
        # rounded down, so that roundings never add up to more than there is
        return int(total) or None


def _exposed_by_class(measurement: Measurement, classes: Mapping[int, tuple[int, ...]]) -> dict[int, float]:
    """Mean exposed communication of a step of each class; of all steps where the trace doesn't tell its rank."""
    by_rank: dict[int | None, list[int]] = {}
    for row in measurement.time:
        by_rank.setdefault(row.rank, []).append(row.exposed_comm_ns)
    exposed = {}
    for number, ranks in classes.items():
        own = [value for rank in (ranks or by_rank) for value in by_rank.get(rank, ())]
        exposed[number] = sum(own) / len(own) if own else 0.0
    return exposed


def finding(code: Code, message: str, **fields: object) -> Finding:
    """A finding with the word and the severity of its code."""
    told = {"severity": ABOUT[code].severity, **fields}
    return Finding(code=code.value, name=code.word, message=message, **told)  # type: ignore[arg-type]
