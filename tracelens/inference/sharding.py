"""How state is sharded over the data-parallel ranks: nothing, optimizer, gradients, parameters; in one level or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracelens.collectives import DTYPE_BYTES, Primitive
from tracelens.inference.axes import DataParallel
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job, Sighting
from tracelens.inference.observations import Call
from tracelens.inference.schedule import count_rounds
from tracelens.inference.uses import Role
from tracelens.results import Phase

P = Primitive
F, B, O = Phase.forward, Phase.backward, Phase.optimizer  # noqa: E741
_REDUCES = (P.reduce_scatter, P.all_reduce, P.all_to_all, P.reduce)


def find_sharding(job: Job, case: Case, data: DataParallel) -> None:
    """Decide sharding, resharding, the two sizes of HSDP, the degrees and the dtype of gradients.

    Counts are of elements in one step; see Rajbhandari et al. 2020 (1910.02054) for the stages, and the decision
    table of the accuracy page for how frameworks show them.
    """
    if not data.shard or job.world == 1:
        _decide_without_gradients(job, case)
        return
    chosen = max(data.shard, key=lambda s: (s.use.confidence, s.elements))
    role = chosen.use.role
    if role is Role.weights:
        _decide_full(job, case, data, chosen)
    elif role is Role.updates:
        _decide_updates(job, case, chosen)
    else:
        case.decide("sharding", "none", _certainty_of_plain(chosen), f"{chosen.group.told()}: {chosen.use.why}")
        _degrees(case, 1, 1, 1)
    _decide_levels(job, case, data, sharded=role is not Role.grads)
    _decide_dtype(case, data)


def _certainty_of_plain(chosen: Sighting) -> float:
    broadcast = [c for c in chosen.view.by_group[chosen.use.group] if c.primitive is P.broadcast and c.phase is O]
    return 0.6 if broadcast else 0.94


def _decide_without_gradients(job: Job, case: Case) -> None:
    if case.value("dp") != 1:
        return
    alone = [
        c
        for view in job.views
        for g, own in view.by_group.items()
        if view.groups[g].size == 1 or job.world == 1
        for c in own
        if c.primitive in (P.reduce_scatter, P.all_gather)
    ]
    for name in ("dp_shard", "dp_replicate"):
        case.decide(name, 1, 0.95, "dp is 1")
    if alone:
        case.object_to(
            "sharding", f"{len(alone)} gathers and scatters in groups of one rank: a sharded optimizer of one"
        )
    elif (case.value("cp") or 1) == 1:
        case.decide("sharding", "none", 0.85, "dp and cp are 1: there is nothing to shard over")


def _by_phase(calls: Sequence[Call], primitive: P, *phases: Phase | None) -> list[Call]:
    return [c for c in calls if c.primitive is primitive and c.phase in phases]


def _total(calls: Sequence[Call]) -> int:
    return sum(c.elements or 0 for c in calls)


def _decide_full(job: Job, case: Case, data: DataParallel, chosen: Sighting) -> None:
    """Parameters are gathered for use: kept or freed after forward, or only their optimizer state sharded."""
    calls = chosen.use.calls
    forward, backward = _by_phase(calls, P.all_gather, F, None), _by_phase(calls, P.all_gather, B)
    repeated = [*backward, *_smaller_gathers(job, chosen)]
    again = [] if _keeps_layers(forward, repeated) else repeated
    scatters = [c for c in calls if c.primitive in _REDUCES]
    degree = chosen.group.size
    told = f"{len(forward)} gathers in forward, {len(repeated)} in backward, {len(scatters)} scatters of gradients"
    case.check(holds=_total(scatters) % max(degree or 1, 1) == 0, count=1)
    if again and len(again) >= 0.25 * len(forward):
        case.decide("sharding", "zero3", 0.97, f"{told}: parameters are freed after forward and gathered again")
        case.decide("reshard_after_forward", True, 0.97, told)  # noqa: FBT003
        case.check(
            holds={c.elements for c in again} <= {c.elements for c in forward}, count=len(set(map(_size, again)))
        )
        _degrees(case, degree, degree, degree)
        return
    if again and scatters and len(forward) + len(again) > 1.5 * len(scatters):
        told += ": more gathers than units, so parameters are freed after use"
        case.decide("sharding", "zero3", 0.95, told)
        case.decide("reshard_after_forward", True, 0.92, told)  # noqa: FBT003
        _degrees(case, degree, degree, degree)
        return
    if again:
        case.decide("sharding", "zero3", 0.9, told)
        case.leave("reshard_after_forward", (True, False), f"only {len(again)} of {len(forward)} gathers are repeated")
        _degrees(case, degree, degree, degree)
        return
    if _is_bucketed(calls):
        why = f"{told}, coalesced by bucket: parameters of the last update, gathered when first used"
        case.decide("sharding", "zero1", 0.93, why)
        _degrees(case, 1, 1, degree)
        return
    if any(c.elements is None for c in calls):
        case.leave("sharding", ("zero1", "zero2", "zero3"), f"{told}: the sizes of some are not known")
        return
    case.decide("sharding", "zero3", 0.93, f"{told}: parameters are sharded, gathered once and kept until backward")
    case.decide("reshard_after_forward", False, 0.93, f"{told}: no layer is gathered again")  # noqa: FBT003
    _degrees(case, degree, degree, degree)


def _keeps_layers(forward: Sequence[Call], again: Sequence[Call]) -> bool:
    """Whether the unit that forward gathers most often, a layer, is not among those that backward gathers again.

    torchtitan's loss in chunks gathers the head in backward even where parameters are kept.
    """
    counted = Counter(map(_size, forward)).most_common(2)
    most = [size for size, count in counted[:1] if count >= _FEWEST_LAYERS and all(count > n for _, n in counted[1:])]
    return bool(most) and most[0] not in set(map(_size, again))


_FEWEST_LAYERS = 3


def _size(call: Call) -> int | None:
    return call.elements


def _smaller_gathers(job: Job, chosen: Sighting) -> list[Call]:
    """Gathers of the same parameters in a smaller group in backward: resharding to a node."""
    sizes = {c.elements for c in chosen.use.calls if c.primitive is P.all_gather}
    return [
        c
        for c in chosen.view.calls
        if c.primitive is P.all_gather and c.phase is B and c.group != chosen.use.group and _full(c) in sizes
    ]


def _full(call: Call) -> int | None:
    return call.elements


def _is_bucketed(calls: Sequence[Call]) -> bool:
    """Megatron's buckets: coalesced, and the same ones gather parameters and scatter gradients.

    FSDP's units are not coalesced; DeepSpeed's ZeRO-3 gathers parameters one by one and scatters buckets.
    """
    named = [c.collective for c in calls if c.collective is not None]
    gathered = {c.elements for c in calls if c.primitive is P.all_gather}
    scattered = {c.elements for c in calls if c.primitive is P.reduce_scatter}
    if not named or not all("coalesced" in name for name in named):
        return False
    if None in gathered | scattered:  # where sizes are missing, those that are known must not speak against it
        known = gathered - {None}, scattered - {None}
        return known[0] <= known[1] or known[1] <= known[0]
    return gathered == scattered


def _decide_updates(job: Job, case: Case, chosen: Sighting) -> None:
    """Gradients are reduced, parameters gathered after the update: ZeRO-1, or 2 if every micro-batch reduces."""
    calls = chosen.use.calls
    gathers = [c for c in calls if c.primitive in (P.all_gather, P.broadcast)]
    reduces = [c for c in calls if c.primitive in _REDUCES]
    size = chosen.group.size
    case.decide("optim_shard_degree", size, 0.95, f"{chosen.use.why}")
    case.decide("param_shard_degree", 1, 0.93, "parameters are gathered after the update and kept")
    reduced, gathered = _total(reduces), _total(gathers)
    ratio = reduced / gathered if gathered else None
    told = f"gradients reduced {reduced:,} elements, parameters gathered {gathered:,}"
    rounds = count_rounds(chosen.view)
    if ratio is not None and ratio >= 1.7 and abs(ratio - round(ratio)) < 0.15:
        case.check(holds=True)
        times = round(ratio)
        case.decide("sharding", "zero2", 0.95, f"{told}: {times} times, once per micro-batch")
        case.decide("num_microbatches", times, 0.93, f"{told}: {times} reductions of every gradient")
        case.decide("grad_shard_degree", size, 0.95, told)
    elif rounds > 1 and _only_in_last_round(chosen, reduces):
        case.check(holds=True)
        case.decide("sharding", "zero1", 0.95, f"{told}: once, after {rounds} micro-batches")
        case.decide("grad_shard_degree", 1, 0.93, told)
    elif _is_bucketed(calls):
        why = f"{told}: coalesced buckets, as Megatron's distributed optimizer sends them, which keeps gradients whole"
        case.decide("sharding", "zero1", 0.9, why)
        case.decide("grad_shard_degree", 1, 0.9, why)
    elif chosen.use.detail == "broadcast":
        case.decide("sharding", "zero1", 0.9, f"{told}: gradients are kept whole, updates broadcast by their owners")
        case.decide("grad_shard_degree", 1, 0.9, told)
    else:
        why = f"{told}: once in a step of one micro-batch, as far as the trace shows"
        case.leave("sharding", ("zero1", "zero2"), why, would_decide="a step of several micro-batches")
        case.leave("grad_shard_degree", (1, size), why)
    case.decide("reshard_after_forward", False, 0.0, "")  # noqa: FBT003 - says nothing: the field is of ZeRO-3 only


def _only_in_last_round(s: Sighting, reduces: Sequence[Call]) -> bool:
    """Whether the first reduction comes after the last forward."""
    forward = [c.index for c in s.view.calls if c.phase is F and c.primitive not in (P.send, P.recv)]
    return not forward or min(c.index for c in reduces) > max(forward)


def _degrees(case: Case, param: int | None, grad: int | None, optim: int | None) -> None:
    for name, degree in (("param", param), ("grad", grad), ("optim", optim)):
        if degree is not None:
            case.decide(f"{name}_shard_degree", degree, 0.93, f"follows from the sharding over {optim} ranks")


def _decide_levels(job: Job, case: Case, data: DataParallel, *, sharded: bool) -> None:
    """The sizes dp_shard and dp_replicate, without cp."""
    dp, size = case.value("dp"), data.shard_size
    if dp is None:
        return
    if not sharded:
        case.decide("dp_shard", 1, 0.94, "gradients are all-reduced whole")
        case.decide("dp_replicate", dp, 0.94, f"all {dp} data-parallel ranks are replicas")
        return
    replicas = data.replica_size or 1
    if dp % replicas == 0:
        told = f"gradients are sharded over {size}" + (f" and all-reduced over {replicas}" if replicas > 1 else "")
        case.decide("dp_replicate", replicas, 0.95, told)
        case.decide("dp_shard", dp // replicas, 0.95, told)
        if replicas > 1:
            case.solve("dp_replicate")
            case.check(holds=True, count=len(data.replicas[0].use.calls))


def _decide_dtype(case: Case, data: DataParallel) -> None:
    """The dtype in which gradients are reduced; with less confidence where a part of them has another."""
    counted: Counter[str] = Counter()
    for s in data.shard:
        for c in s.use.calls:
            if c.primitive in _REDUCES and c.dtype in DTYPE_BYTES:
                counted[c.dtype] += c.elements or 0
    if not any(counted.values()):
        return
    unsized = any(c.elements is None for s in data.shard for c in s.use.calls if c.primitive in _REDUCES)
    what = "known elements" if unsized else "elements"
    (dtype, most), total = counted.most_common(1)[0], sum(counted.values())
    share = most / total
    shares = ", ".join(f"{dtype} {100 * count / total:.1f} %" for dtype, count in counted.most_common())
    if share >= _NEARLY_ALL:
        case.decide("grad_dtype", dtype, 0.97, f"{most:,} of {total:,} {what} of gradients are reduced in {dtype}")
    elif share > _MOST:
        why = f"{shares} of the {what} of gradients"
        case.decide("grad_dtype", dtype, min(share, _SURE_OF_A_MIX), why)
        case.object_to("grad_dtype", f"gradients are reduced in several dtypes: {shares} of their elements")
    else:
        case.leave("grad_dtype", tuple(counted), f"gradients are reduced in several dtypes: {shares} of their elements")


_NEARLY_ALL, _MOST = 0.98, 0.7
"""Shares of the elements: norms and a router may be kept in another dtype; a larger rest is a mix, and told as one."""
_SURE_OF_A_MIX = 0.89
