"""`tracelens predict`: the ledger of a model and a layout, no trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tracelens import __version__
from tracelens.cli.layout_options import build_layout, layout_options, model_option
from tracelens.cli.output import Output, resolve_output
from tracelens.errors import UsageError
from tracelens.ledger.explain import explain
from tracelens.ledger.model_source import load_model
from tracelens.ledger.predict import predict
from tracelens.ledger.render import render_explanation, render_markdown, render_text
from tracelens.ledger.results import Ledger

F = TypeVar("F", bound=Callable[..., Any])


class LedgerFormat(StrEnum):
    """What a ledger is written as."""

    text = "text"
    json = "json"
    markdown = "markdown"


_SUFFIXES = {".txt": LedgerFormat.text, ".json": LedgerFormat.json, ".md": LedgerFormat.markdown}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ledger goes, and as what."""

    output: Output
    format: LedgerFormat


def target_options(function: F) -> F:
    """Add --format, -o/--output and --force, as the argument `target`."""

    @click.option(
        "--format",
        "format_name",
        type=click.Choice([member.value for member in LedgerFormat]),
        show_default="by the suffix of the output file, else text",
        help="What to write.",
    )
    @click.option("-o", "--output", "output_path", metavar="FILE", help="Write here instead of to stdout.")
    @click.option("--force", is_flag=True, help="Overwrite an existing file.")
    @functools.wraps(function)
    def wrapper(*, format_name: str | None, output_path: str | None, force: bool, **rest: Any) -> Any:
        return function(target=_resolve_target(output_path, format_name, force=force), **rest)

    return wrapper  # type: ignore[return-value]


def _resolve_target(path: str | None, format_name: str | None, *, force: bool) -> Target:
    to_file = path is not None and path != "-"
    by_suffix = _SUFFIXES.get(Path(path or "").suffix.lower()) if to_file else LedgerFormat.text
    chosen = by_suffix if format_name is None else LedgerFormat(format_name)
    if chosen is None:
        raise UsageError(
            f"cannot tell the format of `{path}` by its suffix", hint=f"use {' or '.join(_SUFFIXES)}, or give --format"
        )
    # to the writer, markdown is text
    writer_format = "json" if chosen is LedgerFormat.json else "text"
    return Target(output=resolve_output(path, writer_format, force=force), format=chosen)


@click.command("predict")
@model_option(required=True)
@layout_options
@click.option("--stage", type=click.IntRange(min=0), help="Only this pipeline rank; all unless given.")
@click.option("--cluster", help="Estimate time on a cluster: a100, h100, h200, b200, or a TOML file.")
@click.option("--explain", "term", metavar="TERM", help="A term's formula with the numbers put in.")
@target_options
def command(
    *,
    model_source: str,
    layout_fields: dict[str, Any],
    stage: int | None,
    cluster: str | None,
    term: str | None,
    target: Target,
) -> None:
    """Say what a model under a layout sends, holds and waits for, with no trace.

    Exit codes: 0 fine, 2 a model or layout that can't be.
    """
    model, layout = load_model(model_source), build_layout(layout_fields)
    ledger = predict(model, layout, stage=stage, cluster=cluster)
    if term is None:
        target.output.write(_render(ledger, target.format, stage))
        return
    explanations = explain(model, layout, term, stage=stage)
    if target.format is LedgerFormat.json:
        target.output.write(_json(msgspec.json.encode({"terms": explanations})))
    else:
        target.output.write(render_explanation(explanations, layout))


def _render(ledger: Ledger, chosen: LedgerFormat, stage: int | None) -> str:
    if chosen is LedgerFormat.json:
        return _json(msgspec.json.encode(_document(ledger)))
    if chosen is LedgerFormat.markdown:
        return render_markdown(ledger, stage=stage)
    return render_text(ledger, stage=stage)


def _document(ledger: Ledger) -> dict[str, Any]:
    fields = {name: getattr(ledger, name) for name in ledger.__struct_fields__}
    return {"schema_version": fields.pop("schema_version"), "tracelens_version": __version__, **fields}


def _json(encoded: bytes) -> str:
    return msgspec.json.format(encoded, indent=2).decode() + "\n"
