"""Megatron-Core, mixture of experts: dispatchers and router statistics.

Source: Megatron-LM core 0.18 `transformer/moe/token_dispatcher.py`, `router.py`, `moe_utils.py`, `fused_a2a.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Bindings, Expr, Number, to_expr
from tracelens.ledger.layout import GroupKind, Layout, Recompute
from tracelens.ledger.options import Dispatcher
from tracelens.ledger.rules import experts
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Payload, Term
from tracelens.results import Phase

SOURCE = "Megatron-Core transformer/moe/token_dispatcher.py"
STATISTICS_SOURCE = "Megatron-Core transformer/moe/moe_utils.py"
FORWARD, BACKWARD = Phase.forward, Phase.backward
AG, RS, A2A = Primitive.all_gather, Primitive.reduce_scatter, Primitive.all_to_all


def list_terms(layout: Layout, stage: StagePlan, sizes: Bindings) -> Iterator[Term]:
    """Expert traffic of one pipeline rank."""
    if not stage.moe_layers:
        return
    if layout.ep * layout.expert_tp > 1:
        yield from _dispatch(layout, sizes)
    options = layout.megatron()
    if options.aux_loss and layout.tp * layout.cp > 1:
        counts = Payload(y.E, "fp32")
        yield _term("tokens_per_expert", GroupKind.tp_cp, Primitive.all_reduce, counts, y.m, FORWARD)
    if options.expert_bias_update:
        every = Payload(y.L_e * y.E, "fp32")
        once = Number(1) / y.L_e
        yield _term("bias", GroupKind.tp_dp_cp, Primitive.all_reduce, every, once, Phase.optimizer)


def _dispatch(layout: Layout, sizes: Bindings) -> Iterator[Term]:
    dispatcher = layout.megatron().dispatcher
    if dispatcher is Dispatcher.deepep:
        yield from experts.list_deepep_terms(layout, {key: int(value) for key, value in sizes.items()})
    elif dispatcher is Dispatcher.allgather:
        yield from _all_gather(layout)
    else:
        yield from _all_to_all(layout)


def _term(
    name: str,
    group: GroupKind,
    primitive: Primitive,
    payload: Payload,
    per_layer: Expr | int,
    phase: Phase,
) -> Term:
    return Term(
        name=f"ep.{name}.{primitive}",
        group=group,
        primitive=primitive,
        dtype=payload.dtype,
        elements=payload.elements,
        calls=y.L_e * to_expr(per_layer),
        phase=phase,
        source=SOURCE if group is not GroupKind.tp_dp_cp else STATISTICS_SOURCE,
    )


def _passes(layout: Layout) -> list[tuple[str, Phase]]:
    again = [("recompute", BACKWARD)] if layout.recompute is Recompute.full else []
    return [("forward", FORWARD), *again, ("backward", BACKWARD)]


def _all_to_all(layout: Layout) -> Iterator[Term]:
    """Tokens there and back, router probabilities there, counts first; both ways again in backward."""
    routed = experts.routed_elements(layout)
    tokens = Payload(routed, layout.param_dtype)
    probabilities = Payload(routed / y.h, layout.megatron().router_dtype)
    counts = Payload(y.e * y.etp * y.E, "int64")
    dropless = layout.capacity_factor is None
    for name, phase in _passes(layout):
        if name != "backward" and dropless:
            yield _term(f"counts.{name}", GroupKind.etp_ep, AG, counts, y.m, phase)
        for term in _routed(layout, name, phase, tokens, probabilities):
            yield replace(term, elements_vary=dropless)


def _routed(layout: Layout, name: str, phase: Phase, tokens: Payload, probabilities: Payload) -> Iterator[Term]:
    """What travels as the router decides."""
    if layout.ep > 1:
        yield _term(f"tokens.{name}", GroupKind.ep, A2A, tokens, 2 * y.m, phase)
        yield _term(f"probabilities.{name}", GroupKind.ep, A2A, probabilities, y.m, phase)
    if layout.expert_tp > 1:
        yield from _inside_experts(name, phase, tokens, probabilities)


def _inside_experts(name: str, phase: Phase, tokens: Payload, probabilities: Payload) -> Iterator[Term]:
    """Ranks that cut the same experts share their tokens before, and sum what they made of them after."""
    group = GroupKind.etp
    whole = tokens._replace(elements=y.etp * tokens.elements)
    yield _term(f"etp_tokens.{name}", group, AG, whole, y.m, phase)
    yield _term(f"etp_tokens.{name}", group, RS, whole, y.m, phase)
    small = probabilities._replace(elements=y.etp * probabilities.elements)
    yield _term(f"etp_probabilities.{name}", group, RS if name == "backward" else AG, small, y.m, phase)


def _all_gather(layout: Layout) -> Iterator[Term]:
    """Every rank of the experts' group sees every token; what it made of them is reduced and scattered."""
    group, router = GroupKind.etp_ep, layout.megatron().router_dtype
    tokens = y.e * y.etp * experts.dispatched_tokens(layout)
    hidden = Payload(tokens * y.h, layout.param_dtype)
    # partial outputs are summed in the type of the probabilities
    outputs = Payload(tokens * y.h, router)
    probabilities = Payload(tokens * y.E, router)
    for name, phase in _passes(layout):
        if name == "backward":
            yield _term("hidden.backward", group, AG, outputs, y.m, phase)
            yield _term("hidden.backward", group, RS, hidden, y.m, phase)
            yield _term("probabilities.backward", group, RS, probabilities, y.m, phase)
            continue
        yield _term(f"routing_map.{name}", group, AG, Payload(tokens * y.E, "bool"), y.m, phase)
        yield _term(f"probabilities.{name}", group, AG, probabilities, y.m, phase)
        yield _term(f"hidden.{name}", group, AG, hidden, y.m, phase)
        yield _term(f"hidden.{name}", group, RS, outputs, y.m, phase)
