"""From a model and a layout to its ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tracelens.errors import UsageError
from tracelens.ledger.bindings import bind_layout, bind_stage
from tracelens.ledger.cluster import Cluster, load_cluster
from tracelens.ledger.expressions import Bindings
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.memory import activation_bytes_per_layer, fit_memory, stage_memory, textbook_state
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import count_parameters
from tracelens.ledger.results import Activations, Ledger, LedgerRow, StageMemory, TimeEstimate
from tracelens.ledger.rules import ddp, deepspeed, fsdp1, megatron, serving, textbook, torchtitan
from tracelens.ledger.schedules import bubble_fraction
from tracelens.ledger.stages import StagePlan, plan_stages
from tracelens.ledger.terms import Term, bind_term
from tracelens.ledger.timing import estimate_time
from tracelens.ledger.validation import check_layout

Rules = Callable[[ModelSpec, Layout, StagePlan], Iterable[Term]]

RULES: dict[Framework, Rules] = {
    Framework.megatron: megatron.list_terms,
    Framework.torchtitan: torchtitan.list_terms,
    Framework.pytorch: torchtitan.list_terms,
    Framework.ddp: ddp.list_terms,
    Framework.fsdp1: fsdp1.list_terms,
    Framework.deepspeed: deepspeed.list_terms,
    Framework.serving: serving.list_terms,
}


def predict(
    model: ModelSpec, layout: Layout, *, stage: int | None = None, cluster: Cluster | str | None = None
) -> Ledger:
    """What every rank of a job sends, holds and waits for in one step.

    Args:
        model: sizes of the model.
        layout: how it is cut, and by which framework.
        stage: one pipeline rank; None is all of them.
        cluster: estimate time on it: a preset's name, the path of a TOML file, or a `Cluster`; None estimates none.

    Raises:
        ModelError: for a layout that the model or the framework can't have.
        UsageError: for a stage that there isn't.
    """
    check_layout(model, layout)
    if layout.framework is Framework.textbook:
        if cluster is not None:
            raise UsageError("the textbook has no time", hint="choose the framework that runs the job")
        return _predict_textbook(model, layout)
    plans = plan_stages(model, layout)
    if stage is not None and not 0 <= stage < len(plans):
        raise UsageError(f"no stage {stage}", hint=f"stages are 0 to {len(plans) - 1}")
    shared = bind_layout(model, layout)
    chosen = [plan for plan in plans if stage is None or plan.rank == stage]
    rows = _rows_of_stages(model, layout, chosen, shared)
    memory = tuple(stage_memory(model, layout, plan, shared | bind_stage(plan)) for plan in chosen)
    fullest = max(memory, key=lambda held: held.total_bytes)
    machines = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return Ledger(
        model=model,
        layout=layout,
        parameters=shared["N"],
        rows=tuple(rows),
        state=fullest.state,
        activations=fullest.activations,
        stages=memory,
        memory=fit_memory(fullest, layout, None if machines is None else machines.memory_bytes),
        bubble_fraction=bubble_fraction(layout.kind_of_schedule, layout.pp, layout.num_microbatches, layout.vp),
        busiest_stage=_busiest(rows),
        time=None if machines is None else _time(model, layout, machines, chosen, rows),
    )


def _time(
    model: ModelSpec,
    layout: Layout,
    machines: Cluster,
    plans: list[StagePlan],
    rows: list[LedgerRow],
) -> TimeEstimate:
    stages = [(plan, tuple(row for row in rows if row.stage == plan.rank)) for plan in plans]
    return estimate_time(model, layout, machines, stages)


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> list[Term]:
    """The terms of the layout's framework for one pipeline rank, unbound."""
    return list(RULES[layout.framework](model, layout, stage))


def _rows_of_stages(
    model: ModelSpec, layout: Layout, plans: list[StagePlan], shared: dict[str, int]
) -> list[LedgerRow]:
    """The rows of every pipeline rank; ranks that do the same are bound once."""
    bound: dict[tuple[object, ...], list[LedgerRow]] = {}
    rows: list[LedgerRow] = []
    for plan in plans:
        known = bound.get(plan.traffic_key)
        if known is None:
            terms = list_terms(model, layout, plan)
            known = _bind_all(terms, layout, shared | bind_stage(plan), plan.rank)
            bound[plan.traffic_key] = known
            rows += known
        else:
            rows += [msgspec.structs.replace(row, stage=plan.rank) for row in known]
    return rows


def _bind_all(terms: Iterable[Term], layout: Layout, bindings: Bindings, stage: int | None) -> list[LedgerRow]:
    bound = (bind_term(term, layout, bindings, stage) for term in terms)
    return [row for row in bound if row is not None]


def _busiest(rows: Iterable[LedgerRow]) -> int | None:
    sent: dict[int, float] = {}
    for row in rows:
        if row.stage is not None:
            sent[row.stage] = sent.get(row.stage, 0) + row.wire_bytes
    return max(sent, key=lambda stage: sent[stage]) if sent else None


def _predict_textbook(model: ModelSpec, layout: Layout) -> Ledger:
    bindings = bind_layout(model, layout)
    state = textbook_state(model, layout)
    per_layer = int(activation_bytes_per_layer(model, layout))
    activations = Activations(
        per_layer_bytes=per_layer,
        layers=model.layers / layout.pp,
        microbatches_in_flight=1,
        ends_bytes=0,
        total_bytes=int(per_layer * model.layers / layout.pp),
        formula="34·s·b·h/(t·c) per layer, one micro-batch",
    )
    held = StageMemory(
        stage=0,
        layers=model.layers // layout.pp,
        parameters=count_parameters(model).total // (layout.tp * layout.pp),
        state=state,
        activations=activations,
        total_bytes=state.total_bytes + activations.total_bytes,
    )
    return Ledger(
        model=model,
        layout=layout,
        parameters=bindings["N"],
        rows=tuple(_bind_all(textbook.list_terms(model, layout), layout, bindings, None)),
        state=state,
        activations=activations,
        stages=(held,),
        memory=fit_memory(held, layout, None),
        bubble_fraction=bubble_fraction(layout.kind_of_schedule, layout.pp, layout.num_microbatches, layout.vp),
        busiest_stage=None,
    )
