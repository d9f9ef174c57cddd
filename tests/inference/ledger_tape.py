"""The calls that a ledger predicts for a rank, put in an order and read as a trace would be.

A ledger says how often and how large, not when. The order is that of a decoder: what a term calls in a pass lies
evenly in it, the embedding at its beginning and the head at its end, and backward goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.inference_tape import Tape
from tracelens.collectives import DTYPE_BYTES, Primitive
from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import GroupKind, Layout, Schedule
from tracelens.ledger.results import Ledger, LedgerRow
from tracelens.results import Phase
from tracelens.summary import RankSummary

P = Primitive
_MESSAGES = (P.send, P.recv)


def play(ledger: Ledger) -> list[RankSummary]:
    """One rank of each stage."""
    layout = ledger.layout
    return [_play_stage(ledger, stage, stage * layout.world_size // layout.pp) for stage in range(layout.pp)]


def _play_stage(ledger: Ledger, stage: int, rank: int) -> RankSummary:
    layout = ledger.layout
    rows = [row for row in ledger.rows if row.stage in (stage, None)]
    tape = Tape(rank, layout.world_size, {row.group.value: group_ranks(layout, row.group, rank) for row in rows})
    passes = list(_passes(layout, stage))
    layers = ledger.model.layers // layout.pp
    for number, kind in enumerate(passes):
        shared = kind not in passes[number + 1 :]
        for row in _order_of_pass([row for row in rows if row.phase is kind], len(passes) // 2, layers, shared=shared):
            if row is None:
                tape.compute(100 if kind is Phase.forward else 200, backward=kind is Phase.backward)
            else:
                _issue(tape, row, phase=_phase(row, passes[: number + 1]))
    for row in rows:
        for _ in range(round(row.calls) if row.phase is Phase.optimizer else 0):
            _issue(tape, row, phase="optimizer")
    return tape.summary()


def _passes(layout: Layout, stage: int) -> Iterator[Phase]:
    """Forwards and backwards of a stage: 1F1B (Narayanan 2021), GPipe, or micro-batches one after the other."""
    m = layout.num_microbatches
    ahead = m if layout.schedule is Schedule.gpipe else min(layout.pp - stage, m)
    yield from [Phase.forward] * ahead
    for _ in range(m - ahead):
        yield from (Phase.backward, Phase.forward)
    yield from [Phase.backward] * ahead


def _order_of_pass(rows: Sequence[LedgerRow], passes: int, layers: int, *, shared: bool) -> list[LedgerRow | None]:
    """The calls of a pass, and None where a layer is computed; what passes share is called where `shared`."""
    placed: list[tuple[float, int, LedgerRow | None]] = [(layer / layers, -1, None) for layer in range(layers + 1)]
    for order, row in enumerate(rows):
        calls, rest = divmod(round(row.calls), passes)
        count = calls if not rest else round(row.calls) * shared
        placed += [(_place(row, i / count, layers), order, row) for i in range(count)]
    return [row for *_, row in sorted(placed, key=lambda item: item[:2])]


def _place(row: LedgerRow, inside: float, layers: int) -> float:
    """Where a call lies in its pass: 0 to 1 the layers, what comes in before them, what goes out after."""
    if row.group is GroupKind.pp:
        return -2.0 if row.primitive is P.recv else 3.0
    ends = {"batch": -1.0, "embedding": -0.5, "head": 1.5, "final_norm": 1.6, "loss": 2.0}
    end = next((place for word, place in ends.items() if word in row.term.split(".")), None)
    if end is not None:
        return end if row.phase is Phase.forward else 1 - end
    # what context parallelism exchanges goes out together, in the middle of a layer
    return (int(inside * layers) + 0.5) / layers if row.group is GroupKind.cp else inside + 0.25 / layers


def _phase(row: LedgerRow, passes: Sequence[Phase]) -> str | None:
    """Messages of stages lie outside of autograd, and after the first backward belong to nobody."""
    if row.group is not GroupKind.pp:
        return row.phase.value
    return None if Phase.backward in passes else "forward"


def _issue(tape: Tape, row: LedgerRow, *, phase: str | None) -> None:
    group, size = row.group.value, round(row.elements)
    tape.call(
        row.primitive.value,
        group,
        size,
        dtype=row.dtype,
        phase=phase,
        name=_collective(row),
        peer=_peer(tape, row) if row.primitive in _MESSAGES else None,
        splits=_splits(row, size, len(tape.groups[group])),
    )


def _collective(row: LedgerRow) -> str | None:
    """Megatron's and DeepSpeed's buckets travel coalesced."""
    return _COALESCED.get(row.primitive) if "bucket" in row.term else None


_COALESCED = {
    P.all_gather: "allgather_into_tensor_coalesced",
    P.reduce_scatter: "reduce_scatter_tensor_coalesced",
}


def _peer(tape: Tape, row: LedgerRow) -> int:
    ranks = tape.groups[row.group.value]
    ahead = (row.phase is Phase.forward) == (row.primitive is P.send)
    return ranks[(ranks.index(tape.rank) + (1 if ahead else -1)) % len(ranks)]


def _splits(row: LedgerRow, size: int, ranks: int) -> list[int] | None:
    """Everything to one peer where all that a call carries leaves the rank."""
    alone = row.wire_bytes == row.calls * row.elements * DTYPE_BYTES[row.dtype]
    return [0, size, *[0] * (ranks - 2)] if row.primitive is P.all_to_all and alone else None
