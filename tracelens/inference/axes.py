"""From uses of groups to the axes of the device mesh: sizes, strides, and the product that must close."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tracelens.errors import Severity
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job, Sighting, main_kind
from tracelens.inference.uses import UNDECIDED, Role, sizeable
from tracelens.inferred import InferredAxis
from tracelens.results import Finding
from tracelens.topology import Axis
from tracelens.units import noun, plural

DATA_ROLES = (Role.weights, Role.updates, Role.grads)


@dataclass(frozen=True, slots=True)
class DataParallel:
    """The groups over which dense gradients are averaged."""

    shard: list[Sighting]
    """Uses of the group that all-reduces, or shards, gradients."""
    replicas: list[Sighting]
    """Uses of the group that all-reduces the shards (HSDP)."""
    experts: list[Sighting]
    """Uses of groups that average the gradients of experts only."""

    @property
    def shard_size(self) -> int | None:
        """Ranks of the first group."""
        return self.shard[0].group.size if self.shard else None

    @property
    def replica_size(self) -> int | None:
        """Ranks of the second group; 1 when there is none."""
        return self.replicas[0].group.size if self.replicas else 1

    @property
    def span(self) -> int | None:
        """Ranks that end with equal dense gradients."""
        if self.shard_size is None or self.replica_size is None:
            return None
        return self.shard_size * self.replica_size


def find_axes(job: Job, case: Case) -> DataParallel:
    """Decide tp, pp, cp and ep from their own traffic, dp from gradients, and the rest by the product.

    The world is the product tp · pp · cp · dp; experts divide the same ranks a second way.
    """
    worlds = {view.world_size for view in job.views if view.world_size is not None}
    if len(worlds) > 1:
        _report_contradiction(job, case, "world_size", worlds)
    elif job.world is not None:
        case.decide("world_size", job.world, 0.999, f"the traces tell a world of {job.world}")
    for name, role in (("tp", Role.tensor), ("cp", Role.context), ("ep", Role.experts)):
        _decide_size(case, name, main_kind(job.sightings(role)))
        sizes = _sizes_by_rank(job, role)
        if len(sizes) > 1:
            _report_contradiction(job, case, name, sizes)
    _decide_pipeline(job, case)
    data = find_data_parallel(job, case)
    _close_product(job, case, data)
    return data


def axes_by_traffic(job: Job) -> Case:
    """The axes as the traffic has them without any name, to hold names against."""
    case = Case()
    find_axes(replace(job, findings=[]), case)
    return case


def _sizes_by_rank(job: Job, role: Role) -> set[int]:
    """The size of the main group with a role on each rank that has one: one size, in one job."""
    sizes: set[int] = set()
    for view in job.views:
        own = main_kind([s for s in job.sightings(role) if s.view is view])
        if own and own[0].group.size is not None and own[0].use.detail != UNDECIDED:
            sizes.add(own[0].group.size)
    return sizes


def _report_contradiction(job: Job, case: Case, name: str, sizes: Iterable[int]) -> None:
    """Ranks that tell of different layouts are a finding, and leave the field open: no average of two jobs."""
    told = " and ".join(map(str, sorted(sizes)))
    case.contradict(name, sorted(sizes), f"ranks tell of {told}")
    case.would_decide.setdefault("the traces of one job")
    for follows in ("dp", "dp_shard", "dp_replicate"):
        case.contradict(follows, (), f"{name} is contradicted")
    job.findings.append(
        Finding(
            code="ranks-contradict",
            severity=Severity.error,
            message=f"the traces tell of different jobs: {name} of {told}",
            hint="give the traces of one job",
        )
    )


def _decide_size(case: Case, name: str, seen: Sequence[Sighting]) -> None:
    sizes = [(s.group.size, s) for s in seen if s.group.size is not None]
    if not sizes:
        return
    case.solve(name)
    # a witness counts once for each use, however many ranks repeat it: they run the same program
    size, strongest = max(sizes, key=lambda item: item[1].use.confidence)
    if strongest.use.detail == UNDECIDED:
        for field in ("cp", "ep"):
            case.leave(
                field, (1, size), f"{strongest.group.told()}: {strongest.use.why}", would_decide="compute kernels"
            )
        return
    if strongest.use.detail == "allgather" and strongest.use.role is Role.experts:
        return  # the group holds tensor parts of experts as well
    case.decide(name, size, strongest.use.confidence, f"{strongest.group.told()}: {strongest.use.why}")
    case.check(holds=len(sizes) > 1, count=len(sizes) - 1)


def _decide_pipeline(job: Job, case: Case) -> None:
    seen = job.sightings(Role.pipeline)
    known = [s for s in seen if s.group.size is not None]
    if not known:
        return
    least = min(s.group.size or 0 for s in known)
    smallest = [s for s in known if s.group.size == least]
    case.solve("pp")
    strongest = max(smallest, key=lambda s: s.use.confidence)
    if _is_shared(job, strongest):
        return  # peers are told by a group that holds other axes too: the product decides
    case.decide("pp", least, strongest.use.confidence, f"{strongest.group.told()}: {strongest.use.why}")
    case.check(holds=_peers_are_neighbours(smallest), count=len(smallest))


def _is_shared(job: Job, sighting: Sighting) -> bool:
    """Whether the group of a pipeline also holds the ranks of another axis."""
    ranks = set(sighting.group.ranks or ())
    others = [s for s in job.sightings(Role.tensor, Role.context, *DATA_ROLES) if s.view is sighting.view]
    return any(set(s.group.ranks or ()) < ranks and len(s.group.ranks or ()) > 1 for s in others)


def _peers_are_neighbours(seen: Sequence[Sighting]) -> bool:
    for s in seen:
        ranks = s.group.ranks
        if ranks is None or s.view.rank not in ranks:
            return False
        place, size = ranks.index(s.view.rank), len(ranks)
        near = {ranks[(place + 1) % size], ranks[(place - 1) % size]}
        if any(c.peer is not None and c.peer not in near for c in s.use.calls):
            return False
    return True


def find_data_parallel(job: Job, case: Case) -> DataParallel:
    """Tell the groups of dense gradients from those of experts and of shards."""
    seen = [s for s in job.sightings(*DATA_ROLES) if _scatters_or_reduces(s) and s.use.confidence >= 0.5]
    replicas = main_kind(job.sightings(Role.shard_grads))
    kinds: dict[int | None, list[Sighting]] = {}
    for s in seen:
        kinds.setdefault(s.group.size, []).append(s)
    if not kinds:
        return DataParallel([], [], [])
    rest = (case.value("tp") or 1) * (case.value("pp") or 1)
    repeated = replicas[0].group.size if replicas else 1

    def merit(size: int | None) -> tuple[bool, float]:
        closes = size is not None and job.world is not None and size * rest * (repeated or 1) == job.world
        mean = sum(s.elements for s in kinds[size]) / len(kinds[size])
        return closes, mean

    dense = max(kinds, key=merit)
    experts = [s for size, own in kinds.items() if size != dense for s in own]
    return DataParallel(kinds[dense], replicas, experts)


def _scatters_or_reduces(s: Sighting) -> bool:
    return any(c.primitive.value != "all_gather" for c in s.use.calls)


def _close_product(job: Job, case: Case, data: DataParallel) -> None:
    """Use world = tp · pp · (dp · cp) to check what was found and to settle what was not."""
    span, world = data.span, job.world
    _derive_pipeline(job, case, span)
    known = {name: case.value(name) for name in ("tp", "pp", "cp")}
    product = (known["tp"] or 1) * (known["pp"] or 1)
    if span is not None and (world is None or span * product == world):
        _close_with_gradients(job, case, data, known)
    elif world is not None and world % (product * (known["cp"] or 1)) == 0:
        _close_without_gradients(job, case, data, known)
    else:
        told = "the size of the job is not known" if world is None else f"no groups that divide the world of {world}"
        case.leave("dp", (), told)
    if case.value("ep") is None and _has_expert_kernels(job):
        _leave_experts(job, case)
    elif case.value("ep") is None:
        certainty = 0.93 if case.is_decided("dp") else 0.7
        # without any call the absence of a dispatch says nothing, but where there is one rank
        looked = case.is_decided("dp") or any(view.calls for view in job.views)
        if looked and not job.has(Role.experts):
            case.decide("ep", 1, certainty, "no dispatch of tokens was seen")


def _derive_pipeline(job: Job, case: Case, span: int | None) -> None:
    """A pipeline whose messages use a group of other ranks too: its size is what the other axes leave of the world."""
    seen = job.sightings(Role.pipeline)
    if not seen or job.world is None or case.is_decided("pp"):
        return
    rest = (case.value("tp") or 1) * (span or case.value("cp") or 1)
    stages, left_over = divmod(job.world, rest)
    if left_over or stages < 2:
        return
    steps = {
        abs(c.peer - s.view.rank) for s in seen if s.view.rank is not None for c in s.use.calls if c.peer is not None
    }
    if steps and all(step % (job.world // stages) == 0 for step in steps):
        told = f"messages go {min(steps)} ranks away, and {stages} stages are what other axes leave of {job.world}"
        case.solve("pp")
        case.decide("pp", stages, 0.88, told)


def _close_with_gradients(job: Job, case: Case, data: DataParallel, known: dict[str, int | None]) -> None:
    world = job.world
    closed = world is not None
    case.solve("dp")
    case.check(holds=closed)
    span = data.span or 1
    cp = known["cp"] or 1
    inside = cp > 1 and _contains_context(job, data)
    strongest = max(data.shard, key=lambda s: s.use.confidence)
    for name in ("tp", "pp", "cp"):
        if known[name] is None:
            told = f"no traffic of its own; gradients span {span}" + (
                f" and the product closes at {world}" if closed else ""
            )
            case.decide(name, 1, 0.96 if closed else 0.85, told)
    open_contexts = [c for c in case.verdict("cp").left if span % c == 0]
    if open_contexts:
        case.leave("dp", {span // c for c in open_contexts}, f"gradients span {span}, which may hold context ranks")
        return
    dp = span // cp if inside or (cp > 1 and data.shard[0].group.ranks is None) else span
    if cp > 1 and not inside and closed and span * cp * (known["tp"] or 1) * (known["pp"] or 1) != world:
        dp = span // cp  # the product closes only with cp inside the group
    why = f"{strongest.group.told()}: {strongest.use.why}"
    if data.replicas:
        why += f"; {data.replicas[0].group.told()}: {data.replicas[0].use.why}"
    case.decide("dp", dp, min(0.99, strongest.use.confidence + (0.03 if closed else 0)), why)


def _contains_context(job: Job, data: DataParallel) -> bool:
    """Whether the gradients' group holds a context group: cp is inside the flattened group."""
    contexts = [set(s.group.ranks) for s in job.sightings(Role.context) if s.group.ranks]
    return any(set(s.group.ranks or ()) >= context for s in data.shard for context in contexts)


def _close_without_gradients(job: Job, case: Case, data: DataParallel, known: dict[str, int | None]) -> None:
    """No gradient group closes the product: what is left over is data parallel, or an axis that shows nothing."""
    world = job.world or 1
    product = (known["tp"] or 1) * (known["pp"] or 1)
    left = world // (product * (known["cp"] or 1))
    axes = [name for name in ("tp", "pp", "cp") if known[name] is None]
    unexplained = _unexplained(job)
    if left == 1:
        told = f"the axes found make up the whole world of {world}"
        _decide_ones(case, (*axes, "dp"), 0.95, told)
        case.check(holds=True)
    elif data.shard and data.shard_size is None:
        _decide_ones(case, axes, 0.85, "no traffic of its own")
        case.decide("dp", left, 0.85, f"gradients are all-reduced and nothing else divides the world of {world}")
    elif data.span is not None:
        told = f"gradients span {data.span}, other axes {product}: together not the world of {world}"
        case.leave("dp", {data.span, left}, told, would_decide="a trace of more ranks, or of a whole step")
    elif unexplained:
        for name in (*axes, "dp"):
            case.leave(name, _divisors(left), unexplained, would_decide="a trace with phases: CPU operators and steps")
    elif not job.has(Role.experts, Role.tables) and not any(True for _ in job.calls()):
        # what was not recorded can't be missed: no traffic is no evidence here
        for name in (*axes, "dp"):
            told = "no call of a collective was recorded"
            case.leave(name, _divisors(left), told, would_decide="a trace with records")
    else:
        _leave_the_rest(job, case, left, axes)


def _decide_ones(case: Case, names: Iterable[str], certainty: float, why: str) -> None:
    for name in names:
        case.decide(name, 1, certainty, why)


def _leave_the_rest(job: Job, case: Case, left: int, axes: Sequence[str]) -> None:
    _decide_ones(case, axes, 0.8, "no traffic of its own")
    why = f"{left} ranks of {job.world} are not explained by other axes, and no gradients travel"
    if job.trains and not job.has(Role.experts):
        case.leave("dp", _divisors(left), why, would_decide="a trace that holds the optimizer step")
    else:
        case.decide("dp", left, 0.75, why)


def _unexplained(job: Job) -> str | None:
    """Tensors that travel in a group without a role."""
    for view, uses in zip(job.views, job.uses, strict=True):
        sure = {use.group for use in uses if use.confidence >= 0.5}
        for group, calls in view.by_group.items():
            tensors = sizeable(calls)
            if group not in sure and tensors and view.groups[group].size != 1:
                fit = noun(len(tensors), "fits", "fit")
                return f"{plural(len(tensors), 'call')} in {view.groups[group].told()} {fit} no rule"
    return None


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, number + 1) if number % d == 0)


_EXPERT_KERNELS = ("deep_ep", "::ep::", "hybrid_ep", "dispatch", "combine")


def _has_expert_kernels(job: Job) -> bool:
    return any(word in name.lower() for view in job.views for name in view.kernels for word in _EXPERT_KERNELS)


def _leave_experts(job: Job, case: Case) -> None:
    """DeepEP's kernels tell no sizes; those for several nodes need more ranks than a node has."""
    across = any("internode" in name for view in job.views for name in view.kernels)
    sizes = [d for d in _divisors(job.world or 1) if d > (_NODE if across else 1)]
    told = "kernels that dispatch tokens" + (" between nodes" if across else "") + ", without sizes"
    case.leave("ep", sizes, told, would_decide="CPU records of the groups, or the number of experts a rank holds")


_NODE = 8
"""GPUs of a node where nothing tells otherwise."""


def mesh_axes(job: Job, case: Case, data: DataParallel) -> tuple[InferredAxis, ...]:
    """The axes larger than one with their strides, innermost first."""
    found: list[InferredAxis] = []
    for axis, role in (
        (Axis.tp, Role.tensor),
        (Axis.cp, Role.context),
        (Axis.pp, Role.pipeline),
        (Axis.ep, Role.experts),
    ):
        size = case.value(axis.value)
        if size is not None and size > 1:
            strides = {_stride(s) for s in job.sightings(role) if s.group.size == size}
            found.append(InferredAxis(name=axis, size=size, stride=strides.pop() if len(strides) == 1 else None))
    shard, replicate = case.value("dp_shard"), case.value("dp_replicate")
    cp = case.value("cp") or 1
    if shard is not None and shard > 1:
        stride = _stride(data.shard[0]) if data.shard else None
        inner = next((a.stride for a in found if a.name is Axis.cp), None)
        outer = stride * cp if stride is not None and cp > 1 and inner == stride else stride
        found.append(InferredAxis(name=Axis.dp_shard, size=shard, stride=outer))
    if replicate is not None and replicate > 1:
        seen = data.replicas or data.shard
        found.append(InferredAxis(name=Axis.dp_replicate, size=replicate, stride=_stride(seen[0]) if seen else None))
    return tuple(sorted(found, key=lambda a: (a.stride is None, a.stride or 0)))


def _stride(s: Sighting) -> int | None:
    mesh = s.group.mesh
    return mesh[0][1] if mesh else None
