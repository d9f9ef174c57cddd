"""Groups and rows of a measurement carry the axes that inference found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.collectives import Primitive as P  # noqa: N817
from tracelens.inference.infer import reason
from tracelens.inference.labels import label_measurement
from tracelens.measurement.measure import measure
from tracelens.results import Measurement
from tracelens.topology import Axis
from tracelens.trace.summarize import summarize


def _labelled(folder: Path, pattern: str = "rank*.json.gz") -> Measurement:
    summaries = [summarize(path) for path in sorted(folder.glob(pattern))]
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


def test_all_to_alls_of_context_parallelism_are_no_routing_of_tokens(shared_traces: Path) -> None:
    assert _labelled(shared_traces / "framework" / "cp4_allgather_dp2").routing is None


def test_those_of_experts_are(shared_traces: Path) -> None:
    found = _labelled(shared_traces / "framework" / "ep8_dropless").routing
    assert found is not None
    assert {call.unit for call in found.calls} == {"tokens"}


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


def test_each_row_of_a_group_in_two_roles_goes_by_its_own(shared_traces: Path) -> None:
    """torchrec's all-to-alls of embeddings, indices and lengths are those of its tables, the all-reduces DDP's."""
    for folder, pattern in (("dlrm_8", "worker[01]_*"), ("recsys_two_level_16", "rank*.json.gz")):
        rows = [row for row in _labelled(shared_traces / folder, pattern).traffic if row.group is not None]
        assert {row.axis for row in rows if row.primitive is not P.all_reduce} == {Axis.embedding_table}
        assert {row.axis for row in rows if row.primitive is P.all_reduce} == {Axis.dp_replicate}


def test_rows_of_experts_and_gradients_in_one_group_are_told_apart(shared_traces: Path) -> None:
    rows = _labelled(shared_traces / "framework" / "ep8_dropless").traffic
    assert {row.axis for row in rows if row.primitive is P.all_to_all} == {Axis.ep}
    assert {row.axis for row in rows if row.primitive is P.all_reduce and row.phase == "backward"} == {
        Axis.dp_replicate
    }
