"""Groups that are alike are one family; what a rank sends is summed over its rows."""

from __future__ import annotations

from tests.report.build import a_group, a_row
from tracelens.collectives import Primitive
from tracelens.report.families import find_families, format_stride, label_rows, total
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


def test_a_total_is_for_one_rank_and_says_what_it_lacks() -> None:
    # GIVEN ranks 0 and 1 sending 100 and, rank 0 alone, 30 more, and a row without bytes
    rows = [
        a_row(None, Primitive.all_reduce, (0, 1), wire_bytes_per_step=100, busy_ns_per_step=8),
        a_row(None, Primitive.send, (0,), wire_bytes_per_step=30, busy_ns_per_step=None),
        a_row(None, Primitive.other, (0, 1), wire_bytes_per_step=None, busy_ns_per_step=2),
    ]
    sums = total(rows)
    assert (sums.wire_bytes, sums.busy_ns) == (115, 10)
    assert (sums.has_unsized, sums.has_untimed) == (True, True)


def test_nothing_known_totals_to_unknown() -> None:
    sums = total([a_row(None, Primitive.other, (), wire_bytes_per_step=None, busy_ns_per_step=None)])
    assert (sums.wire_bytes, sums.busy_ns) == (None, None)


def test_meshes_in_words() -> None:
    assert format_stride(mesh_of([0, 8, 16])) == "stride 8"
    assert format_stride(mesh_of([0, 1, 8, 9])) == "2x1 2x8"
    assert format_stride(mesh_of([0, 1, 5])) == "irregular"
    assert format_stride(()) == "alone"
