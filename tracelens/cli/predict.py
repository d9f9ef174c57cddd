"""`tracelens predict`: the ledger of a model and a layout, no trace."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from tracelens import __version__
from tracelens.cli.layout_options import build_layout, layout_options, model_option
from tracelens.cli.options import ledger_options
from tracelens.cli.output import Format, Output
from tracelens.errors import UsageError
from tracelens.ledger.explain import explain
from tracelens.ledger.model_source import load_model
from tracelens.ledger.predict import predict
from tracelens.ledger.render import render_explanation, render_markdown, render_text
from tracelens.ledger.results import Ledger


@click.command("predict")
@model_option(required=True)
@layout_options
@click.option("--stage", type=click.IntRange(min=0), help="Only this pipeline rank; all unless given.")
@click.option("--cluster", help="Estimate time on a cluster: a100, h100, h200, b200, or a TOML file.")
@click.option("--explain", "term", metavar="TERM", help="A term's formula with the numbers put in.")
@ledger_options
def command(
    *,
    model_source: str,
    layout_fields: dict[str, Any],
    stage: int | None,
    cluster: str | None,
    term: str | None,
    output: Output,
) -> None:
    """Say what a model under a layout sends, holds and waits for, with no trace.

    Exit codes: 0 fine, 2 a model or layout that can't be.
    """
    if term is not None and output.format is Format.html:
        raise UsageError("--explain writes no page", hint="leave --explain out: a page has the formula of every term")
    model, layout = load_model(model_source), build_layout(layout_fields)
    ledger = predict(model, layout, stage=stage, cluster=cluster)
    if term is None:
        output.write(_render(ledger, output.format, stage))
        return
    explanations = explain(model, layout, term, stage=stage)
    if output.format is Format.json:
        output.write(_json(msgspec.json.encode({"terms": explanations})))
    else:
        output.write(render_explanation(explanations, layout))


def _render(ledger: Ledger, chosen: Format, stage: int | None) -> str:
    if chosen is Format.json:
        return _json(msgspec.json.encode(_document(ledger)))
    if chosen is Format.markdown:
        return render_markdown(ledger, stage=stage)
    if chosen is Format.html:
        from tracelens.report.prediction import render_prediction

        return render_prediction(ledger, stage=stage)
    return render_text(ledger, stage=stage)


def _document(ledger: Ledger) -> dict[str, Any]:
    fields = {name: getattr(ledger, name) for name in ledger.__struct_fields__}
    return {"schema_version": fields.pop("schema_version"), "tracelens_version": __version__, **fields}


def _json(encoded: bytes) -> str:
    return msgspec.json.format(encoded, indent=2).decode() + "\n"
