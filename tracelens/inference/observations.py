"""What inference sees of a rank: the calls of one typical step, plain and small.

`observe` turns summaries into views, one per class of ranks that do the same, and takes the names away where they
may not be used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from tracelens.collectives import Primitive
from tracelens.inference.products import read_batched_products, read_products
from tracelens.results import Phase
from tracelens.summary import LocalGroup, RankSummary
from tracelens.topology import Mesh, mesh_of

P = Primitive
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "bool", "uint32", "uint64"})
SCALAR_ELEMENTS = 16
"""Up to so many elements a call is bookkeeping: norms, losses, counts, flags; one where no call is larger than 64."""

# User annotations that a program's own code writes; a blind inference sees none of them.
_COLUMNS = (
    "call",
    "primitive",
    "collective",
    "dtype",
    "group",
    "group_size",
    "step",
    "phase",
    "label",
    "thread",
    "stream",
    "peer",
    "in_elements",
    "out_elements",
    "in_split_list",
)


@dataclass(frozen=True, slots=True)
class GroupView:
    """A set of ranks that a rank communicates in."""

    key: tuple[object, ...]
    size: int | None
    ranks: tuple[int, ...] | None
    mesh: Mesh | None
    descriptions: tuple[str, ...] = ()
    """Empty for a blind inference."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Groups of one kind are copies of each other at other ranks."""
        return ("mesh", self.mesh) if self.mesh else self.key

    def told(self) -> str:
        """The group in words."""
        if self.ranks is None:
            return f"a group of {self.size or '?'} ranks"
        shown = ",".join(map(str, self.ranks[:4])) + (",.." if len(self.ranks) > 4 else "")
        return f"group {{{shown}}} of {len(self.ranks)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the typical step."""

    index: int
    primitive: Primitive
    collective: str | None
    dtype: str | None
    group: int
    """Index into the view's groups."""
    phase: Phase | None
    thread: int | None
    stream: int | None
    peer: int | None
    elements: int | None
    """The full buffer: gathered, to be scattered, or the message; None when unknown."""
    shard: int | None
    """The smaller side of a gather or scatter; the message otherwise."""
    received: int | None
    """Elements of the output buffer."""
    splits: tuple[int, ...] | None
    label: str | None
    least: int = SCALAR_ELEMENTS
    """Up to so many elements the call is bookkeeping."""

    @property
    def is_scalar(self) -> bool:
        """Bookkeeping: a handful of elements."""
        return self.elements is not None and self.elements <= self.least

    @property
    def is_integer(self) -> bool:
        """Carries counts, tokens or indices."""
        return self.dtype in INTEGERS


@dataclass(frozen=True, slots=True)
class Gap:
    """Compute launched between two calls by one thread."""

    after: int
    """Index of the last call issued before; -1 before the first."""
    thread: int | None
    end_ns: int
    busy_ns: int
    matmul_ns: int


@dataclass(frozen=True)
class RankView:
    """One rank of a class: its groups and the calls of a typical step."""

    rank: int | None
    members: tuple[int, ...]
    """Ranks that do the same (empty when the ranks are unknown)."""
    world_size: int | None
    groups: tuple[GroupView, ...]
    calls: tuple[Call, ...]
    gaps: tuple[Gap, ...]
    products: tuple[tuple[int, int, int, int], ...]
    """Matrix products of the whole trace as (m, k, n, count)."""
    batched: frozenset[tuple[int, int, int, int]]
    """Products of batches of matrices as (batch, m, k, n)."""
    multiplies_groups: bool
    """Whether products of groups of rows were seen, each with a matrix of its own: experts."""
    kernels: Mapping[str, int]
    """Communication kernels that no call explains, by name."""
    steps: int
    call_counts: tuple[int, ...]
    """Calls in each step."""
    labels: tuple[str, ...] = ()
    on_gpu: bool = True
    """Whether the job communicates on GPUs: traces of gloo often hold nothing of what the CPU computes."""
    by_group: Mapping[int, tuple[Call, ...]] = field(default_factory=dict)

    @cached_property
    def _gaps_in_order(self) -> tuple[tuple[Gap, ...], list[int]]:
        ordered = tuple(sorted(self.gaps, key=lambda gap: (gap.after, gap.end_ns)))
        return ordered, [gap.after for gap in ordered]

    def gaps_between(self, first: int, last: int) -> tuple[Gap, ...]:
        """Compute launched after call `first` (itself included) and before call `last`, in the order of its end."""
        ordered, places = self._gaps_in_order
        return ordered[bisect_left(places, first) : bisect_left(places, last)]

    @cached_property
    def first_backward(self) -> int:
        """Index of the first call of backward, or of the call before its first compute; past the end without one.

        After it a pipeline's own thread may issue what belongs to backward: calls before it are surely forward.
        """
        main = Counter(c.thread for c in self.calls if c.phase is not Phase.backward).most_common(1)
        calls = [c.index for c in self.calls if c.phase is Phase.backward]
        gaps = [g.after for g in self.gaps if g.matmul_ns and main and g.thread != main[0][0]]
        return min((*calls, *gaps), default=2**62)

    def in_phase(self, group: int, primitive: Primitive, *phases: Phase | None) -> list[Call]:
        """Calls of a group with one primitive in the phases given."""
        return [c for c in self.by_group.get(group, ()) if c.primitive is primitive and c.phase in phases]


def observe(summaries: Sequence[RankSummary], *, blind: bool) -> list[RankView]:
    """One view per class of ranks.

    Args:
        summaries: any subset of the ranks of a job.
        blind: leave out group names and descriptions, labels and annotations.
    """
    classes: dict[object, list[RankSummary]] = {}
    for summary, signature in zip(summaries, _signatures(summaries), strict=True):
        classes.setdefault(signature, []).append(summary)
    return [_view(same[0], _members(same), blind=blind) for same in classes.values()]


def _members(same: Sequence[RankSummary]) -> tuple[int, ...]:
    return tuple(sorted({s.rank for s in same if s.rank is not None}))


_SIGNED = ("group", "primitive", "dtype", "phase", "in_elements", "out_elements", "peer")


def _signatures(summaries: Sequence[RankSummary]) -> list[object]:
    """What decides whether two ranks do the same: the kinds of their groups, their places in pipelines, their calls.

    All summaries pass through one frame, so that thousands of ranks take one query and not thousands.
    """
    if not summaries:
        return []
    frames = [s.calls.select(_SIGNED) for s in summaries]
    lengths = [len(frame) for frame in frames]
    together = pl.concat(frames).with_columns(
        rank_index=pl.Series(np.repeat(np.arange(len(summaries), dtype=np.int32), lengths)),
        own=pl.Series(np.repeat([s.rank or 0 for s in summaries], lengths)),
        steps=pl.Series(np.repeat([len(s.head.steps) or 1 for s in summaries], lengths)),
    )
    uneven = pl.col("primitive") == P.all_to_all.value
    rows = (
        together.lazy()
        .with_columns(
            *(pl.when(~uneven).then(pl.col(c)).alias(c) for c in ("in_elements", "out_elements")),
            peer=(pl.col("peer") - pl.col("own")).sign(),
        )
        .group_by("rank_index", "steps", *_SIGNED)
        .len()
        .with_columns(row=pl.struct(pl.exclude("rank_index")).hash())
        .sort("rank_index", "row")
        .group_by("rank_index", maintain_order=True)
        .agg("row")
        .collect()
    )
    calls = {index: tuple(row) for index, row in rows.iter_rows()}
    places = _places(summaries, together)
    meshes: dict[tuple[int, ...], object] = {}
    return [
        (_kinds(s.head.groups, meshes), places.get(index, ()), calls.get(index, ()))
        for index, s in enumerate(summaries)
    ]


def _places(summaries: Sequence[RankSummary], calls: pl.DataFrame) -> dict[int, tuple[tuple[int, int], ...]]:
    """Where ranks stand in their groups with point-to-point calls: stages of a pipeline are no copies."""
    p2p = calls.filter(pl.col("primitive").is_in(["send", "recv"]) & pl.col("group").is_not_null())
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    for index, group in p2p.select("rank_index", "group").unique().sort("rank_index", "group").iter_rows():
        summary = summaries[index]
        ranks = summary.head.groups[group].ranks
        if ranks is not None and summary.rank in ranks:
            found[index] = (*found.get(index, ()), (group, ranks.index(summary.rank)))
    return found


def _kinds(groups: Sequence[LocalGroup], meshes: dict[tuple[int, ...], object]) -> tuple[object, ...]:
    kinds: list[object] = []
    for group in groups:
        if group.ranks is None:
            kinds.append(group.size)
            continue
        ranks = group.ranks
        if ranks not in meshes:
            meshes[ranks] = mesh_of(sorted(ranks)) or len(ranks)
        kinds.append(meshes[ranks])
    return tuple(kinds)


def _view(summary: RankSummary, members: tuple[int, ...], *, blind: bool) -> RankView:
    groups, place = _merge_groups(summary, blind=blind)
    all_calls = summary.calls
    step, counts = _typical_step(all_calls)
    rows = all_calls if step is None else all_calls.filter(pl.col("step") == step)
    calls = _calls(rows, place, summary, groups, blind=blind)
    by_group: dict[int, list[Call]] = {}
    for call in calls:
        by_group.setdefault(call.group, []).append(call)
    labels = () if blind else tuple(all_calls["label"].drop_nulls().unique().sort())
    return RankView(
        rank=summary.rank,
        members=members,
        world_size=summary.head.world_size,
        groups=tuple(groups),
        calls=tuple(calls),
        gaps=_gaps(summary, rows, step),
        products=read_products(summary.shapes),
        batched=read_batched_products(summary.shapes),
        multiplies_groups=summary.shapes["operator"].str.contains("grouped_mm", literal=True).any(),
        kernels=_orphans(summary, blind=blind),
        steps=len(summary.head.steps),
        call_counts=counts,
        labels=labels,
        on_gpu=summary.head.backend != "gloo",
        by_group={index: tuple(own) for index, own in by_group.items()},
    )


def _typical_step(calls: pl.DataFrame) -> tuple[int | None, tuple[int, ...]]:
    """The step to look at: of the most frequent number of calls; of the larger number where two are as frequent.

    Training loops that do more in some steps than in others are seen at their fullest, and a first step that
    compiles, a last one that is cut off or one with an evaluation is not taken for the rule.
    """
    counted = calls.drop_nulls("step").group_by("step").len().sort("step")
    if counted.is_empty():
        return None, (len(calls),)
    counts = counted["len"].to_list()
    frequency = Counter(counts)
    wanted = max(frequency, key=lambda count: (frequency[count], count))
    return counted["step"].to_list()[len(counts) - 1 - counts[::-1].index(wanted)], tuple(counts)


def _merge_groups(summary: RankSummary, *, blind: bool) -> tuple[list[GroupView], dict[int, int]]:
    """Groups of equal ranks as one, and where each of the head's groups went."""
    merged: dict[tuple[object, ...], list[int]] = {}
    for index, group in enumerate(summary.head.groups):
        key = ("ranks", *sorted(group.ranks)) if group.ranks is not None else ("name", group.name, group.size)
        merged.setdefault(key, []).append(index)
    views: list[GroupView] = []
    place: dict[int, int] = {}
    for key, indices in merged.items():
        first = summary.head.groups[indices[0]]
        descriptions = [summary.head.groups[i].description for i in indices]
        views.append(
            GroupView(
                key=key,
                size=first.size,
                ranks=first.ranks,
                mesh=mesh_of(sorted(first.ranks)) if first.ranks is not None else None,
                descriptions=() if blind else tuple(dict.fromkeys(d for d in descriptions if d)),
            )
        )
        place |= {index: len(views) - 1 for index in indices}
    return views, place


def _calls(
    rows: pl.DataFrame, place: Mapping[int, int], summary: RankSummary, groups: list[GroupView], *, blind: bool
) -> list[Call]:
    anonymous: dict[tuple[object, ...], int] = {}
    calls = []
    largest: int = max((rows[c].max() or 0 for c in ("in_elements", "out_elements")), default=0)  # type: ignore[assignment]
    least = SCALAR_ELEMENTS if largest > 4 * SCALAR_ELEMENTS else 1
    for row in rows.select(_COLUMNS).iter_rows(named=True):
        primitive = P(row["primitive"])
        if primitive in (P.barrier, P.other):
            continue
        into, out = row["in_elements"], row["out_elements"]
        calls.append(
            Call(
                index=row["call"],
                primitive=primitive,
                collective=row["collective"],
                dtype=row["dtype"],
                group=_group_of(row, place, anonymous, groups, summary.head.world_size),
                phase=None if row["phase"] is None else Phase(row["phase"]),
                thread=row["thread"],
                stream=row["stream"],
                peer=row["peer"],
                elements=_larger(into, out, primitive, row["group_size"]),
                shard=min((n for n in (into, out) if n is not None), default=None),
                received=out,
                splits=None if row["in_split_list"] is None else tuple(row["in_split_list"]),
                label=None if blind else row["label"],
                least=least,
            )
        )
    return calls


def _larger(into: int | None, out: int | None, primitive: Primitive, size: int | None) -> int | None:
    known = [n for n in (into, out) if n is not None]
    if not known:
        return None
    if len(known) == 1 and primitive is P.all_gather and size:
        return known[0] * size
    return max(known)


def _group_of(
    row: Mapping[str, object],
    place: Mapping[int, int],
    anonymous: dict[tuple[object, ...], int],
    groups: list[GroupView],
    world: int | None,
) -> int:
    """The group of a call; calls without one are told apart by the stream that their communicator uses."""
    index = row["group"]
    if isinstance(index, int):
        return place[index]
    key = ("stream", row["stream"], row["group_size"])
    if key not in anonymous:
        anonymous[key] = len(groups)
        size = row["group_size"]
        groups.append(GroupView(key=key, size=size if isinstance(size, int) else None, ranks=None, mesh=None))
    return anonymous[key]


def _gaps(summary: RankSummary, rows: pl.DataFrame, step: int | None) -> tuple[Gap, ...]:
    compute = summary.compute
    compute = compute if step is None else compute.filter(pl.col("step") == step)
    return tuple(
        Gap(after=-1 if after is None else after, thread=thread, end_ns=end, busy_ns=busy, matmul_ns=matmul)
        for after, thread, end, busy, matmul in compute.select(
            "after_call", "thread", "end_ns", "busy_ns", "matmul_ns"
        ).iter_rows()
    )


def _orphans(summary: RankSummary, *, blind: bool) -> dict[str, int]:
    alone = summary.kernels.filter(pl.col("owner").is_null())
    return dict(alone.group_by("name").len().iter_rows())
