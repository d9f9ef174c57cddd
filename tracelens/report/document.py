"""The document: everything that one command has to say, and the only thing that a renderer sees."""

from __future__ import annotations

import msgspec

from tracelens import __version__
from tracelens.compared import Comparison, RunComparison
from tracelens.inferred import Inference
from tracelens.many_ranks import Clock, Dilation, LinkUse, Pipeline, Routing, Skew
from tracelens.results import Finding, Group, GroupTime, Limit, Measurement, Overlap, Run, SizeRow, StepTime, Traffic

SCHEMA_VERSION = 1


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of `analyze`, `diff` and `check`. Keys may be added, none renamed."""

    schema_version: int = SCHEMA_VERSION
    tracelens_version: str = __version__
    run: Run
    groups: tuple[Group, ...]
    traffic: tuple[Traffic, ...]
    group_time: tuple[GroupTime, ...] = ()
    """Time per class of ranks and group, all primitives together."""
    sizes: tuple[SizeRow, ...] = ()
    """Traffic by the size of its calls."""
    time: tuple[StepTime, ...]
    overlap: tuple[Overlap, ...]
    skew: tuple[Skew, ...] | None = None
    """Transfer and waiting; null until several ranks are read, as the five that follow."""
    clocks: tuple[Clock, ...] | None = None
    pipeline: Pipeline | None = None
    routing: Routing | None = None
    dilation: Dilation | None = None
    links: tuple[LinkUse, ...] | None = None
    inference: Inference | None = None
    """The layout behind the traffic."""
    comparison: Comparison | RunComparison | None = None
    """Predicted against measured, or run against run; null unless asked for."""
    findings: tuple[Finding, ...] = ()
    limits: tuple[Limit, ...] = ()
    """Every limit that `check` held the run against, kept or not; empty elsewhere."""
    passed: bool | None = None
    """The verdict of `diff` and `check`: whether they exit with 0; null where nothing was judged."""


def make_document(
    measurement: Measurement,
    *,
    inference: Inference | None = None,
    comparison: Comparison | RunComparison | None = None,
    findings: tuple[Finding, ...] = (),
    limits: tuple[Limit, ...] = (),
    passed: bool | None = None,
) -> Document:
    """Put what was measured, and what was found in it, into one document."""
    return Document(
        run=measurement.run,
        groups=measurement.groups,
        traffic=measurement.traffic,
        group_time=measurement.group_time,
        sizes=measurement.sizes,
        time=measurement.time,
        overlap=measurement.overlap,
        skew=measurement.skew,
        clocks=measurement.clocks,
        pipeline=measurement.pipeline,
        routing=measurement.routing,
        dilation=measurement.dilation,
        links=measurement.links,
        inference=inference,
        comparison=comparison,
        findings=findings,
        limits=limits,
        passed=passed,
    )
