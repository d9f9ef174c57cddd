"""Groups labelled by their mesh: tensor parallelism over 2 inside, data parallelism over 4, two replicas of it."""

from __future__ import annotations

import pytest

from tests.report.build import a_document, a_group, a_row, a_run
from tracelens.collectives import Primitive
from tracelens.inferred import InferredAxis
from tracelens.measurement.axes import label_groups
from tracelens.report.saved import measurement_of
from tracelens.results import Group
from tracelens.topology import Axis

TP = InferredAxis(name=Axis.tp, size=2, stride=1)
SHARD = InferredAxis(name=Axis.dp_shard, size=4, stride=2)
REPLICATE = InferredAxis(name=Axis.dp_replicate, size=2, stride=8)
CP = InferredAxis(name=Axis.cp, size=2, stride=1)
EP = InferredAxis(name=Axis.ep, size=4, stride=2)


def label(ranks: tuple[int, ...], *axes: InferredAxis, world: int = 16) -> Group:
    document = a_document(run=a_run(tuple(range(world))), groups=(a_group(ranks, "1"),))
    return label_groups(measurement_of(document), axes).groups[0]


@pytest.mark.parametrize(
    ("ranks", "axis", "together"),
    [
        ((4, 5), Axis.tp, (Axis.tp,)),
        ((1, 3, 5, 7), Axis.dp_shard, (Axis.dp_shard,)),
        ((3, 11), Axis.dp_replicate, (Axis.dp_replicate,)),
        ((0, 2, 4, 6, 8, 10, 12, 14), Axis.dp, (Axis.dp_shard, Axis.dp_replicate)),
        (tuple(range(8)), Axis.mixed, (Axis.tp, Axis.dp_shard)),
        (tuple(range(16)), Axis.world, (Axis.tp, Axis.dp_shard, Axis.dp_replicate)),
        ((0, 1, 5), None, ()),
    ],
)
def test_a_group_is_named_by_the_axes_that_make_its_mesh(
    ranks: tuple[int, ...], axis: Axis | None, together: tuple[Axis, ...]
) -> None:
    group = label(ranks, TP, SHARD, REPLICATE)
    assert (group.axis, group.axes) == (axis, together)


def test_context_parallelism_flattened_with_the_shards_stays_the_shards() -> None:
    group = label(tuple(range(8)), CP, SHARD, world=8)
    assert (group.axis, group.axes) == (Axis.dp_shard, (Axis.cp, Axis.dp_shard))


def test_two_axes_over_the_same_ranks_are_two_roles() -> None:
    assert label((1, 3, 5, 7), TP, SHARD, EP).roles == (Axis.dp_shard, Axis.ep)


def test_rows_take_the_axis_of_their_group_and_keep_their_own() -> None:
    group = a_group((0, 1), "1")
    rows = (a_row(group, Primitive.all_reduce, (0,)), a_row(group, Primitive.all_reduce, (0,), axis=Axis.cp))
    labelled = label_groups(measurement_of(a_document(groups=(group,), traffic=rows)), [TP])
    assert [row.axis for row in labelled.traffic] == [Axis.tp, Axis.cp]
