"""Messages between pipeline stages: the same in every framework, whatever the schedule.

Source: Megatron-Core `pipeline_parallel/schedules.py` (`get_tensor_shapes`) and torch
`distributed/pipelining/stage.py`: one activation forward and one gradient backward per micro-batch and boundary
that lies between two ranks, so the ends of a plain pipeline send half as much as its middle.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import ACTIVATION
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "Megatron-Core schedules.py get_tensor_shapes; torch distributed/pipelining/stage.py"


def list_terms(layout: Layout, stage: StagePlan, *, overlap: Overlap, backward: bool = True) -> Iterator[Term]:
    """Sends and receives of one pipeline rank."""
    if layout.pp == 1:
        return
    elements = ACTIVATION / y.t if layout.has_sequence_parallel else ACTIVATION
    messages = [
        ("pp.forward.send", Primitive.send, y.chunks_sent_forward, stage.sends_forward, Phase.forward),
        ("pp.forward.recv", Primitive.recv, y.chunks_received_forward, stage.receives_forward, Phase.forward),
        ("pp.backward.send", Primitive.send, y.chunks_sent_backward, stage.sends_backward, Phase.backward),
        (
            "pp.backward.recv",
            Primitive.recv,
            y.chunks_received_backward,
            stage.receives_backward,
            Phase.backward,
        ),
    ]
    for name, primitive, per_microbatch, count, phase in messages:
        if count and (backward or phase is Phase.forward):
            yield Term(
                name=name,
                group=GroupKind.pp,
                primitive=primitive,
                dtype=layout.param_dtype,
                elements=elements,
                calls=per_microbatch * y.m,
                phase=phase,
                source=SOURCE,
                overlap=overlap,
            )
