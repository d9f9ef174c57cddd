"""What options and a trace say of one job and can't both be."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.comparison.contradictions import contradict_layout, contradict_model
from tracelens.inferred import InferredConfig
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model_source import load_model

SEEN = InferredConfig(world_size=8, tp=2, pp=1, cp=1, dp=4, sharding="zero3", hidden=4096, layers_per_stage=3)


@pytest.mark.parametrize(
    ("given", "layout", "told"),
    [
        ({"tp": 2}, Layout(tp=2, dp=4), []),
        ({"tp": 4}, Layout(tp=4, dp=2), ["you gave tp 4, the traffic shows tp 2"]),
        (
            {"pp": 2},
            Layout(pp=2, dp=4),
            [
                "you gave pp 2, the traffic shows pp 1",
                "tp was left out and so is 1, the traffic shows tp 2",
            ],
        ),
        ({"zero": 1}, Layout(tp=2, dp=4), ["you gave zero 1, the traffic shows zero 3"]),
        (
            {"framework": "ddp"},
            Layout(tp=2, dp=4, framework=Framework.ddp),
            ["you gave framework ddp, which shards nothing, the traffic shows zero 3"],
        ),
        # what the trace does not tell contradicts nothing, nor does a layout that came from metadata
        ({"vp": 2, "grad_dtype": "bf16"}, Layout(tp=4, dp=2), []),
    ],
)
def test_a_layout_that_the_traffic_shows_to_be_another(given: dict[str, Any], layout: Layout, told: list[str]) -> None:
    assert list(contradict_layout(given, layout, SEEN, 8)) == told
    assert list(contradict_layout(given, layout, None, 8)) == []


def test_a_model_of_other_sizes_than_the_trace_shows() -> None:
    eight = load_model("llama3-8b")  # 32 layers of 4096
    assert list(contradict_model(eight, SEEN)) == [
        "the trace shows hidden 4096, 3 layers; llama3-8b has hidden 4096, 32 layers"
    ]
    assert list(contradict_model(eight, InferredConfig(hidden=8192))) == [
        "the trace shows hidden 8192; llama3-8b has hidden 4096"
    ]
    assert list(contradict_model(eight, InferredConfig(hidden=4096, layers_per_stage=7, pp=4))) == [
        "the trace shows hidden 4096, about 28 layers; llama3-8b has hidden 4096, 32 layers"
    ]


@pytest.mark.parametrize(
    "config",
    [
        None,
        InferredConfig(layers_per_stage=3, pp=1),
        InferredConfig(hidden=4096),
        InferredConfig(hidden=4096, layers_per_stage=3),
        InferredConfig(hidden=4096, layers_per_stage=32, pp=1),
        InferredConfig(hidden=4096, layers_per_stage=8, pp=4),
        # 32 = 7 + 7 + 6 + 6 + 6
        InferredConfig(hidden=4096, layers_per_stage=6, pp=5),
    ],
)
def test_what_is_unknown_or_alike_contradicts_no_model(config: InferredConfig | None) -> None:
    assert list(contradict_model(load_model("llama3-8b"), config)) == []
