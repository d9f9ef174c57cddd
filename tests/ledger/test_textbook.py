"""The article's arithmetic, every printed digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.ledger.layout import Layout
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.predict import predict
from tracelens.ledger.results import Ledger

SETTINGS = [
    ("llama3-405b", {"tp": 8, "pp": 16, "dp": 128, "zero": 1, "num_microbatches": 16}),
    (
        "llama3-405b",
        {"tp": 8, "cp": 16, "pp": 16, "dp": 4, "zero": 1, "num_microbatches": 32, "seq_len": 131072},
    ),
    ("llama3-405b", {"dp": 16384, "zero": 3}),
    ("llama3-70b", {"tp": 8, "pp": 8, "dp": 16, "zero": 1, "num_microbatches": 32}),
    ("llama3-70b", {"tp": 8, "pp": 4, "dp": 32, "zero": 1, "num_microbatches": 16, "vp": 2}),
    ("llama3-70b", {"dp": 1024, "zero": 3, "hsdp_shard": 64}),
]

# what the article's script printed for them, as (axis, primitive, link, amount, unit, overlap), units of 1024
ROWS = [
    [
        ("tp", "all_gather", "nvlink", "110.25", "GiB", "partial"),
        ("tp", "reduce_scatter", "nvlink", "110.25", "GiB", "partial"),
        ("pp", "send", "ib", "1.00", "GiB", "yes"),
        ("dp_shard", "reduce_scatter", "ib", "5.86", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "5.86", "GiB", "yes"),
    ],
    [
        ("tp", "all_gather", "nvlink", "220.50", "GiB", "partial"),
        ("tp", "reduce_scatter", "nvlink", "220.50", "GiB", "partial"),
        ("cp", "send", "ib", "44.30", "GiB", "yes"),
        ("pp", "send", "ib", "2.00", "GiB", "yes"),
        ("dp_shard", "reduce_scatter", "ib", "5.81", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "5.81", "GiB", "yes"),
    ],
    [
        ("dp_shard", "reduce_scatter", "ib", "755.91", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "1.48", "TiB", "yes"),
    ],
    [
        ("tp", "all_gather", "nvlink", "140.00", "GiB", "partial"),
        ("tp", "reduce_scatter", "nvlink", "140.00", "GiB", "partial"),
        ("pp", "send", "ib", "1.00", "GiB", "yes"),
        ("dp_shard", "reduce_scatter", "ib", "1.93", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "1.93", "GiB", "yes"),
    ],
    [
        ("tp", "all_gather", "nvlink", "140.00", "GiB", "partial"),
        ("tp", "reduce_scatter", "nvlink", "140.00", "GiB", "partial"),
        ("pp", "send", "ib", "1.00", "GiB", "yes"),
        ("dp_shard", "reduce_scatter", "ib", "3.98", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "3.98", "GiB", "yes"),
    ],
    [
        ("dp_shard", "reduce_scatter", "ib", "129.36", "GiB", "yes"),
        ("dp_shard", "all_gather", "ib", "258.73", "GiB", "yes"),
        ("dp_replicate", "all_reduce", "ib", "3.85", "GiB", "yes"),
    ],
]
# params, grads, optim, total; activation of a layer; layers per stage, bubble; total, nvlink, ib; ranks
REST = [
    ["5.91 GiB", "5.91 GiB", "283.49 MiB", "12.09 GiB", "544.00 MiB", "7.9", "0.484"],
    ["5.91 GiB", "5.91 GiB", "566.97 MiB", "12.37 GiB", "544.00 MiB", "7.9", "0.319"],
    ["47.25 MiB", "47.25 MiB", "283.49 MiB", "377.98 MiB", "4.25 GiB", "126.0", "0.000"],
    ["2.05 GiB", "2.05 GiB", "788.50 MiB", "4.88 GiB", "272.00 MiB", "10.0", "0.179"],
    ["4.11 GiB", "4.11 GiB", "788.50 MiB", "8.98 GiB", "272.00 MiB", "20.0", "0.086"],
    ["2.05 GiB", "2.05 GiB", "12.32 GiB", "16.43 GiB", "2.12 GiB", "80.0", "0.000"],
]
TOTALS = [
    ("233.22 GiB", "220.50 GiB", "12.72 GiB", 16384),
    ("498.92 GiB", "441.00 GiB", "57.92 GiB", 8192),
    ("2.21 TiB", "0.00 B", "2.21 TiB", 16384),
    ("284.85 GiB", "280.00 GiB", "4.85 GiB", 1024),
    ("288.96 GiB", "280.00 GiB", "8.96 GiB", 1024),
    ("391.94 GiB", "0.00 B", "391.94 GiB", 1024),
]


def amount(count: float) -> str:
    """Binary units with two decimals, written here again so that the test has its own."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError


def textbook(setting: int) -> Ledger:
    model, degrees = SETTINGS[setting]
    return predict(load_preset(model), Layout(framework="textbook", **degrees))  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", range(6))
def test_the_traffic_of_each_setting_is_what_the_article_prints(setting: int) -> None:
    rows = [
        (row.axis, row.primitive, row.link, *amount(row.wire_bytes).split(), row.overlap)
        for row in textbook(setting).rows
    ]

    assert rows == ROWS[setting]


@pytest.mark.parametrize("setting", range(6))
def test_memory_and_bubble_of_each_setting_are_what_the_article_prints(setting: int) -> None:
    ledger = textbook(setting)
    state = ledger.state
    sizes = (state.params_bytes, state.grads_bytes, state.optim_bytes, state.total_bytes)
    printed = [amount(size) for size in (*sizes, ledger.activations.per_layer_bytes)]
    printed += [f"{ledger.activations.layers:.1f}", f"{ledger.bubble_fraction:.3f}"]

    assert printed == REST[setting]


@pytest.mark.parametrize("setting", range(6))
def test_totals_by_link_are_what_the_article_prints(setting: int) -> None:
    ledger = textbook(setting)
    by_link = {link: sum(row.wire_bytes for row in ledger.rows if row.link == link) for link in ("nvlink", "ib")}
    total = sum(row.wire_bytes for row in ledger.rows)

    printed = (amount(total), amount(by_link["nvlink"]), amount(by_link["ib"]), ledger.layout.world_size)

    assert printed == TOTALS[setting]


def test_the_seed_file_says_the_same(shared_traces: Path) -> None:
    """The numbers above were typed from this file; where it lies beside the checkout they are held to it."""
    text = (shared_traces.parent / "seed" / "ledger-expected.txt").read_text().replace(" GB", " GiB")
    text = text.replace(" MB", " MiB").replace(" TB", " TiB")
    words = text.split()
    expected = [
        word
        for rows, rest, totals in zip(ROWS, REST, TOTALS, strict=True)
        for word in (*(row[3] for row in rows), *(value.split()[0] for value in (*rest, *totals[:3])))
    ]

    assert [word for word in expected if word not in words] == []
