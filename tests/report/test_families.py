"""Groups that are alike are one family; what a rank sends is summed over its rows."""

from __future__ import annotations

from tests.report.build import a_document, a_group, a_row, an_unsized_row
from tracelens.collectives import Primitive
from tracelens.report.families import find_families, format_stride, label_rows, total_families
from tracelens.results import GroupTime
from tracelens.topology import Axis, mesh_of


def _labels(*groups: object, world_size: int | None = 8) -> list[tuple[str, int]]:
    families = find_families(groups, world_size=world_size)  # type: ignore[arg-type]
    return [(family.label, len(family.groups)) for family in families]


def test_groups_of_one_mesh_and_description_are_one_family() -> None:
    groups = [a_group((first, first + 1), str(first), "mesh_tp") for first in (0, 2, 4, 6)]
    assert _labels(*groups) == [("mesh_tp", 4)]


def test_groups_that_differ_in_stride_are_two_families() -> None:
    assert _labels(a_group((0, 1), "1"), a_group((0, 4), "2"), a_group((1, 5), "3")) == [
        ("2 ranks stride 1", 1),
        ("2 ranks stride 4", 2),
    ]


def test_a_label_prefers_the_axis_then_the_description_then_the_world_then_the_shape() -> None:
    ranks = tuple(range(8))
    assert _labels(a_group(ranks, "0", "mesh_dp", axis=Axis.dp)) == [("dp", 1)]
    assert _labels(a_group(ranks, "0", "mesh_dp")) == [("mesh_dp", 1)]
    assert _labels(a_group(ranks, "0", "default_pg")) == [("world", 1)]
    assert _labels(a_group(ranks, "0", "undefined"), world_size=16) == [("8 ranks stride 1", 1)]


def test_groups_whose_ranks_are_unknown_stay_apart_by_name() -> None:
    unknown = [a_group((0, 1), name, ranks=None, mesh=None) for name in ("7", "9")]
    assert _labels(*unknown) == [("group 7 of 2", 1), ("group 9 of 2", 1)]


def test_communicators_known_by_their_stream_are_called_so() -> None:
    assert _labels(a_group((0, 1), "stream 84", ranks=None, mesh=None, size=None)) == [("stream 84", 1)]


def test_families_of_one_description_get_labels_of_their_own() -> None:
    assert _labels(a_group((0, 1), "1", "mesh_dp"), a_group((0, 1, 2, 3), "2", "mesh_dp")) == [
        ("mesh_dp", 1),
        ("mesh_dp #2", 1),
    ]


def test_rows_without_a_group_are_unattributed_and_unlisted_groups_keep_their_name() -> None:
    group = a_group((0, 1), "1", "mesh_tp")
    rows = [
        a_row(group, Primitive.all_reduce, (0,)),
        a_row(None, Primitive.other, (0,)),
        a_row(None, Primitive.send, (0,), group="elsewhere"),
    ]
    labelled = label_rows(rows, find_families([group], world_size=2))
    assert [label for label, _ in labelled] == ["mesh_tp", "unattributed", "elsewhere"]


def _time(number: int, group: str | None, wire: int | None, busy: int | None) -> GroupTime:
    return GroupTime(
        rank_class=number,
        group=group,
        calls_per_step=1,
        wire_bytes_per_step=wire,
        busy_ns_per_step=busy,
        exposed_ns_per_step=busy,
    )


def test_groups_that_the_ranks_of_a_class_divide_among_them_add_up() -> None:
    # GIVEN one class of four ranks in two groups, each group's time told as a mean over all four
    groups = [a_group((0, 1), "1", "mesh_tp"), a_group((2, 3), "1", "mesh_tp")]
    document = a_document(
        groups=tuple(groups),
        traffic=(a_row(groups[0], Primitive.all_reduce, (0, 1, 2, 3)),),
        group_time=(_time(0, groups[0].id, 50, 4), _time(0, groups[1].id, 50, 4)),
    )
    sums = total_families(document, find_families(groups, world_size=4))["mesh_tp"]

    # THEN a rank sends what both groups show together
    assert (sums.wire_bytes, sums.busy_ns, sums.exposed_ns) == (100, 8, 8)
    assert sums.primitives == (Primitive.all_reduce,)
    assert (sums.has_unsized, sums.has_untimed) == (False, False)


def test_a_total_is_the_mean_over_the_ranks_that_take_part() -> None:
    # GIVEN stage 0 (ranks 0-2) with 100 bytes, stage 1 (rank 3) with 500, and stage 2 with none
    group = a_group((0, 1, 2, 3), "5", "mesh_pp")
    rows = (
        a_row(group, Primitive.send, (0, 1, 2)),
        a_row(group, Primitive.send, (3,), rank_class=1),
        a_row(None, Primitive.other, (4,), rank_class=2),
    )
    times = (_time(0, group.id, 100, 10), _time(1, group.id, 500, 10))
    document = a_document(groups=(group,), traffic=rows, group_time=times)
    sums = total_families(document, find_families([group], world_size=8))

    # THEN (3 x 100 + 500) / 4
    assert sums["mesh_pp"].wire_bytes == 200
    assert list(sums) == ["mesh_pp"]


def test_a_total_says_what_it_lacks() -> None:
    group = a_group((0, 1), "5", "mesh_tp")
    rows = (
        a_row(group, Primitive.all_reduce, (0, 1)),
        a_row(group, Primitive.other, (0, 1), wire_bytes_per_step=None, busy_ns_per_step=None, calls_with_time=0),
    )
    document = a_document(groups=(group,), traffic=rows, group_time=(_time(0, group.id, 7, None),))
    sums = total_families(document, find_families([group], world_size=8))["mesh_tp"]
    assert (sums.wire_bytes, sums.busy_ns) == (7, None)
    assert (sums.has_unsized, sums.has_untimed) == (True, True)


def test_kernels_from_before_the_recording_make_no_total_partial() -> None:
    group = a_group((0, 1), "5", "mesh_tp")
    before = an_unsized_row("NCCL", (0, 1), group=group.id, kernels_per_step=0, unlinked_kernels=3)
    rows = (a_row(group, Primitive.all_reduce, (0, 1)), before)
    document = a_document(groups=(group,), traffic=rows, group_time=(_time(0, group.id, 7, 7),))
    sums = total_families(document, find_families([group], world_size=8))["mesh_tp"]
    assert (sums.has_unsized, sums.has_untimed) == (False, False)


def test_a_long_description_loses_its_ending_and_further_ones_are_counted() -> None:
    one = a_group((0, 1), "3", "PIPELINE_MODEL_PARALLEL_GROUP")
    two = a_group((0, 2), "4", descriptions=("EMBEDDING_GROUP", "POSITION_EMBEDDING_GROUP", "undefined"))
    assert _labels(one, two) == [("PIPELINE_MODEL", 1), ("EMBEDDING +1", 1)]


def test_meshes_in_words() -> None:
    assert format_stride(mesh_of([0, 8, 16])) == "stride 8"
    assert format_stride(mesh_of([0, 1, 8, 9])) == "2x1 2x8"
    assert format_stride(mesh_of([0, 1, 5])) == "irregular"
    assert format_stride(()) == "alone"


def test_ranks_that_serve_two_axes_are_called_by_both() -> None:
    # GIVEN experts over the same ranks as the replicas
    group = a_group(tuple(range(8)), "0", "default_pg", axis=Axis.dp_replicate, roles=(Axis.ep, Axis.dp_replicate))
    assert _labels(group) == [("dp_replicate+ep", 1)]
