"""Which summaries belong together: one job and one run of it, never an average over several.

A folder may hold a recording twice, several runs of one script, or ranks of different jobs. The largest one is
measured, the newest among equals; the rest is left out and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tracelens.engine import Summaries
from tracelens.errors import Problem, Severity
from tracelens.measurement.same_job import Run, format_date, start_of
from tracelens.results import Skipped
from tracelens.summary import RankSummary, SummaryHead
from tracelens.topology import format_ranks

_NAMED = 5
"""So many runs left out, and reasons for doubt, are told; the files of all runs are listed."""


class Job(msgspec.Struct, frozen=True):
    """The summaries of one run of one job, by rank and time, and what else was among the files."""

    ranks: tuple[RankSummary, ...]
    left_out: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(slots=True)
class _Candidate:
    """Summaries that belong together, and what is known of their run."""

    run: Run = field(default_factory=Run)
    summaries: list[RankSummary] = field(default_factory=list)

    def add(self, summary: RankSummary) -> None:
        self.run.add(summary.head)
        self.summaries.append(summary)

    @property
    def size(self) -> int:
        """How many ranks."""
        return len({summary.rank for summary in self.summaries})

    @property
    def start_ns(self) -> int | None:
        """When its last recording began; None where that is unknown."""
        return max((start for head in self.run.heads if (start := start_of(head)) is not None), default=None)


def gather_job(summaries: Summaries | Sequence[RankSummary]) -> Summaries:
    """The summaries of the one job and run to look at; the others are among the skipped, with the reason.

    Every command and every function that takes summaries begins here, so that all of them see the same ones. What was
    gathered once stays as it is.
    """
    given = summaries if isinstance(summaries, Summaries) else Summaries(ranks=tuple(summaries))
    if given.is_one_job:
        return given
    job = choose_job(given.ranks)
    places = {id(summary): place for place, summary in enumerate(given.ranks)}
    return Summaries(
        ranks=job.ranks,
        sources=tuple(given.sources[places[id(summary)]] for summary in job.ranks) if given.sources else (),
        skipped=given.skipped + job.left_out,
        problems=given.problems + job.problems,
        is_one_job=True,
    )


def choose_job(summaries: Iterable[RankSummary]) -> Job:
    """Pick the one job and run to measure, and say what is left out."""
    ordered = sorted(summaries, key=_order)
    single, repeated = _without_repetitions(ordered)
    runs = _split(single)
    if not runs:
        return Job((), tuple(repeated))
    chosen = max(runs, key=lambda run: (run.size, run.start_ns or 0))
    left = [_leave_out(summary.head, chosen) for run in runs if run is not chosen for summary in run.summaries]
    problems = [_warn("rank-twice", f"{file.why} ({file.path} is left out)") for file in repeated]
    if left:
        problems.append(_warn("several-jobs", _describe(runs, chosen)))
    if chosen.run.doubts:
        problems.append(_warn("job-doubtful", _doubt(tuple(chosen.run.doubts))))
    return Job(tuple(chosen.summaries), (*repeated, *left), tuple(problems))


def _order(summary: RankSummary) -> tuple[int, int, str]:
    rank, head = summary.rank, summary.head
    start = start_of(head)
    return (2**31 if rank is None else rank, (head.start_ns or 0) if start is None else start, head.path)


def _without_repetitions(summaries: Sequence[RankSummary]) -> tuple[list[RankSummary], list[Skipped]]:
    """Leave out files that hold the very recording of another one."""
    first: dict[tuple[object, ...], str] = {}
    kept, repeated = [], []
    for summary in summaries:
        head = summary.head
        key = (head.rank, head.world_size, head.events, head.start_ns, head.end_ns, head.steps, head.comm_ns)
        if key in first:
            rank = "a rank" if head.rank is None else f"rank {head.rank}"
            repeated.append(Skipped(path=head.path, why=f"{rank} twice: the same recording as {first[key]}"))
        else:
            first[key] = head.path
            kept.append(summary)
    return kept, repeated


def _split(summaries: Sequence[RankSummary]) -> list[_Candidate]:
    """Each summary to the run that it fits best of those that it does not contradict, else to one of its own."""
    told = [summary for summary in summaries if summary.head.world_size is not None]
    silent = [summary for summary in summaries if summary.head.world_size is None]
    runs = _gather(told)
    if len(runs) == 1 and silent:
        # a trace that does not tell its job can only belong to one where there is just one
        rest = []
        for summary in silent:
            if runs[0].run.conflict_with(_as_in(summary.head, runs[0])) is None:
                runs[0].add(summary)
            else:
                rest.append(summary)
        silent = rest
    return [*runs, *_gather(silent)]


def _as_in(head: SummaryHead, run: _Candidate) -> SummaryHead:
    """A head that does not tell its job, as one of this job would be."""
    mine = run.run.heads[0]
    return msgspec.structs.replace(head, world_size=mine.world_size, backend=head.backend or mine.backend)


def _gather(summaries: Sequence[RankSummary]) -> list[_Candidate]:
    runs: list[_Candidate] = []
    for summary in summaries:
        head = summary.head
        open_to = [place for place, one in enumerate(runs) if one.run.conflict_with(head) is None]
        if not open_to:
            runs.append(_Candidate())
            open_to = [len(runs) - 1]
        best = open_to[0] if len(open_to) == 1 else max(open_to, key=partial(_fit, runs, head))
        runs[best].add(summary)
    return runs


def _fit(runs: Sequence[_Candidate], head: SummaryHead, place: int) -> tuple[bool, float, bool, int, int]:
    """How well a recording fits a run; among equals the last one of its rank, else the first."""
    run = runs[place].run
    return (*run.likeness_to(head), place if head.rank in run.by_rank else -place)


def _leave_out(head: SummaryHead, chosen: _Candidate) -> Skipped:
    why = chosen.run.conflict_with(head)
    return Skipped(path=head.path, why=why or "another run: it has more in common with other files left out")


def _describe(runs: Sequence[_Candidate], chosen: _Candidate) -> str:
    files = sum(len(run.summaries) for run in runs)
    others = sorted((run for run in runs if run is not chosen), key=lambda run: -run.size)
    differ = any((chosen.run.conflict_with(run.run.heads[0]) or "").startswith("another job") for run in others)
    what = "different jobs" if differ else "different runs of the job"
    most = [run for run in runs if run.size == chosen.size]
    which = "the one with the most ranks"
    if len(most) > 1:
        starts = [run.start_ns for run in most]
        told = None not in starts and starts.count(chosen.start_ns) == 1
        which = f"{'the newest' if told else 'the first'} of {len(most)} with as many ranks"
    named = "; ".join(map(_name, others[:_NAMED]))
    more = f"; and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return (
        f"{what} are among the files ({len(runs)}); {which} is shown ({len(chosen.summaries)} of {files} files): "
        f"{_name(chosen)}. Left out: {named}{more}"
    )


def _name(run: _Candidate) -> str:
    """Ranks, size, GPU and date of a run."""
    ranks = sorted(run.run.by_rank)
    world = run.run.heads[0].world_size
    parts = [f"ranks {format_ranks(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "unknown ranks"]
    parts[0] += "" if world is None else f" of {world}"
    parts += sorted(run.run.devices)
    parts += [] if run.start_ns is None else [format_date(run.start_ns)]
    return ", ".join(parts)


def _doubt(told: Sequence[str]) -> str:
    reasons = "; ".join(told[:_NAMED]) + (f"; and {len(told) - _NAMED} more" if len(told) > _NAMED else "")
    return f"the files may be of different jobs or runs ({reasons}); nothing else tells them apart, so they stay one"


def _warn(code: str, message: str) -> Problem:
    return Problem(code=code, severity=Severity.warning, message=message)
