"""Whether a recording can belong to the job and run of some others, by what can't differ within one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

from tracelens.results import RanksSource
from tracelens.summary import LocalGroup, SummaryHead
from tracelens.topology import format_ranks
from tracelens.units import plural

MINUTE_NS = 60 * 10**9
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS

_EPOCH_NS = range(10**18, 4 * 10**18)
"""Times of 2001 to 2096 count from 1970; others from an unknown moment."""
_LISTED = 8
"""Members of a group that are listed one by one."""
_SLOWEST = 100
"""A step that was not recorded may take so many times as long as one that was: evaluation, checkpoints."""


def absolute_ns(time_ns: int | None, head: SummaryHead) -> int | None:
    """A time of a trace in ns since 1970; None where the trace does not tell from when it counts."""
    if time_ns is None:
        return None
    moments = (time_ns, time_ns + (head.base_time_ns or 0))
    return next((moment for moment in moments if moment in _EPOCH_NS), None)


def start_of(head: SummaryHead) -> int | None:
    """When a recording began, in ns since 1970; None where that is unknown."""
    return absolute_ns(head.start_ns, head)


def format_date(moment_ns: int) -> str:
    """A moment as `2025-12-13 10:40 UTC`."""
    return f"{datetime.fromtimestamp(moment_ns // 10**9, UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Window:
    """Steps that ranks recorded, and from when to when."""

    numbers: tuple[int, int] | None
    """First and last step; None where they are not numbered."""
    start_ns: int
    end_ns: int
    step_ns: int
    """How long the longest step took."""

    def with_(self, other: Window) -> Window:
        """The same steps on one more rank."""
        start, end = min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns)
        return Window(self.numbers, start, end, max(self.step_ns, other.step_ns))


def window_of(head: SummaryHead) -> Window | None:
    """The steps of a recording in absolute time; None where that is unknown."""
    start, end = start_of(head), absolute_ns(head.end_ns, head)
    if start is None or end is None:
        return None
    longest = max((step.cpu_end_ns - step.cpu_start_ns for step in head.steps), default=end - start)
    return Window(numbers_of(head), start, end, longest)


def numbers_of(head: SummaryHead) -> tuple[int, int] | None:
    """The first and the last step of a recording; None where they are not numbered."""
    numbers = [step.number for step in head.steps if step.number is not None]
    return (numbers[0], numbers[-1]) if numbers else None


def find_gap(one: Window, other: Window) -> tuple[bool, bool]:
    """Whether two recordings lie so far apart that they are hardly of one run, and so far that they are not.

    The same step comes on all ranks at once, up to how far their clocks differ. Other steps come later by as many as
    lie between; an hour in the wrong order is another run.
    """
    first, last = sorted((one, other), key=lambda window: window.start_ns)
    gap = last.start_ns - first.end_ns
    likely, sure = MINUTE_NS, HOUR_NS
    if first.numbers is None or last.numbers is None:
        sure = DAY_NS
    elif last.numbers[0] > first.numbers[1]:
        between = (last.numbers[0] - first.numbers[1]) * _SLOWEST * max(first.step_ns, last.step_ns)
        likely, sure = likely + between, DAY_NS + between
    return gap > likely, gap > sure


@lru_cache(maxsize=65536)
def _members(ranks: tuple[int, ...]) -> frozenset[int]:
    return frozenset(ranks)


GroupKey = tuple[str | None, tuple[int, ...] | None]
"""Description and ranks of a group; None: all ranks of the job."""


def _listed_groups(head: SummaryHead) -> Iterator[tuple[LocalGroup, tuple[int, ...] | None]]:
    """The groups that the head lists, with their ranks (None: all of the job); records tell only of groups in use."""
    for group in head.groups:
        if group.ranks is not None and group.ranks_source is RanksSource.metadata:
            yield group, None if len(group.ranks) == head.world_size else group.ranks


def _shared_groups(head: SummaryHead, one: int, other: int) -> set[GroupKey]:
    """The listed groups that hold both ranks."""
    return {
        (group.description, ranks)
        for group, ranks in _listed_groups(head)
        if ranks is None or {one, other} <= _members(ranks)
    }


def find_group_conflict(head: SummaryHead, other: SummaryHead) -> str | None:
    """A group that holds the ranks of both recordings and that one of them does not list; None where they agree.

    A group is made on all its members. It may be made between two recordings: then only the later one lists it, and of
    what the earlier one lists nothing is missing there.
    """
    if head.rank is None or other.rank is None:
        return None
    ours, theirs = (_shared_groups(one, head.rank, other.rank) for one in (head, other))
    if not ours or not theirs:
        return None
    first, second = numbers_of(head), numbers_of(other)
    began_together = first is not None and second is not None and first[0] == second[0]
    only_ours, only_theirs = ours - theirs, theirs - ours
    conflicts = bool(only_ours or only_theirs) if began_together else bool(only_ours and only_theirs)
    if not conflicts:
        return None
    description, ranks = min(only_ours or only_theirs, key=lambda key: (len(key[1] or ()), key[0] or ""))
    told = f"the process group {description or 'without a description'} of {_format_members(ranks)}"
    return f"it lists {told}" if only_ours else f"it does not list {told}"


def _format_members(ranks: tuple[int, ...] | None) -> str:
    if ranks is None:
        return "all ranks"
    return f"ranks {format_ranks(ranks)}" if len(ranks) <= _LISTED else f"{len(ranks)} ranks"


Kinds = frozenset[tuple[str | None, int | None]]
"""Descriptions and sizes of the groups of a rank."""


@dataclass(slots=True)
class Run:
    """What is known of a run of a job, from the recordings that belong to it."""

    heads: list[SummaryHead] = field(default_factory=list)
    by_rank: dict[int, list[SummaryHead]] = field(default_factory=dict)
    windows: dict[tuple[int, int] | None, Window] = field(default_factory=dict)
    numbers: set[tuple[int, int] | None] = field(default_factory=set)
    kinds: set[Kinds] = field(default_factory=set)
    claims: dict[int, set[int]] = field(default_factory=dict)
    """For each rank, read or not, one member of each smaller group that holds it."""
    claimed: set[tuple[int, ...]] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    nccl: str | None = None
    doubts: dict[str, None] = field(default_factory=dict)
    """Why some of it may yet be of another run."""

    def add(self, head: SummaryHead) -> None:
        """Take in one more recording."""
        for doubt in self.doubts_of(head):
            self.doubts.setdefault(doubt)
        self.heads.append(head)
        if head.rank is not None:
            self.by_rank.setdefault(head.rank, []).append(head)
        window = window_of(head)
        if window is not None:
            known = self.windows.get(window.numbers)
            self.windows[window.numbers] = window if known is None else known.with_(window)
        self.numbers.add(numbers_of(head))
        self.kinds.add(_kinds(head))
        self.devices |= set(head.devices)
        self.nccl = self.nccl or head.nccl_version
        self._note_claims(head)

    def _note_claims(self, head: SummaryHead) -> None:
        for _, ranks in _listed_groups(head):
            if head.rank is None or ranks is None or ranks in self.claimed:
                continue
            self.claimed.add(ranks)
            for rank in ranks:
                self.claims.setdefault(rank, set()).add(head.rank)

    def conflict_with(self, head: SummaryHead) -> str | None:
        """Why a recording can't be of this run; None where nothing speaks against it."""
        mine = self.heads[0]
        if mine.world_size != head.world_size:
            return f"another job: {_world(head)}, not {_world(mine)}"
        if (mine.backend == "gloo") != (head.backend == "gloo"):
            return f"another job: it runs on {head.backend or 'an unknown backend'}, not {mine.backend or 'an unknown'}"
        if self.nccl and head.nccl_version and self.nccl != head.nccl_version:
            return f"another job: NCCL {head.nccl_version}, not {self.nccl}"
        if self._has_other_devices(head) and not self._is_at_once(head):
            return f"another job: {' and '.join(head.devices)}, not {' and '.join(sorted(self.devices))}"
        return self._time_conflict(head) or self._group_conflict(head)

    def likeness_to(self, head: SummaryHead) -> tuple[bool, float, bool, int]:
        """How well a recording fits: at the same time, groups of the same kinds, the same steps, how near in time."""
        kinds, start = _kinds(head), start_of(head)
        common = max(len(kinds & other) / max(1, len(kinds | other)) for other in self.kinds)
        away = min((abs(window.start_ns - start) for window in self.windows.values() if start is not None), default=0)
        return self._is_at_once(head), common, numbers_of(head) in self.numbers, -away

    def doubts_of(self, head: SummaryHead) -> Iterator[str]:
        """What makes it doubtful that a recording is of this run, though nothing rules it out."""
        if self._has_other_devices(head):
            yield f"ranks ran on {' and '.join(sorted({*self.devices, *head.devices}))}"
        window = window_of(head)
        if window is not None and any(find_gap(window, other)[0] for other in self.windows.values()):
            dates = sorted({format_date(w.start_ns) for w in (window, *self.windows.values())})
            yield f"recorded at {dates[0]} and {dates[-1]}"
        ours = {description for description, _ in _kinds(head)}
        for kinds in self.kinds:
            theirs = {description for description, _ in kinds}
            if ours - theirs and theirs - ours:
                yield f"only some ranks list {_format_names(theirs - ours)}, only others {_format_names(ours - theirs)}"

    def _has_other_devices(self, head: SummaryHead) -> bool:
        return bool(head.devices and self.devices) and not self.devices & set(head.devices)

    def _is_at_once(self, head: SummaryHead) -> bool:
        """Whether a recording overlaps with others of the run: of one job with GPUs of two models."""
        window = window_of(head)
        return window is not None and any(
            window.start_ns < other.end_ns and other.start_ns < window.end_ns for other in self.windows.values()
        )

    def _time_conflict(self, head: SummaryHead) -> str | None:
        before = self.by_rank.get(head.rank, []) if head.rank is not None else []
        if before and not _goes_on(head, before):
            return "another run of the job: its steps are counted anew"
        window = window_of(head)
        if window is not None and any(find_gap(window, other)[1] for other in self.windows.values()):
            known = min(other.start_ns for other in self.windows.values())
            return f"another run: recorded at {format_date(window.start_ns)}, not {format_date(known)}"
        return None

    def _group_conflict(self, head: SummaryHead) -> str | None:
        """Held against one member of each group that holds the rank: that tells, and is quick for many ranks."""
        if head.rank is None or not self.by_rank:
            return None
        members = {head.rank, next(iter(self.by_rank)), *self.claims.get(head.rank, ())}
        for _, ranks in _listed_groups(head):
            members.update(islice((rank for rank in ranks or () if rank in self.by_rank), 1))
        for rank in sorted(members & self.by_rank.keys()):
            told = find_group_conflict(head, self.by_rank[rank][-1])
            if told is not None:
                return f"another job: {told}"
        return None


def _goes_on(head: SummaryHead, before: Sequence[SummaryHead]) -> bool:
    """Windows of one run go on counting."""
    numbers = numbers_of(head)
    last = max((known[1] for other in before if (known := numbers_of(other)) is not None), default=-1)
    return numbers is not None and numbers[0] > last


def _format_names(names: Iterable[str | None]) -> str:
    return ", ".join(sorted(name or "nothing" for name in names))


def _kinds(head: SummaryHead) -> Kinds:
    return frozenset((group.description, group.size) for group in head.groups)


def _world(head: SummaryHead) -> str:
    return "unknown size" if head.world_size is None else plural(head.world_size, "rank")
