"""Which summaries belong together: one job and one run of it, never an average over several.

A folder may hold a recording twice, several runs of one script, or ranks of different jobs. The largest one is
measured, the newest among equals; the rest is left out and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracelens.errors import Problem, Severity
from tracelens.results import Skipped
from tracelens.summary import RankSummary, SummaryHead
from tracelens.units import plural


class Job(msgspec.Struct, frozen=True):
    """The summaries of one run of one job, by rank and time, and what else was among the files."""

    ranks: tuple[RankSummary, ...]
    left_out: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()


def choose_job(summaries: Iterable[RankSummary]) -> Job:
    """Pick the one job and run to measure, and say what is left out."""
    ordered = sorted(summaries, key=_order)
    single, repeated = _without_repetitions(ordered)
    runs = [run for job in _split_jobs(single) for run in _split_runs(job)]
    if not runs:
        return Job((), tuple(repeated))
    chosen = max(runs, key=lambda run: (_ranks(run), _start(run)))
    others = [s for run in runs if run is not chosen for s in run]
    left = [Skipped(path=s.head.path, why=_why(s.head, chosen[0].head)) for s in others]
    problems = [_warn("rank-twice", f"{file.why} ({file.path} is left out)") for file in repeated]
    if others:
        problems.append(_warn("several-jobs", _describe(runs, chosen)))
    return Job(tuple(chosen), (*repeated, *left), tuple(problems))


def _order(summary: RankSummary) -> tuple[int, int, str]:
    rank = summary.rank
    return (2**31 if rank is None else rank, summary.head.start_ns or 0, summary.head.path)


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


def _split_jobs(summaries: Sequence[RankSummary]) -> list[list[RankSummary]]:
    """Summaries by what can't differ within a job: the number of ranks and the ranks of the default group."""
    jobs: dict[tuple[object, ...], list[RankSummary]] = {}
    silent: list[RankSummary] = []
    for summary in summaries:
        if summary.head.world_size is None:
            silent.append(summary)
        else:
            jobs.setdefault((summary.head.world_size, _is_cpu_only(summary.head)), []).append(summary)
    if not jobs:
        return [silent] if silent else []
    # a trace that does not tell its job can only belong to one where there is just one
    if len(jobs) == 1:
        next(iter(jobs.values())).extend(silent)
        return list(jobs.values())
    return [*jobs.values(), *([silent] if silent else [])]


def _is_cpu_only(head: SummaryHead) -> bool:
    return head.backend == "gloo"


def _split_runs(job: Sequence[RankSummary]) -> list[list[RankSummary]]:
    """A rank whose steps begin again began another run; windows of one run go on counting."""
    runs: dict[int, list[RankSummary]] = {}
    last: dict[int, tuple[int, int]] = {}
    for summary in job:
        numbers = [step.number for step in summary.head.steps if step.number is not None]
        if summary.rank is None:
            runs.setdefault(0, []).append(summary)
            continue
        run, before = last.get(summary.rank, (0, -1))
        if summary.rank in last and (not numbers or numbers[0] <= before):
            run += 1
        last[summary.rank] = (run, numbers[-1] if numbers else before)
        runs.setdefault(run, []).append(summary)
    return list(runs.values())


def _why(other: SummaryHead, chosen: SummaryHead) -> str:
    if other.world_size != chosen.world_size:
        return f"another job: {_world(other)}, not {_world(chosen)}"
    return "another run of the job: its steps are counted anew"


def _world(head: SummaryHead) -> str:
    return "unknown size" if head.world_size is None else plural(head.world_size, "rank")


def _describe(runs: Sequence[Sequence[RankSummary]], chosen: Sequence[RankSummary]) -> str:
    shown = f"{len(chosen)} of {sum(map(len, runs))} files"
    differ = len({(run[0].head.world_size, run[0].head.backend) for run in runs}) > 1
    what = "different jobs" if differ else "different runs of the job"
    most = [run for run in runs if _ranks(run) == _ranks(chosen)]
    which = "the one with the most ranks"
    if len(most) > 1:
        told = sum(_start(run) == _start(chosen) for run in most) == 1
        which = f"{'the newest' if told else 'the first'} of {len(most)} with as many ranks"
    return f"{what} are among the files ({len(runs)}); {which} is shown ({shown})"


def _ranks(run: Sequence[RankSummary]) -> int:
    return len({summary.rank for summary in run})


def _start(run: Sequence[RankSummary]) -> int:
    return max(summary.head.start_ns or 0 for summary in run)


def _warn(code: str, message: str) -> Problem:
    return Problem(code=code, severity=Severity.warning, message=message)
