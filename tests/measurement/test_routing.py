"""Tokens whose spread is known are found to be spread so, and what waiting they explain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.measurement.ranks import US, Rank, meet, world
from tracelens.engine import summarize_all
from tracelens.many_ranks import Routing
from tracelens.measurement.measure import measure
from tracelens.measurement.routing import keep_groups
from tracelens.summary import LocalGroup
from tracelens.trace.discover import discover

WIDTH = 4096


def exchange(ranks: Sequence[Rank], sent: Sequence[Sequence[int]], **fields: object) -> None:
    """An all-to-all: `sent[i][j]` tokens from rank i to rank j."""
    end = max(rank.now_ns for rank in ranks) + 20 * US
    for i, rank in enumerate(ranks):
        out = [row[i] for row in sent]
        rank.call(
            rank.now_ns, end, primitive="all_to_all", in_split_list=list(sent[i]), out_split_list=out,
            in_elements=WIDTH * sum(sent[i]), out_elements=WIDTH * sum(out),
            payload_bytes=2 * WIDTH * sum(sent[i]), phase="forward", **fields,
        )  # fmt: skip


def mirror(sent: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*sent, strict=True)]


def layers(
    ranks: Sequence[Rank], spreads: Sequence[Sequence[Sequence[int]]], *, ns_per_token: int, idle_ns: int = 0
) -> None:
    """Dispatch, experts, combine; `idle_ns` more for rank 0 that has nothing to do with tokens."""
    for sent in spreads:
        for rank in ranks:
            rank.work(50 * US)
        exchange(ranks, sent)
        for i, rank in enumerate(ranks):
            rank.work(ns_per_token * sum(row[i] for row in sent))
            rank.now_ns += idle_ns if i == 0 else 0
        exchange(ranks, mirror(sent))


def routing(ranks: Sequence[Rank], groups: Sequence[LocalGroup]) -> Routing | None:
    return measure([rank.summary(groups) for rank in ranks]).routing


EVEN = [[10, 10, 10, 10]] * 4
TO_2 = [[10, 10, 40, 10]] * 4
"""Everybody sends four times as many tokens to rank 2: 160 of 280."""


def test_loads_and_their_imbalance_are_those_of_the_splits() -> None:
    ranks, groups = world(4)
    layers(ranks, [EVEN, TO_2], ns_per_token=1000)
    found = routing(ranks, groups)
    assert found is not None
    assert (found.dispatches, found.combines, found.unpaired) == (2, 2, 0)
    first, second = found.calls
    assert (first.received, first.imbalance, first.layer) == ((40, 40, 40, 40), 1.0, 0)
    assert (second.received, second.sent, second.unit) == ((40, 40, 160, 40), (70, 70, 70, 70), "tokens")
    assert second.imbalance == pytest.approx(160 / 70)
    assert (second.busiest, second.layer) == (2, 1)
    assert found.imbalance_max == pytest.approx(160 / 70)


def test_splits_that_count_elements_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # as keys and values are exchanged, in one dimension: rows of one element are no tokens
    monkeypatch.setattr("tests.measurement.test_routing.WIDTH", 1)
    ranks, groups = world(4)
    layers(ranks, [EVEN], ns_per_token=1000)
    found = routing(ranks, groups)
    assert found is not None
    assert [(call.unit, call.sent) for call in found.calls] == [("elements", (40, 40, 40, 40))]


def test_the_routing_of_some_groups_claims_no_waiting_of_others() -> None:
    ranks, groups = world(4)
    layers(ranks, [EVEN, TO_2], ns_per_token=1000)
    found = routing(ranks, groups)
    assert found is not None
    group = found.calls[0].group
    one_of = msgspec.structs.replace(found, calls=(found.calls[0], msgspec.structs.replace(found.calls[1], group="b")))
    assert keep_groups(found, lambda name: name == group) is found
    assert keep_groups(found, lambda name: name != group) is None
    kept = keep_groups(one_of, lambda name: name == "b")
    assert kept is not None
    assert (kept.dispatches, kept.combines, kept.busiest) == (1, 1, 2)
    assert kept.imbalance_median == kept.imbalance_max == pytest.approx(160 / 70)
    assert (kept.combine_wait_ns, kept.explained_wait_fraction) == (None, None)


def test_waiting_for_the_busiest_rank_is_explained_by_its_load() -> None:
    ranks, groups = world(4)
    layers(ranks, [TO_2, EVEN, TO_2], ns_per_token=1000)
    found = routing(ranks, groups)
    assert found is not None
    assert found.combine_wait_ns == 2 * 3 * 120 * US
    assert found.explained_wait_fraction == pytest.approx(1.0)
    assert found.busiest == 2


def test_waiting_that_has_other_reasons_is_not_explained() -> None:
    # GIVEN rank 0 idles 480 us before the combine; rank 2 computes 120 us more than the others
    ranks, groups = world(4)
    layers(ranks, [TO_2], ns_per_token=1000, idle_ns=480 * US)
    found = routing(ranks, groups)
    assert found is not None
    # THEN ranks 1 and 3 wait 480 us and rank 2 360, of which loads explain 120 us on each of the first two
    assert found.combine_wait_ns == (480 + 480 + 360) * US
    assert found.explained_wait_fraction == pytest.approx(240 / 1320)


def test_equal_exchanges_without_splits_are_no_experts() -> None:
    """Ulysses: all-to-alls around attention, of equal parts."""
    ranks, groups = world(4)
    for _ in range(4):
        meet(ranks, 20 * US, primitive="all_to_all", in_elements=4096, out_elements=4096)
    assert routing(ranks, groups) is None


def test_an_uneven_exchange_that_nothing_mirrors_is_no_dispatch() -> None:
    """Embeddings go to the ranks of their samples and do not come back this way."""
    ranks, groups = world(4)
    for _ in range(3):
        exchange(ranks, TO_2)
    assert routing(ranks, groups) is None


def test_weights_sent_beside_tokens_are_part_of_the_same_dispatch() -> None:
    ranks, groups = world(4)
    exchange(ranks, TO_2)
    exchange(ranks, TO_2)
    exchange(ranks, mirror(TO_2))
    found = routing(ranks, groups)
    assert found is not None
    assert (found.dispatches, found.combines, found.unpaired) == (1, 1, 0)


def test_with_members_missing_there_is_no_imbalance_to_tell() -> None:
    ranks, groups = world(4)
    layers(ranks, [TO_2], ns_per_token=1000)
    found = routing(ranks[:3], groups)
    assert found is not None
    assert found.calls[0].imbalance is None


def test_the_dispatches_of_a_real_schedule_are_counted(shared_traces: Path) -> None:
    """Six layers of experts in forward and in backward, on 8 ranks."""
    found = measure(summarize_all(discover([shared_traces / "framework" / "ep8_dropless"]))).routing
    assert found is not None
    assert (found.dispatches, found.combines, found.unpaired) == (12, 12, 0)
    assert {(call.phase, call.layer) for call in found.calls} == {
        (phase, layer) for phase in ("forward", "backward") for layer in range(6)
    }
