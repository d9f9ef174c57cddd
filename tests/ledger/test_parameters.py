"""Parameters are counted from sizes; published totals are the witness."""

from __future__ import annotations

import pytest

from tracelens.ledger.model_source import list_presets, load_preset
from tracelens.ledger.parameters import count_parameters

# Totals of the published checkpoints (the safetensors index on the model's page, or the paper where exact).
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "gpt2": 124_439_808,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize(("preset", "total"), PUBLISHED.items())
def test_a_preset_has_the_published_number_of_parameters(preset: str, total: int) -> None:
    assert count_parameters(load_preset(preset)).total == total


def test_deepseek_v3_has_671_billion_and_activates_37() -> None:
    # arXiv 2412.19437, abstract
    count = count_parameters(load_preset("deepseek-v3"))

    assert round(count.total / 1e9) == 671
    assert round((count.active - count.parts["embedding"]) / 1e9) == 37


def test_gpt3_has_175_billion() -> None:
    # arXiv 2005.14165, table 2.1
    assert round(count_parameters(load_preset("gpt3-175b")).total / 1e9) == 175


@pytest.mark.parametrize(
    ("preset", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # mistral.ai, "Mixtral of experts"
        ("qwen3-30b-a3b", 3.3),  # model card
        ("qwen3-235b-a22b", 22.2),
        ("mixtral-8x22b", 39.2),
    ],
)
def test_active_parameters_are_the_published_ones(preset: str, billions: float) -> None:
    assert round(count_parameters(load_preset(preset)).active / 1e9, 1) == pytest.approx(billions, abs=0.11)


def test_gpt_oss_parts_are_those_of_its_model_card() -> None:
    # arXiv 2508.10925, table 1: billions of MLP, attention, embedding + unembedding; active without embedding
    big, small = (count_parameters(load_preset(name)) for name in ("gpt-oss-120b", "gpt-oss-20b"))

    def billions(size: int) -> float:
        return round(size / 1e9, 2)

    assert billions(big.parts["experts"] + big.parts["router"]) == 114.71
    assert billions(big.parts["attention"]) == 0.96
    assert billions(big.parts["embedding"] + big.parts["head"]) == 1.16
    assert billions(big.active - big.parts["embedding"]) == 5.13
    assert billions(small.parts["experts"] + small.parts["router"]) == 19.12
    assert billions(small.parts["attention"]) == 0.64
    assert billions(small.active - small.parts["embedding"]) == 3.61


def test_every_preset_has_a_total_that_is_the_sum_of_its_parts() -> None:
    for preset in list_presets():
        count = count_parameters(load_preset(preset))
        assert sum(count.parts.values()) == count.total
        assert count.active <= count.total
