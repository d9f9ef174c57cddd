"""Tokens of a micro-batch against what the runs were started with, and the products that show sequences."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from benchmarks.inference_megatron import Megatron
from tracelens.inference.infer import infer
from tracelens.inference.products import read_batched_products
from tracelens.summary import SHAPES
from tracelens.trace.summarize import summarize

CHECKOUT = Path(__file__).resolve().parents[2]
FRAMEWORK = CHECKOUT.parent / "shared" / "traces" / "framework"
CASES = sorted(path.parent for path in FRAMEWORK.glob("*/truth.json")) if FRAMEWORK.is_dir() else []
GENERATED = CHECKOUT / "fixtures" / "fsdp2_tp2"


def _check(folder: Path, micro_batch: int, seq_len: int) -> None:
    summaries = [summarize(path) for path in sorted(folder.glob("*.json.gz"))]
    for ranks in (summaries, summaries[:1], summaries[-1:]):
        for blind in (False, True):
            config = infer(ranks, blind=blind).config
            assert config.tokens_per_microbatch == micro_batch * seq_len
            assert config.micro_batch in (None, micro_batch)
            assert config.seq_len in (None, seq_len)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_tokens_are_those_of_the_run_from_all_ranks_and_from_one(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    _check(folder, truth["micro_batch"], truth["seq"])


def test_tokens_of_the_generated_traces_are_those_written() -> None:
    truth = tomllib.loads((GENERATED / "truth.toml").read_text(encoding="utf-8"))["config"]
    _check(GENERATED, truth["micro_batch"], truth["seq_len"])


@pytest.mark.parametrize("name", ["mg_tp4sp_dp2", "mg_pp4_1f1b_tp2"])
def test_products_of_attention_tell_the_length_of_sequences(name: str, shared_traces: Path) -> None:
    path = shared_traces / "framework" / name / "rank0.json.gz"
    config = infer([summarize(path)], blind=True).config
    assert (config.micro_batch, config.seq_len) == (1, 256)


def test_batches_of_products_are_read_with_and_without_an_addend() -> None:
    rows = [
        ("aten::bmm", "[[4,256,64],[4,64,128]]", 2),
        ("aten::baddbmm", "[[6,8,9],[6, 8, 3],[6, 3, 9],[],[]]", 1),
        ("aten::baddbmm", "[[9],[6, 8, 3],[6, 3, 9]]", 1),
        ("aten::bmm", None, 1),
        ("aten::mm", "[[4,5],[5,6]]", 1),
    ]
    shapes = pl.DataFrame(rows, schema=SHAPES, orient="row")
    assert read_batched_products(shapes) == {(4, 256, 64, 128), (6, 8, 3, 9)}


def test_experts_multiplied_in_groups_may_be_cut_by_tensor_parallelism() -> None:
    grouped = pl.DataFrame([("aten::_grouped_mm", "[[512,256],[8,256,64]]", 4)], schema=SHAPES, orient="row")
    (summary,) = Megatron(tp=2, dp=4).summaries()
    dense, cut = infer([summary], blind=True), infer([replace(summary, shapes=grouped)], blind=True)
    assert dense.config.etp == 1
    assert cut.config.etp is None
    assert cut.undetermined["etp"] == (1, 2)


def test_hidden_is_solved_from_the_part_of_the_batch_that_a_context_rank_keeps() -> None:
    found = infer(Megatron(tp=2, cp=2, dp=2, hidden=384).summaries(), blind=True)
    assert found.config.hidden == 384
