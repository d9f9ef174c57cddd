"""`tracelens predict` end to end, in one process."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli.main import main

TEXTBOOK = ["--framework", "textbook", "--zero", "1", "--tp", "8", "--pp", "16", "--dp", "128"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["predict", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert (code, err) == (0, "")
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def test_the_textbook_prints_the_article_s_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "llama3-405b", *TEXTBOOK, "--microbatches", "16")

    assert code == 0
    assert "-> 16384 GPUs" in out
    assert "params 5.91 GiB  grads 5.91 GiB  optim 283.49 MiB  total 12.09 GiB" in out
    assert "total per GPU and step: 233.22 GiB  (nvlink 220.50 GiB, ib 12.72 GiB)" in out


def test_json_has_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = document(capsys, "--model", "llama3-8b", "--framework", "torchtitan", "--dp", "8")

    keys = {"schema_version", "model", "layout", "rows", "state", "activations", "bubble_fraction", "time"}
    row_keys = {"term", "axis", "mesh", "primitive", "dtype", "phase", "stage", "calls", "elements"}
    row_keys |= {"payload_bytes", "wire_bytes", "link", "overlap", "formula", "source"}
    assert keys <= ledger.keys()
    assert row_keys <= ledger["rows"][0].keys()
    assert ledger["state"].keys() == {"params_bytes", "grads_bytes", "optim_bytes"}
    assert (ledger["schema_version"], ledger["time"]) == (1, None)


def test_one_stage_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = document(capsys, "--model", "llama3-8b", "--pp", "4", "--microbatches", "8", "--stage", "2")

    assert {row["stage"] for row in ledger["rows"]} == {2}


def test_all_stages_are_told_and_the_busiest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "llama3-405b", "--tp", "8", "--pp", "16", "--microbatches", "16")

    assert code == 0
    assert "stage 1 (the one that sends most)" in out
    assert out.count("\n15 ") == 1


def test_a_term_is_explained_with_its_numbers_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama3-405b", *TEXTBOOK, "--microbatches", "16"]

    code, out, _ = run(capsys, *arguments, "--explain", "pp.activations")

    assert code == 0
    assert "2·m·v" in out
    assert "= 2·16·1" in out
    assert "32 · 16,777,216 · 2 B = 1,073,741,824 B" in out
    assert "article, place()" in out
    assert "micro-batches per step and replica" in out


def test_a_term_that_is_none_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "llama3-8b", "--dp", "8", "--explain", "cp")

    assert (code, out) == (2, "")
    assert "no term `cp`" in err
    assert "dp.bucket0.reduce_scatter" in err


def test_an_impossible_layout_ends_with_code_2_and_names_the_factors(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "llama3-70b", "--tp", "3")

    assert (code, out) == (2, "")
    assert "heads 64 is no multiple of tp 3" in err


def test_a_world_that_does_not_fit_names_every_degree(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--model", "llama3-8b", "--tp", "2", "--dp", "8", "--world-size", "32")

    assert code == 2
    assert "tp 2 · pp 1 · cp 1 · dp 8 = 16, and the world size is 32" in err


def test_an_option_of_the_framework_changes_its_terms(capsys: pytest.CaptureFixture[str]) -> None:
    def overlap(*more: str) -> set[str]:
        ledger = document(capsys, "--model", "llama3-8b", "--dp", "8", *more)
        return {row["overlap"] for row in ledger["rows"] if row["primitive"] == "reduce_scatter"}

    assert overlap() == {"no"}
    assert overlap("--option", "overlap_grad_reduce=true") == {"yes"}


def test_an_option_that_the_framework_has_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--model", "llama3-8b", "--option", "loss_chunks=2")

    assert code == 2
    assert "megatron has no option `loss_chunks`" in err


def test_resharding_can_be_off_or_to_a_group_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--model", "llama3-8b", "--no-reshard", "--reshard", "8")

    assert code == 2
    assert "contradict" in err


def test_markdown_goes_to_a_file_by_its_suffix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "ledger.md"

    code, out, err = run(capsys, "--model", "llama3-8b", "--dp", "8", "-o", str(file))

    assert (code, out) == (0, "")
    assert f"Wrote {file}" in err
    assert "| axis | primitive |" in file.read_text()
    assert "| --- |" in file.read_text()


def test_a_page_goes_to_a_file_by_its_suffix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "ledger.html"

    code, out, err = run(capsys, "--model", "llama3-405b", *TEXTBOOK, "--microbatches", "16", "-o", str(file))

    assert (code, out) == (0, "")
    assert f"Wrote {file}" in err
    page = file.read_text()
    assert page.startswith("<!doctype html>")
    # the article's 233.22 GiB, 220.50 over NVLink and 12.72 between nodes
    assert "In all 233 GiB: 220 GiB over nvlink, 12.7 GiB over ib." in page
    assert "see docs/article.md" in page


@pytest.mark.parametrize(
    ("name", "message"), [("ledger.xml", "would be junit"), ("ledger.pdf", "cannot tell the format")]
)
def test_a_suffix_that_predict_does_not_write_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, message: str
) -> None:
    code, _, err = run(capsys, "--model", "llama3-8b", "-o", str(tmp_path / name))

    assert code == 2
    assert message in err
    assert "use .txt or .json or .html or .md" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["junit", "github"])
def test_a_format_for_verdicts_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, out, err = run(capsys, "--model", "llama3-8b", "--format", kind)

    assert (code, out) == (2, "")
    assert "'text', 'json', 'html', 'markdown'" in err


def test_a_term_is_explained_in_text_and_not_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "llama3-8b", "--dp", "8", "--explain", "dp", "--format", "html")

    assert (code, out) == (2, "")
    assert "--explain writes no page" in err


def test_a_capacity_below_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "mixtral-8x7b", "--ep", "8", "--dp", "8", "--capacity-factor", "-3")

    assert (code, out) == (2, "")
    assert "--capacity-factor" in err


def test_an_existing_file_is_kept_unless_forced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    file.write_text("mine")

    code, _, err = run(capsys, "--model", "llama3-8b", "-o", str(file))
    assert (code, file.read_text()) == (2, "mine")
    assert "--force" in err

    code, _, _ = run(capsys, "--model", "llama3-8b", "-o", str(file), "--force")
    assert code == 0
    assert json.loads(file.read_text())["model"]["name"] == "llama3-8b"


def test_time_is_estimated_only_for_a_cluster_and_says_what_it_assumes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "--model", "llama3-8b", "--dp", "8", "--cluster", "h100")

    assert code == 0
    assert "assumed: matrix products at" in out
    assert "MFU" in out


def test_an_unknown_cluster_is_answered_with_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--model", "llama3-8b", "--cluster", "tpu")

    assert code == 2
    assert "a100, b200, h100, h200" in err


MISFIT = ["--model", "llama3-70b", "--framework", "torchtitan", "--dp", "256", "--hsdp-shard", "8"]
# 70.55e9 parameters in 16 bytes over 8 ranks; 80 layers of 8192 · 8192 · (18 + 4 · 28672 / 8192) bytes, and the ends
# 8192 · (8192 + 4 · 8192 + 4 · 128256) bytes
MISFIT_BYTES = 70_553_706_496 * 16 // 8 + 80 * 8192 * 8192 * 32 + 8192 * (5 * 8192 + 4 * 128256)


def test_a_layout_that_does_not_fit_is_called_so_before_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *MISFIT, "--cluster", "h100")

    assert code == 0
    first, second = out.partition("\ntime\n\n")[2].splitlines()[:2]
    assert first == "does not fit: 296 GiB of 79.6 GiB"
    assert second.startswith("step ")
    assert second.endswith("of a layout that does not fit")


def test_memory_needed_and_there_stand_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    memory = document(capsys, *MISFIT, "--cluster", "h100")["memory"]

    assert memory["needed_bytes"] == pytest.approx(MISFIT_BYTES, abs=8)
    # nvidia-smi of an H100 SXM: 81559 MiB
    assert (memory["available_bytes"], memory["fits"], memory["stage"]) == (81559 * 2**20, False, 0)
    assert "gathered parameters" in memory["not_counted"]


def test_without_a_cluster_the_total_is_told_and_nothing_fits_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    memory = document(capsys, *MISFIT)["memory"]
    _, out, _ = run(capsys, *MISFIT)

    assert (memory["available_bytes"], memory["fits"]) == (None, None)
    assert "states and activations per GPU: 296 GiB\n" in out
    assert "not counted: gathered parameters, communication buffers" in out
    assert "fit" not in out


def test_a_layout_that_fits_says_of_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama3.2-1b", "--framework", "torchtitan", "--dp", "8", "--cluster", "h100"]
    _, out, _ = run(capsys, *arguments)

    assert " of 79.6 GiB\n" in out
    assert "does not fit" not in out
    assert document(capsys, *arguments)["memory"]["fits"] is True


@pytest.mark.parametrize("suffix", [".md", ".html"])
def test_documents_say_that_a_layout_does_not_fit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"ledger{suffix}"
    code, _, _ = run(capsys, *MISFIT, "--cluster", "h100", "-o", str(file))

    assert code == 0
    after_heading = re.split(r"## time\n|Time on [^<]*</h2>", file.read_text())[1]
    assert re.sub(r"<[^>]*>", "", after_heading).lstrip().startswith("does not fit: 296 GiB of 79.6 GiB")
    assert "of a layout that does not fit" in after_heading


def test_a_cluster_without_a_memory_leaves_open_what_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    preset = resources.files("tracelens.ledger") / "clusters" / "h100.toml"
    lines = preset.read_text(encoding="utf-8").splitlines()
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(line for line in lines if not line.startswith("memory_bytes =")))

    assert document(capsys, *MISFIT, "--cluster", str(file))["memory"]["fits"] is None


def test_every_stage_has_its_total_and_the_fullest_is_the_one_told(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = document(capsys, "--model", "llama3-8b", "--pp", "4", "--microbatches", "8")
    totals = [sum(stage["state"].values()) + stage["activations"]["total_bytes"] for stage in ledger["stages"]]

    assert [stage["total_bytes"] for stage in ledger["stages"]] == totals
    assert ledger["memory"]["needed_bytes"] == max(totals)
    assert ledger["memory"]["stage"] == totals.index(max(totals))


@pytest.mark.parametrize("chosen", ["text", "markdown", "html"])
def test_calls_over_one_rank_are_in_the_json_only(capsys: pytest.CaptureFixture[str], chosen: str) -> None:
    arguments = ["--model", "llama3-8b", "--pp", "2", "--microbatches", "2"]
    alone = {row["term"] for row in document(capsys, *arguments)["rows"] if row["axis"] == "tp"}
    _, out, _ = run(capsys, *arguments, "--format", chosen)

    assert alone
    assert "pp.forward" in out
    assert not [term for term in alone if term.rpartition(".")[0] in out]


def test_where_every_group_has_one_rank_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--model", "llama3-8b")

    assert "nothing is sent: every group has one rank" in out


def test_the_bubble_is_told_in_percent_but_by_the_textbook(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "llama3-8b", "--pp", "4", "--microbatches", "8"]

    # 3 / 11
    assert "pipeline bubble: 27.3 % of the step" in run(capsys, *arguments)[1]
    assert "pipeline bubble: 0.273 of the step" in run(capsys, *arguments, "--framework", "textbook")[1]
