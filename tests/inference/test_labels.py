"""Groups and rows of a measurement carry the axes that inference found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.measurement.measure import measure
from tracelens.results import Measurement
from tracelens.topology import Axis
from tracelens.trace.summarize import summarize


def _labelled(folder: Path) -> Measurement:
    summaries = [summarize(path) for path in sorted(folder.glob("rank*.json.gz"))]
    return label_measurement(measure(summaries), reason(summaries, blind=True))


def test_a_flattened_group_tells_the_axes_in_it(shared_traces: Path) -> None:
    found = _labelled(shared_traces / "framework" / "cp4_allgather_dp2")
    by_size = {group.size: group for group in found.groups}
    assert by_size[4].axis is Axis.cp
    assert by_size[8].axis is Axis.dp_shard
    assert by_size[8].axes == (Axis.dp_shard, Axis.cp)


def test_one_group_in_two_roles_tells_both(shared_traces: Path) -> None:
    found = _labelled(shared_traces / "framework" / "ep8_dropless")
    (group,) = [group for group in found.groups if group.size == 8]
    assert set(group.roles) == {Axis.ep, Axis.dp_replicate}


@pytest.mark.parametrize(
    ("case", "axes"),
    [
        ("hsdp_4x16", {Axis.dp_shard: 16, Axis.dp_replicate: 4}),
        ("tp8sp_fsdp64", {Axis.tp: 8, Axis.dp_shard: 8}),
        ("mg_pp4_1f1b_tp2", {Axis.tp: 2, Axis.pp: 4, Axis.embedding_grad: 2}),
        ("pp4_1f1b_dp2", {Axis.pp: 4, Axis.dp_shard: 2}),
    ],
)
def test_groups_and_their_rows_go_by_axis(shared_traces: Path, case: str, axes: dict[Axis, int]) -> None:
    found = _labelled(shared_traces / "framework" / case)
    sizes = {group.axis: group.size for group in found.groups if group.axis in axes}
    assert sizes == axes
    of_group = {group.id: group.axis for group in found.groups}
    assert all(row.axis is of_group[row.group] for row in found.traffic if row.group is not None)
