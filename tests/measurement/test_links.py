"""Bandwidth by group and size, and what is said beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.measurement.build import group
from tests.measurement.ranks import US, Rank, meet, world
from tracelens.many_ranks import LinkUse
from tracelens.measurement import links
from tracelens.measurement.alignment import align
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.measure import measure
from tracelens.measurement.skew import time_calls
from tracelens.summary import LocalGroup
from tracelens.trace.summarize import summarize

MIB = 1 << 20


def uses(
    ranks: Sequence[Rank], groups: Sequence[LocalGroup], device: str = "NVIDIA H100 80GB HBM3", **given: int
) -> list[LinkUse]:
    summaries = [rank.summary(groups, devices=(device,)) for rank in ranks]
    measurement = measure(summaries, **given)  # type: ignore[arg-type]
    assert measurement.links is not None
    return list(measurement.links)


def test_bandwidth_is_told_by_size_and_from_transfer_not_from_waiting() -> None:
    # GIVEN small calls of 4 KiB in 20 us and large ones of 64 MiB in 400 us, with a rank that is always late
    ranks, groups = world(4)
    for _ in range(5):
        ranks[3].work(500 * US)
        meet(ranks, 20 * US, payload_bytes=4096)
        ranks[3].work(500 * US)
        meet(ranks, 400 * US, payload_bytes=64 * MIB)
    # THEN they are told apart, and 500 us of waiting are in neither
    small, large = uses(ranks, groups, gpus_per_node=8)
    assert [(use.from_bytes, use.calls, use.transfer_ns) for use in (small, large)] == [
        (4096, 5, 20 * US),
        (64 * MIB, 5, 400 * US),
    ]
    assert large.algbw_bytes_per_s == pytest.approx(64 * MIB / 400e-6)
    assert large.busbw_bytes_per_s == pytest.approx(1.5 * 64 * MIB / 400e-6)
    # AND the large ones stand beside the line rate of the device, the small ones are said to be latency
    assert (large.link_bytes_per_s, large.caveats) == (450e9, ())
    assert large.link_fraction == pytest.approx(1.5 * 64 * MIB / 400e-6 / 450e9)
    assert small.caveats == (links.SMALL,)


def test_across_nodes_no_single_link_is_claimed() -> None:
    ranks, groups = world(4)
    meet(ranks, 400 * US, payload_bytes=64 * MIB)
    [use] = uses(ranks, groups, gpus_per_node=2)
    bus = 1.5 * 64 * MIB / 400e-6
    assert (use.spans_nodes, use.link_bytes_per_s, use.link_fraction) == (True, None, None)
    assert use.caveats == (links.ACROSS_NODES,)
    # 4 ranks on 2 nodes: a third of the bus bandwidth crosses
    assert use.inter_node_bytes_per_s == pytest.approx(bus / 3)


def test_more_than_the_line_rate_is_explained() -> None:
    ranks, groups = world(8)
    meet(ranks, 200 * US, payload_bytes=64 * MIB)
    [use] = uses(ranks, groups, gpus_per_node=8)
    assert use.link_fraction is not None
    assert use.link_fraction > 1
    assert use.caveats == (links.ABOVE_LINE_RATE,)


def test_missing_members_are_said_and_too_few_tell_nothing() -> None:
    ranks, groups = world(8)
    meet(ranks, 400 * US, payload_bytes=64 * MIB)
    [half] = uses(ranks[:4], groups, gpus_per_node=8)
    assert (half.complete, half.caveats) == (False, (links.INCOMPLETE,))
    assert uses(ranks[:3], groups, gpus_per_node=8) == []


def test_a_given_line_rate_goes_before_the_preset() -> None:
    pairs = [group("a", (0, 1))]
    ranks = [Rank(0), Rank(1)]
    meet(ranks, 100 * US, payload_bytes=MIB)
    summaries = [rank.summary(pairs) for rank in ranks]
    table = GroupTable(summaries)
    alignment = align(summaries, table)
    assert alignment is not None
    timed = time_calls(summaries, alignment)
    [use] = links.measure_links(timed, alignment, table.groups(8), ("NVIDIA H100",), 8, {"inside": 25e9})
    assert use.link_bytes_per_s == 25e9


@pytest.mark.parametrize("other", ["NVIDIA A100-SXM4-40GB", "NVIDIA L40S"])
def test_devices_of_several_kinds_have_no_preset(other: str) -> None:
    ranks, groups = world(2)
    meet(ranks, 100 * US, payload_bytes=MIB)
    at_once: dict[str, Any] = {"start_ns": 1_751_410_836 * 10**9, "end_ns": 1_751_410_837 * 10**9}
    devices = ("NVIDIA H200", other)
    mixed = [rank.summary(groups, devices=(name,), **at_once) for rank, name in zip(ranks, devices, strict=True)]
    measurement = measure(mixed, gpus_per_node=8)
    assert measurement.links is not None
    assert measurement.links[0].link_bytes_per_s is None


@pytest.mark.parametrize(
    "card",
    [
        "Tesla V100-PCIE-32GB", "Tesla V100S-PCIE-32GB", "Tesla V100-FHHL-16GB", "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe", "NVIDIA A100X", "NVIDIA A800 80GB PCIe", "NVIDIA A800 40GB Active", "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H800 PCIe", "NVIDIA RTX A1000", "NVIDIA L40S", "NVIDIA L4",
        "NVIDIA A40", "NVIDIA A10", "NVIDIA A10G", "Tesla T4", "NVIDIA GeForce RTX 4090", "AMD Instinct MI210",
        "AMD Instinct MI300A", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "GRID A100-10C",
    ],
)  # fmt: skip
def test_a_card_that_may_sit_on_pcie_has_no_known_link(card: str) -> None:
    ranks, groups = world(2)
    meet(ranks, 400 * US, payload_bytes=64 * MIB)
    [use] = uses(ranks, groups, card, gpus_per_node=8)
    assert (use.link_bytes_per_s, use.link_fraction, use.caveats) == (None, None, (links.LINK_UNKNOWN,))


@pytest.mark.parametrize(
    ("card", "rate"),
    [
        ("Tesla V100-SXM2-32GB", 150e9), ("NVIDIA A100-SXM4-80GB", 300e9), ("A100-SXM4-40GB", 300e9),
        ("NVIDIA A800-SXM4-80GB", 200e9), ("NVIDIA H800", 200e9), ("NVIDIA H100 80GB HBM3", 450e9),
        ("NVIDIA H20", 450e9), ("NVIDIA H200", 450e9), ("NVIDIA GH200 480GB", 450e9),
        ("NVIDIA GH200 144G HBM3e", 450e9), ("AMD Instinct MI250X / MI250", 400e9), ("NVIDIA B200", 900e9),
        ("NVIDIA GB200", 900e9), ("NVIDIA B300 SXM6 AC", 900e9), ("AMD Instinct MI300X", 448e9),
    ],
)  # fmt: skip
def test_a_module_that_is_sold_with_links_stands_beside_them(card: str, rate: float) -> None:
    """150, 300, 450 and 900 GB/s are half of the 300, 600, 900 and 1,800 GB/s in NVIDIA's data sheets."""
    ranks, groups = world(2)
    meet(ranks, 4000 * US, payload_bytes=64 * MIB)
    [use] = uses(ranks, groups, card, gpus_per_node=8)
    assert (use.link_bytes_per_s, use.caveats) == (rate, ())


def test_a_real_run_on_pcie_cards_is_held_against_no_nvlink(shared_traces: Path) -> None:
    summaries = [summarize(path) for path in sorted((shared_traces / "megatron_tp2").glob("*.trace.json.gz"))]
    assert {device for summary in summaries for device in summary.head.devices} == {"Tesla V100-PCIE-32GB"}
    told = measure(summaries).links
    assert told
    assert {use.link_bytes_per_s for use in told} == {None}
    given = measure(summaries, links={"inside": 16e9}).links
    assert given
    assert {use.link_bytes_per_s for use in given} == {16e9}
