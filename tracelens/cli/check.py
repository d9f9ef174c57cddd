"""`tracelens check`: limits for a CI job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tracelens.checks.baseline import Baseline, load_baseline, make_baseline, render_baseline
from tracelens.checks.facts import Facts
from tracelens.checks.find import find
from tracelens.checks.good_runs import GoodRun, describe_looseness, require_one_job
from tracelens.checks.limits import check, weigh
from tracelens.checks.policy import Policy, limits_nothing, load_policy, render_policy
from tracelens.checks.propose import COMMENTS, propose_policy
from tracelens.cli.diff import DEFAULT_TOLERANCE, compare_with_ledger
from tracelens.cli.layout_options import LAYOUT_NAMES, build_layout
from tracelens.cli.options import (
    Measuring,
    Reading,
    blind_option,
    explain_option,
    measuring_options,
    reading_options,
    report_options,
)
from tracelens.cli.output import Format, Output, refuse_overwrite, replacing
from tracelens.cli.rendering import write_document
from tracelens.cli.sides import Side, read_runs, read_side
from tracelens.compared import Comparison
from tracelens.errors import InputError, Severity, UsageError
from tracelens.fields import explain_fault, nearest
from tracelens.ledger.layout import Layout
from tracelens.report.document import make_document
from tracelens.report.table import as_text

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_POLICY = "tracelens.toml"


class Checking(msgspec.Struct, frozen=True, kw_only=True):
    """What to hold a run against, or where to write it."""

    policy: str | None
    baseline: str | None
    write_policy: str | None


def checking_options(function: F) -> F:
    """Add --policy, --baseline and --write-policy, as the argument `checking`."""

    @click.option(
        "--policy", metavar="FILE.toml", show_default=f"{DEFAULT_POLICY} where it is", help="The limits to keep."
    )
    @click.option("--baseline", metavar="FILE.json", help="The reference, instead of the policy's.")
    @click.option(
        "--write-policy",
        metavar="FILE.toml",
        help="Write limits that these good runs keep, and a baseline beside it. Each folder is a run.",
    )
    @functools.wraps(function)
    def wrapper(*, policy: str | None, baseline: str | None, write_policy: str | None, **rest: Any) -> Any:
        return function(checking=Checking(policy=policy, baseline=baseline, write_policy=write_policy), **rest)

    return wrapper  # type: ignore[return-value]


@click.command("check")
@reading_options
@checking_options
@measuring_options
@report_options
@explain_option
@blind_option
def command(
    *, reading: Reading, checking: Checking, measuring: Measuring, output: Output, explain: bool, blind: bool
) -> int:
    """Hold a run against the limits of a policy, for a CI job.

    Calls and bytes are deterministic and fail; time and overlap warn, unless the policy says otherwise.
    --write-policy proposes the limits from good runs.

    A limit that fails is `broken`; one that only warns is `exceeded`.

    Exit codes: 0 no limit that fails is broken, 1 one is, 2 nothing could be read or checked.
    """
    if checking.write_policy is not None:
        if checking.policy is not None:
            raise UsageError("--policy and --write-policy contradict one another", hint="leave one out")
        if output.path is not None or output.format is not Format.text:
            raise UsageError("--write-policy writes a policy and no report", hint="leave -o and --format out")
        _write_policy(checking, reading, measuring, blind=blind, force=output.force)
        return 0
    policy, folder = _policy(checking.policy)
    baseline = _baseline(checking.baseline, policy, folder)
    if baseline is None and limits_nothing(policy):
        raise InputError(
            f"`{checking.policy or DEFAULT_POLICY}` limits nothing: any run would pass",
            hint="propose limits from a good run: tracelens check PATH --write-policy FILE.toml, or give --baseline",
        )
    side = read_side(reading, measuring, blind=blind)
    comparison = _comparison(side, policy, folder)
    facts = Facts(side.measurement, side.inference, comparison)
    checked = check(facts, policy, baseline)
    taught = weigh(list(find(side.measurement, side.inference, comparison)), policy)
    told = {one.code for one in checked.findings}
    everything = (*checked.findings, *(one for one in taught if one.code not in told))
    passed = not any(one.severity is Severity.error for one in everything)
    document = make_document(
        side.measurement,
        inference=side.inference,
        comparison=comparison,
        findings=everything,
        limits=checked.limits,
        passed=passed,
    )
    write_document(document, output, every_row=measuring.per_rank, explain=explain, summaries=side.summaries)
    return 0 if passed else 1


def _policy(path: str | None) -> tuple[Policy, Path]:
    file = Path(path or DEFAULT_POLICY)
    if path is None and not file.is_file():
        raise UsageError(
            f"no --policy, and no {DEFAULT_POLICY} here",
            hint="write one: tracelens check PATH --write-policy FILE.toml",
        )
    return load_policy(file), file.parent


def _baseline(given: str | None, policy: Policy, folder: Path) -> Baseline | None:
    if given is not None:
        return load_baseline(given)
    return None if policy.reference.baseline is None else load_baseline(folder / policy.reference.baseline)


def _comparison(side: Side, policy: Policy, folder: Path) -> Comparison | None:
    reference = policy.reference
    beside = None if reference.model is None else folder / reference.model
    model = str(beside) if beside is not None and beside.is_file() else reference.model
    if reference.model is None and not reference.layout:
        return None
    for name in reference.layout:
        if name not in LAYOUT_NAMES:
            raise InputError(
                f"the policy: unknown key `reference.layout.{name}`", hint=nearest(name, tuple(sorted(LAYOUT_NAMES)))
            )
    try:
        build_layout(dict(reference.layout))
        return compare_with_ledger(side, model, dict(reference.layout), DEFAULT_TOLERANCE)
    except msgspec.ValidationError as error:
        fault = explain_fault(error, Layout, reference.layout)
        raise InputError(f"the policy: reference.layout: {fault.told}", hint=fault.hint) from error


def _write_policy(checking: Checking, reading: Reading, measuring: Measuring, *, blind: bool, force: bool) -> None:
    file = Path(checking.write_policy or DEFAULT_POLICY)
    beside = Path(checking.baseline) if checking.baseline is not None else file.with_suffix(".baseline.json")
    for path in (file, beside):
        refuse_overwrite(path, force=force)
    runs = [GoodRun(side.name, side.measurement, side.inference) for side in read_runs(reading, measuring, blind=blind)]
    require_one_job(runs)
    measurements = [run.measurement for run in runs]
    baseline = make_baseline(measurements, [run.name for run in runs])
    if not baseline.rows and not baseline.time:
        raise InputError(
            "the runs hold neither calls nor time: there is nothing to keep",
            hint="record with CPU activity on for the calls, with that of the GPU for the time",
        )
    policy = propose_policy(measurements, [run.inference for run in runs], baseline, _seen_from(beside, file.parent))
    warnings = list(describe_looseness(runs, policy, baseline))
    for path, text in ((beside, render_baseline(baseline)), (file, render_policy(policy, COMMENTS))):
        with replacing(path, force=force) as temporary:
            temporary.write_text(text, encoding="utf-8")
        click.echo(f"Wrote {path}", err=True)
    if not baseline.rows:
        click.echo("The runs hold no record of a call: only time has limits", err=True)
    for warning in warnings:
        click.echo(f"warning: {as_text(warning)}", err=True)


def _seen_from(path: Path, folder: Path) -> str:
    """The path as the policy names it: relative to its own folder where it lies in it."""
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return str(path.resolve())
