"""`tracelens toys`: the article's exercises, run on four processes of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tracelens.cli.options import output_options
from tracelens.cli.output import Format, Output
from tracelens.units import plural

if TYPE_CHECKING:
    from tracelens.capture.toys.exercise import Check
    from tracelens.capture.toys.launch import Outcome

ARTICLE = ("zero", "tp", "cp", "pp", "ep")
FURTHER = (
    "zero1",
    "zero2",
    "zero3",
    "fsdp2",
    "fsdp2-no-reshard",
    "hsdp",
    "sp",
    "ulysses",
    "1f1b",
    "interleaved",
)

EXIT_DIFFERS = 1


@click.command("toys")
@click.argument("exercise", metavar="EXERCISE", type=click.Choice([*ARTICLE, "all", *FURTHER, "further"]))
@click.option(
    "--trace",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Profile the exercise: a trace a rank and truth.toml go to DIR, or to DIR/NAME for several.",
)
@output_options
def command(*, exercise: str, folder: Path | None, output: Output) -> int:
    """Run parallel algorithms on four gloo processes and compare them, cell by cell, with one process.

    EXERCISE is `all`, the article's five: zero, tp, cp, pp, ep; or `further`, its other systems, through PyTorch's
    own implementations where it has them: zero1, zero2, zero3, fsdp2, fsdp2-no-reshard, hsdp, sp, ulysses, 1f1b,
    interleaved; or one of them. Needs the extra `torch`, no GPU, no network.

    Exit codes: 0 every number is right, 1 a number differs, 2 an exercise could not run.
    """
    from tracelens.capture.toys.launch import run_exercises
    from tracelens.capture.toys.truth import staged_folder

    names = {"all": ARTICLE, "further": FURTHER}.get(exercise, (exercise,))
    with contextlib.ExitStack() as stack:
        staging = stack.enter_context(staged_folder(folder, force=output.force)) if folder else None
        outcomes = run_exercises(names, trace_folder=staging)
    output.write(_render_json(outcomes) if output.format is Format.json else _render_text(outcomes))
    if folder:
        click.echo(f"Wrote {folder}", err=True)
    return 0 if all(outcome.passed for outcome in outcomes) else EXIT_DIFFERS


def _render_json(outcomes: Sequence[Outcome]) -> str:
    text = msgspec.json.encode({"schema_version": 1, "exercises": outcomes})
    return msgspec.json.format(text).decode() + "\n"


def _render_text(outcomes: Sequence[Outcome]) -> str:
    lines = [line for outcome in outcomes for line in (*_outcome_lines(outcome), "")]
    checks = [check for outcome in outcomes for report in outcome.reports for check in report.checks]
    wrong = sum(not check.passed for check in checks)
    verdict = "all as they must be" if not wrong else f"{wrong} of them DIFFER"
    return "\n".join([*lines, f"{plural(len(checks), 'number')} on 4 ranks: {verdict}"]) + "\n"


def _outcome_lines(outcome: Outcome) -> list[str]:
    lines = [f"{outcome.name}: {outcome.title}"]
    by_name: dict[str, list[tuple[int, Check]]] = {}
    for rank, report in enumerate(outcome.reports):
        for check in report.checks:
            by_name.setdefault(check.name, []).append((rank, check))
    width = max(map(len, by_name), default=0)
    for name, ranked in by_name.items():
        values = [check.value for _, check in ranked]
        shown = values[0] if len(set(values)) == 1 else "  ".join(values)
        lines.append(f"  {name:<{width}}  {shown}")
        lines += [
            f"    DIFFERS on rank {rank}: {check.value}, must be {check.expected}"
            for rank, check in ranked
            if not check.passed
        ]
    return lines + _overhead_lines(outcome)


def _overhead_lines(outcome: Outcome) -> list[str]:
    """Seconds a step took without and with the capture, of the slowest rank."""
    plain = [report.step_s for report in outcome.reports if report.step_s is not None]
    profiled = [report.profiled_step_s for report in outcome.reports if report.profiled_step_s is not None]
    if not plain or not profiled:
        return []
    before, after = max(plain), max(profiled)
    return [f"  a step: {before * 1e3:.1f} ms, under the capture {after * 1e3:.1f} ms"]
