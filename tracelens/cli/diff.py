"""`tracelens diff`: predicted against measured, or one run against another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import click
import msgspec

from tracelens.cli.layout_options import build_layout, layout_options_beside_a_trace, model_option
from tracelens.cli.options import (
    Fraction,
    Measuring,
    Reading,
    blind_option,
    explain_option,
    measuring_options,
    reading_options,
    report_options,
)
from tracelens.cli.output import Output
from tracelens.cli.rendering import write_document
from tracelens.cli.sides import Side, read_side, with_paths
from tracelens.compared import Comparison, RunComparison
from tracelens.comparison.compare import Expectation, check_world, compare
from tracelens.comparison.contradictions import contradict_layout, contradict_model
from tracelens.comparison.examples import add_examples
from tracelens.comparison.expectation import (
    Captured,
    captured_model,
    complete_fields,
    is_single_precision,
    read_captured,
)
from tracelens.comparison.runs import compare_runs
from tracelens.comparison.solve import settle_layout, solve_model
from tracelens.errors import UsageError
from tracelens.ledger.layout import Layout
from tracelens.ledger.model_source import load_model
from tracelens.report.document import make_document

DEFAULT_TOLERANCE = 0.01
F = TypeVar("F", bound=Callable[..., Any])


class Comparing(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare with, and how closely."""

    against: tuple[str, ...]
    tolerance: float
    model: str | None
    layout: dict[str, Any]


def comparing_options(function: F) -> F:
    """Add --against, --tolerance, --model and the layout, as the argument `comparing`."""

    @click.option("--against", multiple=True, metavar="CANDIDATE", help="Compare with this run, not a prediction.")
    @click.option(
        "--tolerance",
        type=Fraction(),
        default=DEFAULT_TOLERANCE,
        show_default=True,
        help="Bytes may differ by this fraction, or by 1 KiB; calls may not.",
    )
    @model_option(required=False)
    @layout_options_beside_a_trace
    @functools.wraps(function)
    def wrapper(
        *,
        against: tuple[str, ...],
        tolerance: float,
        model_source: str | None,
        layout_fields: dict[str, Any],
        **rest: Any,
    ) -> Any:
        comparing = Comparing(against=against, tolerance=tolerance, model=model_source, layout=layout_fields)
        return function(comparing=comparing, **rest)

    return wrapper  # type: ignore[return-value]


@click.command("diff")
@reading_options
@comparing_options
@measuring_options
@report_options
@explain_option
@blind_option
def command(
    *,
    reading: Reading,
    comparing: Comparing,
    measuring: Measuring,
    output: Output,
    explain: bool,
    blind: bool,
) -> int:
    """Hold what was measured against a prediction, or against another run.

    Without --against, the ledger of a model and a layout is joined with the traffic, and every difference gets the
    reason that removes it, if one is known. What options leave out is read from the trace's metadata, or inferred.
    With --against, two runs are compared; either may be a result that was saved with -o FILE.json.

    Exit codes: 0 inside the tolerance, 1 outside, 2 nothing could be read or compared.
    """
    if comparing.against and (comparing.model or comparing.layout):
        raise UsageError("--against compares two runs; --model and a layout have no part in it", hint="leave one out")
    side = read_side(reading, measuring, blind=blind, lenient=bool(comparing.against))
    comparison: Comparison | RunComparison
    if comparing.against:
        other = read_side(with_paths(reading, comparing.against), measuring, blind=blind, lenient=True)
        comparison = compare_runs(
            side.measurement, other.measurement, side.name, other.name, tolerance=comparing.tolerance
        )
        side = other
    else:
        comparison = compare_with_ledger(side, comparing.model, comparing.layout, comparing.tolerance)
    document = make_document(
        side.measurement, inference=side.inference, comparison=comparison, passed=comparison.inside_tolerance
    )
    write_document(document, output, every_row=measuring.per_rank, explain=explain, summaries=side.summaries)
    return 0 if comparison.inside_tolerance else 1


def compare_with_ledger(
    side: Side, model_source: str | None, layout_fields: dict[str, Any], tolerance: float
) -> Comparison:
    """Settle model and layout from options, metadata and inference, and compare.

    Raises:
        UsageError: nothing tells the model.
    """
    expected = expect(side, model_source, layout_fields)
    comparison = compare(side.measurement, expected, tolerance=tolerance)
    return add_examples(comparison, side.summaries, side.measurement.groups)


def expect(side: Side, model_source: str | None, layout_fields: dict[str, Any]) -> Expectation:
    """The model and the layout, and where they come from."""
    captured = Captured() if side.blind else read_captured(side.summaries)
    config = None if side.inference is None else side.inference.config
    world = side.measurement.run.world_size
    given = dict(layout_fields)
    if side.measurement.run.gpus_per_node is not None:
        given.setdefault("gpus_per_node", side.measurement.run.gpus_per_node)
    fields, layout_from, assumed = complete_fields(given, captured, config, world)
    if layout_from == "inferred" and is_single_precision(side.measurement):
        fields.setdefault("param_dtype", "fp32")
    layout = build_layout(fields)
    check_world(side.measurement, layout)
    fixed = _fixed(layout_fields)
    model = load_model(model_source) if model_source is not None else captured_model(captured)
    contradictions = tuple(contradict_layout(layout_fields, layout, config, world))
    if model is None:
        if not side.summaries:
            raise UsageError(
                f"`{side.name}` is a saved result, which does not keep the shapes that tell the model",
                hint="give --model: a preset such as llama3-8b, a config.json, or a TOML file; or give the traces",
            )
        try:
            solved = solve_model(side.summaries, side.measurement, layout, side.inference, given=fixed)
        except UsageError as error:
            raise _blame_layout(error, contradictions, layout_fields) from error
        return replace(
            solved,
            layout_from=layout_from,
            assumptions=assumed + solved.assumptions,
            contradictions=contradictions,
        )
    expected = Expectation(
        model=model,
        layout=layout,
        sizes_from="metadata" if model_source is None else "given",
        layout_from=layout_from,
        assumptions=assumed,
        contradictions=(*contradict_model(model, config), *contradictions),
    )
    return settle_layout(side.measurement, expected, given=fixed)


def _blame_layout(error: UsageError, contradictions: Sequence[str], given: Mapping[str, Any]) -> UsageError:
    """Why no model could be solved: the layout that was given, where the traffic shows another one."""
    if contradictions:
        return UsageError("; ".join(contradictions), hint="leave it out, or give --model to compare all the same")
    if "framework" in given:
        told = f"{error.message}, with framework {given['framework']}"
        return UsageError(told, hint="leave --framework out, or give --model to compare all the same")
    return error


_FIELD_OF = {
    "no_reshard": "reshard_after_forward",
    "reshard": "reshard_after_forward",
    "microbatches": "num_microbatches",
    "no_sequence_parallel": "sequence_parallel",
    "no_flash_attention": "flash_attention",
    "option": "options",
}


def _fixed(layout_fields: dict[str, Any]) -> frozenset[str]:
    """The fields of a layout that options speak of."""
    named = {_FIELD_OF.get(name, name) for name in layout_fields}
    return frozenset(named & set(Layout.__struct_fields__))
