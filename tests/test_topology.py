"""Meshes behind rank lists, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.topology import Mesh, format_mesh, format_ranks, mesh_of, ranks_of


@st.composite
def nested_meshes(draw: st.DrawFn) -> Mesh:
    """Meshes as layouts make them: each dimension steps over the whole of those inside it."""
    mesh: list[tuple[int, int]] = []
    reach = 1
    for _ in range(draw(st.integers(0, 4))):
        size, gap = draw(st.integers(2, 5)), draw(st.integers(1, 4))
        stride = reach * gap
        mesh.append((size, stride))
        reach = stride * size
    return tuple(mesh)


@given(nested_meshes(), st.integers(0, 100))
def test_the_mesh_of_a_meshs_ranks_gives_the_same_ranks(mesh: Mesh, first: int) -> None:
    ranks = ranks_of(mesh, first)
    found = mesh_of(ranks)
    assert found is not None
    assert ranks_of(found, first) == ranks
    assert len(found) <= len(mesh)


@given(st.sets(st.integers(0, 30), min_size=1, max_size=12))
def test_a_mesh_that_is_found_is_the_whole_truth(ranks: set[int]) -> None:
    ordered = sorted(ranks)
    mesh = mesh_of(ordered)
    assert mesh is None or ranks_of(mesh, ordered[0]) == ordered


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [
        ([0], ()),
        ([0, 1, 2, 3, 4, 5, 6, 7], ((8, 1),)),
        ([3, 11, 19, 27], ((4, 8),)),
        ([0, 1, 8, 9], ((2, 1), (2, 8))),
        ([0, 1, 4, 5, 8, 9, 12, 13], ((2, 1), (4, 4))),
        ([0, 1, 4, 5, 16, 17, 20, 21], ((2, 1), (2, 4), (2, 16))),
        ([0, 1, 5], None),
        ([0, 1, 2, 4, 5, 7], None),
        ([0, 1, 4, 5, 8], None),
        ([2, 1, 0], None),
    ],
)
def test_hand_made_cases(ranks: list[int], mesh: Mesh | None) -> None:
    assert mesh_of(ranks) == mesh


def test_meshes_as_the_json_writes_them() -> None:
    assert format_mesh(((8, 1), (2, 64))) == "[[8,1],[2,64]]"
    assert format_mesh(()) == "[]"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1, 2, 3], "0-3"),
        ([0, 1, 2, 3, 8], "0-3,8"),
        ([0, 8, 16, 24], "0,8,16,24"),
        (list(range(0, 64, 8)), "0,8,..,56 (8)"),
        (list(range(16384)), "0-16383"),
    ],
)
def test_ranks_for_people(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text
