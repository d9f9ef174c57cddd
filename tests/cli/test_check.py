"""`tracelens check` and `baseline`, from files on disk to exit codes."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.traces import write_trace
from tracelens.checks.policy import Expect, load_policy
from tracelens.cli.main import main

Captured = pytest.CaptureFixture[str]
FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "fsdp2_tp2"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of the fixture: enough to check, quick to read."""
    folder = tmp_path_factory.mktemp("traces")
    for rank in (0, 1):
        shutil.copy(FIXTURE / f"rank{rank}_trace.json.gz", folder)
    return folder


@pytest.fixture(scope="module")
def policy(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What --write-policy proposes for them."""
    path = tmp_path_factory.mktemp("policy") / "tracelens.toml"
    assert run("check", traces, "--write-policy", path) == 0
    return path


def run(command: str, *arguments: str | Path) -> int:
    return main([command, *map(str, arguments), "--jobs", "1", "--no-progress"])


def changed(policy: Path, old: str, new: str, folder: Path) -> Path:
    """The policy with some text changed, its baseline beside it."""
    text = policy.read_text(encoding="utf-8")
    assert old in text
    shutil.copy(policy.with_suffix(".baseline.json"), folder)
    path = folder / policy.name
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def check(capsys: Captured, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = run("check", *arguments, "--format", "json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def errors(document: dict[str, Any]) -> list[str]:
    return [one["name"] for one in document["findings"] if one["severity"] == "error"]


def test_a_run_keeps_the_policy_that_was_proposed_from_it(traces: Path, policy: Path, capsys: Captured) -> None:
    code, document = check(capsys, traces, "--policy", policy)
    assert code == 0
    assert errors(document) == []
    assert not {one["code"] for one in document["findings"]} & {"TL301", "TL302", "TL401", "TL411", "TL412"}


def test_the_proposal_expects_the_layout_and_keeps_tensor_parallelism_in_a_node(policy: Path) -> None:
    proposed = load_policy(policy)
    assert (proposed.expect.tp, proposed.expect.dp, proposed.expect.sharding) == (2, 4, "zero3")
    assert proposed.limits.node_local == ("tp",)
    assert proposed.reference.baseline == "tracelens.baseline.json"
    assert policy.with_suffix(".baseline.json").stat().st_size < 20_000


def test_another_layout_than_expected_fails(traces: Path, policy: Path, tmp_path: Path, capsys: Captured) -> None:
    code, document = check(capsys, traces, "--policy", changed(policy, "tp = 2", "tp = 8", tmp_path))
    assert code == 1
    assert errors(document) == ["layout-differs"]


def test_other_calls_than_the_baseline_fail(traces: Path, policy: Path, tmp_path: Path, capsys: Captured) -> None:
    here = changed(policy, "tp = 2", "tp = 2", tmp_path)
    baseline = here.with_suffix(".baseline.json")
    baseline.write_text(baseline.read_text(encoding="utf-8").replace('"calls": 14.0', '"calls": 13.0'), "utf-8")
    code, document = check(capsys, traces, "--policy", here)
    assert code == 1
    # all-gathers and reduce-scatters of tensor parallelism
    assert errors(document) == ["calls-differ", "calls-differ"]


def test_a_ledger_may_be_the_reference(traces: Path, tmp_path: Path, capsys: Captured) -> None:
    model = tmp_path / "model.toml"
    model.write_text(
        "layers = 3\nhidden = 4096\nheads = 32\nkv_heads = 8\nffn = 14336\nvocab = 32000\nseq_len = 8192\n",
        encoding="utf-8",
    )
    path = tmp_path / "tracelens.toml"
    layout = 'framework = "torchtitan", tp = 2, dp = 4, option = ["loss_chunks=0"]'
    path.write_text(
        f'[reference]\nmodel = "{model.name}"\nlayout = {{ {layout} }}\n[limits]\nunexplained_bytes_fraction = 0.001\n',
        encoding="utf-8",
    )
    assert check(capsys, traces, "--policy", path)[0] == 0
    path.write_text(path.read_text().replace("tp = 2, dp", 'grad_dtype = "bf16", tp = 2, dp'), encoding="utf-8")
    code, document = check(capsys, traces, "--policy", path)
    assert code == 1
    assert errors(document) == ["bytes-unexplained"]
    assert document["comparison"]["rows"][0]["why"] == "gradients are reduced in fp32, not bf16"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("idle_fraction", "idel_fraction", "unknown key `limits.idel_fraction`\n\nhint: did you mean `idle_fraction`?"),
        ("tracelens.baseline.json", "gone.json", "cannot read baseline"),
        ("schema_version = 1", "schema_version = 9", "a policy of schema version 9"),
    ],
)
def test_a_broken_policy_is_an_error_that_names_what_is_wrong(
    old: str, new: str, told: str, traces: Path, policy: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert run("check", traces, "--policy", changed(policy, old, new, tmp_path)) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ("framwork = 'ddp'", "unknown key `reference.layout.framwork`\n\nhint: did you mean `framework`?"),
        ("tp = 'two'", "reference.layout: `tp` must be a whole number"),
    ],
)
def test_a_layout_with_a_mistake_is_an_error(
    layout: str, told: str, traces: Path, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "tracelens.toml"
    path.write_text(f"[reference]\nmodel = 'llama3-8b'\nlayout = {{ {layout} }}\n", encoding="utf-8")
    assert run("check", traces, "--policy", path) == 2
    assert told in capsys.readouterr().err


def test_without_a_policy_one_is_told_how_to_write_it(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("check", traces) == 2
    assert "--write-policy" in capsys.readouterr().err


def test_a_policy_is_not_overwritten_unless_forced(traces: Path, policy: Path, capsys: Captured) -> None:
    assert run("check", traces, "--write-policy", policy) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert run("check", traces, "--write-policy", policy, "--force") == 0


def test_a_baseline_is_written_once_and_updated_with_a_word_on_what_changed(tmp_path: Path, capsys: Captured) -> None:
    base = tmp_path / "base.json"
    folder = write_trace(tmp_path / "run" / "rank0.json", rank=0).parent
    assert run("baseline", "update", folder, "-o", base) == 2
    assert "baseline write" in capsys.readouterr().err
    assert run("baseline", "write", folder, "-o", base) == 0
    assert run("baseline", "write", folder, "-o", base) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert run("baseline", "update", folder, "-o", base) == 0
    assert "calls and bytes are unchanged" in capsys.readouterr().err
    base.write_text(base.read_text(encoding="utf-8").replace('"calls": 1.0', '"calls": 3.0'), encoding="utf-8")
    assert run("baseline", "update", folder, "-o", base) == 0
    assert "all_reduce of bf16 in world [[2,1]]: 3 → 1 call," in capsys.readouterr().err


@pytest.mark.parametrize("report", [("-o", "x.json"), ("--format", "json")])
def test_writing_a_policy_writes_no_report_and_says_so(
    report: tuple[str, ...], traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("check", traces, "--write-policy", "p.toml", *report) == 2
    assert "--write-policy writes a policy and no report" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_several_folders_are_runs_of_their_own(tmp_path: Path) -> None:
    folders = [write_trace(tmp_path / name / "rank0.json", rank=0).parent for name in ("a", "b", "c")]
    assert run("baseline", "write", *folders, "-o", tmp_path / "base.json") == 0
    baseline = json.loads((tmp_path / "base.json").read_text(encoding="utf-8"))
    assert baseline["runs"] == [str(folder) for folder in folders]
    assert baseline["time"][0]["values"] == 3


@pytest.mark.parametrize("command", [("check", "--write-policy", "p.toml"), ("baseline", "write", "-o", "base.json")])
def test_runs_of_different_jobs_are_refused_with_what_differs(
    command: tuple[str, ...], shared_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Eight ranks both: four shards of two, and eight shards."""
    monkeypatch.chdir(tmp_path)
    other = shared_traces / "framework" / "fsdp2_8"
    assert run(*command, FIXTURE, other) == 2
    told = f"`{other}` is of another job than `{FIXTURE}`: tp 1, not 2; dp 8, not 4; "
    assert told in (error := capsys.readouterr().err)
    assert "groups [[8,1]] more and groups [[2,1]], [[4,2]] less" in error
    assert not list(tmp_path.iterdir())


def test_a_policy_of_two_runs_expects_what_both_settle_and_both_keep_it(
    traces: Path, tmp_path: Path, capsys: Captured
) -> None:
    """A saved result without its inference settles nothing of the layout."""
    bare = tmp_path / "bare.json"
    assert run("analyze", traces, "-o", bare) == 0
    document = json.loads(bare.read_text(encoding="utf-8"))
    bare.write_text(json.dumps({**document, "inference": None}), encoding="utf-8")
    path = tmp_path / "p.toml"
    assert run("check", traces, bare, "--write-policy", path) == 0
    assert "left out of [expect], since not every run settles it: " in capsys.readouterr().err
    assert load_policy(path).expect == Expect()
    for good in (traces, bare):
        code, document = check(capsys, good, "--policy", path)
        assert (code, {one["verdict"] for one in document["limits"]}) == (0, {"kept"})


def test_the_command_line_reference_goes_before_the_policys(
    traces: Path, policy: Path, tmp_path: Path, capsys: Captured
) -> None:
    folder = write_trace(tmp_path / "other" / "rank0.json", rank=0).parent
    base = tmp_path / "base.json"
    assert run("baseline", "write", folder, "-o", base) == 0
    capsys.readouterr()
    code, document = check(capsys, traces, "--policy", policy, "--baseline", base)
    assert code == 1
    assert errors(document) == ["layout-differs"]


def test_a_saved_result_is_checked_like_its_traces(
    traces: Path, policy: Path, tmp_path: Path, capsys: Captured
) -> None:
    saved = tmp_path / "result.json"
    assert run("analyze", traces, "-o", saved) == 0
    capsys.readouterr()
    from_traces, from_result = check(capsys, traces, "--policy", policy), check(capsys, saved, "--policy", policy)
    assert from_result[0] == 0
    assert from_result[1]["findings"] == from_traces[1]["findings"]


def test_a_place_that_cannot_be_written_is_an_error(traces: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("baseline", "write", traces, "-o", tmp_path / "none" / "base.json") == 2
    assert "cannot write" in capsys.readouterr().err
    assert run("check", traces, "--write-policy", tmp_path / "none" / "p.toml") == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_policy_that_limits_nothing_is_refused_for_every_run_would_pass(
    traces: Path, policy: Path, tmp_path: Path, capsys: Captured
) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert run("check", traces, "--policy", empty) == 2
    assert "limits nothing" in capsys.readouterr().err
    assert run("check", traces, "--policy", empty, "--baseline", policy.with_suffix(".baseline.json")) == 0


@pytest.mark.parametrize(
    ("change", "code", "label", "told"),
    [
        (("tp = 2", "tp = 2"), 0, "passed", "37 limits kept"),
        (
            ("exposed_comm_fraction = 0.", "exposed_comm_fraction = 0.00"),
            0,
            "passed, with warnings",
            "1 of 37 limits is exceeded (limits.exposed_comm_fraction: 8.0 %, at most ",
        ),
        (("tp = 2", "tp = 4"), 1, "failed", "1 of 37 limits is broken (expect.tp: 2, exactly 4)"),
    ],
)
def test_every_format_begins_with_a_verdict_that_agrees_with_the_exit_code(
    change: tuple[str, str], code: int, label: str, told: str, tmp_path: Path, capsys: Captured
) -> None:
    assert run("check", FIXTURE, "--write-policy", tmp_path / "p.toml") == 0
    here = tmp_path / "p.toml"
    here.write_text(here.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    begins = {
        "text": f"{label}: {told}",
        "markdown": f"## TraceLens: {label}\n\n**{told}",
        "github": f"::{'error' if code else 'notice' if label == 'passed' else 'warning'} "
        f"title=tracelens%3A {label.replace(',', '%2C')}::{told.replace('%', '%25')}",
    }
    capsys.readouterr()
    for name, text in begins.items():
        assert run("check", FIXTURE, "--policy", here, "--format", name) == code
        # the terminal wraps its lines; annotations are in the order of their kind
        out = capsys.readouterr().out.replace("\n  ", " ")
        assert text in out if name == "github" else out.startswith(text), name
    assert check(capsys, FIXTURE, "--policy", here)[1]["passed"] is (code == 0)
    assert run("check", FIXTURE, "--policy", here, "--format", "html") == code
    assert f"<b>{label[:1].upper()}{label[1:]}</b> {told}" in capsys.readouterr().out
    assert run("check", FIXTURE, "--policy", here, "--format", "junit") == code
    assert ("<failure" in capsys.readouterr().out) is (code == 1)


HANDWRITTEN = FIXTURE.parent / "handwritten"


def is_read(case: Path) -> bool:
    truth = tomllib.loads((case / "truth.toml").read_text(encoding="utf-8"))
    return bool(truth.get("expect", {}).get("outcome") != "refused")


@pytest.mark.parametrize("good", [FIXTURE, *filter(is_read, sorted(HANDWRITTEN.iterdir()))], ids=lambda path: path.name)
def test_every_run_keeps_the_policy_that_was_written_from_it(good: Path, tmp_path: Path, capsys: Captured) -> None:
    keeps_its_own_policy(good, tmp_path, capsys)


def test_every_real_run_keeps_the_policy_that_was_written_from_it(
    shared_traces: Path, tmp_path: Path, capsys: Captured
) -> None:
    apart = {"edge", "framework", "handmade_dp2_v100"}  # the last takes long to read
    real = [path for path in shared_traces.iterdir() if path.is_dir() and path.name not in apart]
    for good in sorted([*real, *(shared_traces / "framework").iterdir()]):
        keeps_its_own_policy(good, tmp_path, capsys)


def keeps_its_own_policy(good: Path, folder: Path, capsys: Captured) -> None:
    path = folder / f"{good.name}.toml"
    assert run("check", good, "--write-policy", path) == 0, good.name
    code, document = check(capsys, good, "--policy", path)
    unkept = [one for one in document["limits"] if one["verdict"] != "kept"]
    assert (code, unkept) == (0, []), good.name
    assert document["limits"], good.name


def test_a_run_whose_kernels_carry_no_record_is_held_to_its_time(
    shared_traces: Path, tmp_path: Path, capsys: Captured
) -> None:
    """DeepEP's kernels have no record, however it is recorded; the step has its time all the same."""
    path = tmp_path / "time.toml"
    assert run("check", shared_traces / "deepseek_v3_train", "--write-policy", path) == 0
    assert "only time has limits" in capsys.readouterr().err
    limits = load_policy(path).limits
    # 4.16 ms of 129 are exposed, and a point of room is added
    assert limits.exposed_comm_fraction == pytest.approx(4.16 / 129 + 0.01, abs=2e-4)
