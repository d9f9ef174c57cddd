"""`tracelens analyze`, from files on disk to text and JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import jsonschema
import pytest

from tests.cli.traces import write_steps, write_trace
from tracelens.cli.main import main
from tracelens.report.schema import document_schema

Captured = pytest.CaptureFixture[str]


def analyze(capsys: Captured, *arguments: str | Path) -> dict[str, Any]:
    """The JSON document of a command that succeeds."""
    assert main(["analyze", *map(str, arguments), "--format", "json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the traces of both ranks."""
    for rank in (0, 1):
        write_trace(tmp_path / "traces" / f"rank{rank}.json", rank=rank)
    return tmp_path / "traces"


def test_the_numbers_are_those_of_the_trace(folder: Path, capsys: Captured) -> None:
    # GIVEN what tests/cli/traces.py says of the trace
    document = analyze(capsys, folder, "--jobs", "1")

    # THEN all-reduce of 2 MB in a group of two sends 2 (n-1)/n = 1 times its payload, 100 of 200 us exposed
    row = document["traffic"][0]
    assert row["ranks"] == [0, 1]
    assert (row["primitive"], row["dtype"], row["evidence"]) == ("all_reduce", "bf16", "metadata")
    assert (row["payload_bytes_per_step"], row["wire_bytes_per_step"]) == (2_000_000, 2_000_000)
    assert (row["busy_ns_per_step"], row["exposed_ns_per_step"]) == (200_000, 100_000)
    assert row["algbw_bytes_per_s"] == pytest.approx(10e9)
    assert row["busbw_bytes_per_s"] == pytest.approx(10e9)
    assert document["run"]["steps"] == [3]
    assert [(row["rank"], row["span_ns"], row["compute_ns"]) for row in document["time"]] == [
        (0, 300_000, 200_000),
        (1, 300_000, 200_000),
    ]
    assert [row["comm_overlap_pct"] for row in document["overlap"]] == [50.0, 50.0]


def test_the_document_follows_the_schema(folder: Path, capsys: Captured) -> None:
    jsonschema.validate(analyze(capsys, folder, "--jobs", "1"), document_schema())


def test_a_pool_of_processes_says_the_same(folder: Path, capsys: Captured) -> None:
    assert analyze(capsys, folder, "--jobs", "2") == analyze(capsys, folder, "--jobs", "1")


def test_summaries_say_what_their_traces_say(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["summarize", str(folder), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 0
    capsys.readouterr()
    from_summaries = analyze(capsys, tmp_path / "out")
    from_traces = analyze(capsys, folder)
    for part in ("groups", "traffic", "group_time", "time", "overlap"):
        assert from_summaries[part] == from_traces[part]


def test_any_subset_of_the_ranks_will_do(folder: Path, capsys: Captured) -> None:
    document = analyze(capsys, folder / "rank1.json")
    assert (document["run"]["ranks"], document["run"]["world_size"]) == ([1], 2)
    assert document["groups"][0]["ranks"] == [0, 1]


def test_per_rank_keeps_ranks_alike_apart(folder: Path, capsys: Captured) -> None:
    assert [row["ranks"] for row in analyze(capsys, folder, "--per-rank")["traffic"]] == [[0], [1]]


def test_steps_that_are_not_there_are_an_error_that_says_which_are(folder: Path, capsys: Captured) -> None:
    assert main(["analyze", str(folder), "--steps", "7:9"]) == 2
    error = capsys.readouterr().err
    assert "no trace has a step from 7 to 9: they hold 3 to 3" in error
    assert "hint: " in error


def test_gpus_per_node_decide_what_crosses_nodes(folder: Path, capsys: Captured) -> None:
    assert analyze(capsys, folder, "--gpus-per-node", "1")["groups"][0]["spans_nodes"] is True
    assert analyze(capsys, folder, "--gpus-per-node", "2")["groups"][0]["spans_nodes"] is False


def test_the_report_is_text_without_colour_where_no_person_looks(folder: Path, capsys: Captured) -> None:
    assert main(["analyze", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run       all 2 ranks, 2 files (")
    assert "300 µs = 200 µs compute + 100 µs exposed comm" in out
    assert "\x1b" not in out
    assert err == ""


def test_explain_adds_what_the_numbers_rest_on(folder: Path, capsys: Captured) -> None:
    assert main(["analyze", str(folder), "--explain"]) == 0
    assert "What the traffic rests on" in capsys.readouterr().out


def test_a_result_goes_to_a_file_in_the_format_of_its_suffix(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "result.json"
    assert main(["analyze", str(folder), "-o", str(target)]) == 0
    assert capsys.readouterr() == ("", f"Wrote {target}\n")
    assert json.loads(target.read_text(encoding="utf-8"))["schema_version"] == 1


def test_an_existing_file_is_refused_without_reading_a_trace(tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "result.json"
    target.write_text("mine")
    assert main(["analyze", str(tmp_path / "absent"), "-o", str(target)]) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"), [("", "empty"), ("{}", "traceEvents"), ("hello", "JSON"), ('{"traceEvents": []}', "no")]
)
def test_what_is_no_trace_is_one_error_that_names_the_file(
    content: str, message: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(content)
    assert main(["analyze", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert str(file) in err
    assert message in err
    assert "Traceback" not in err


def test_a_name_from_a_trace_can_not_steer_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    trace = write_trace(tmp_path / "rank0.json", rank=0, kernel="nccl\x1b[2J\u202eKernel")
    assert main(["analyze", str(trace), "--explain"]) == 0
    out, _ = capsys.readouterr()
    assert [char for char in out if not char.isprintable() and char != "\n"] == []


def _heed_interrupts() -> None:
    # a job in the background of a script, as this test may be, ignores interrupts, and so do its children
    signal.signal(SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("how", "code", "told"), [(SIGINT, 130, "interrupted\n"), (SIGTERM, 143, "terminated\n")])
def test_an_interrupt_ends_with_a_word_and_leaves_nothing(
    how: signal.Signals, code: int, told: str, folder: Path, tmp_path: Path
) -> None:
    # GIVEN an analysis that is held up while it reads
    target = tmp_path / "result.json"
    held_up = (
        "import sys, time; from tracelens.cli import reading; from tracelens.cli.main import main; "
        "reading.summarize_all = lambda *_, **__: (print('reading', flush=True), time.sleep(60)); "
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", held_up, "analyze", str(folder), "-o", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"

        # WHEN it is interrupted
        process.send_signal(how)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()

    # THEN it ends at once, without a traceback and without a file
    assert (process.returncode, err) == (code, told)
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


@pytest.mark.parametrize("how", [SIGINT, SIGTERM])
def test_an_interrupt_of_all_processes_while_they_start_is_told_once(how: signal.Signals, tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank{rank}.json", rank=rank)
    # GIVEN an analysis that has just begun to start its readers, as Ctrl-C at a terminal finds it
    starting = (
        "import sys; from multiprocessing import util; from tracelens.cli.main import main\n"
        "from tracelens import engine; engine.POOL_WORTH_BYTES = 0; spawn = util.spawnv_passfds\n"
        "def told(*args): pid = spawn(*args); print('started', flush=True); return pid\n"
        "util.spawnv_passfds = told\n"
        "if __name__ == '__main__': sys.exit(main(sys.argv[1:]))"
    )
    script = tmp_path / "starting.py"
    script.write_text(starting)
    process = subprocess.Popen(
        [sys.executable, str(script), "analyze", str(tmp_path), "--jobs", "2", "--no-progress"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        assert process.stdout is not None
        for _ in range(2):  # Python's own tracker of resources, and the first reader
            assert process.stdout.readline() == "started\n"
        os.killpg(process.pid, how)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    told = {SIGINT: (130, "interrupted\n"), SIGTERM: (143, "terminated\n")}
    # a reader whose parent leaves before it has told it what to do may say so itself, after the command's one line
    assert process.returncode == told[how][0]
    assert err.count(told[how][1]) == 1
    assert "KeyboardInterrupt" not in err


def test_a_saved_result_is_shown_again_in_any_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a comparison that was saved
    trace, saved = write_trace(tmp_path / "rank0.json", rank=0), tmp_path / "result.json"
    assert main(["diff", str(trace), "--against", str(trace), "-o", str(saved), "--no-progress"]) == 0

    # WHEN it is shown as Markdown and as JSON, THEN it is the same result
    capsys.readouterr()
    assert main(["analyze", str(saved), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## TraceLens: passed")
    assert main(["analyze", str(saved), "--format", "json"]) == 0
    assert capsys.readouterr().out == saved.read_text()
    assert main(["analyze", str(saved), str(trace)]) == 2
    assert "must stand alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "used"),
    [("4", [4]), ("4:4", [4]), ("4:5", [4, 5]), ("4:", [4, 5, 6]), (":4", [3, 4]), ("0:", [3, 4, 5, 6]), ("6:99", [6])],
)
def test_a_range_of_steps_is_open_where_no_number_stands(
    given: str, used: list[int], tmp_path: Path, capsys: Captured
) -> None:
    trace = write_steps(tmp_path / "rank0.json", steps=4)
    assert main(["analyze", str(trace), "--steps", given, "--format", "json", "--no-progress"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["steps"] == used


def test_an_open_range_that_no_step_is_in_says_which_there_are(tmp_path: Path, capsys: Captured) -> None:
    trace = write_steps(tmp_path / "rank0.json", steps=4)
    assert main(["analyze", str(trace), "--steps", "15:", "--no-progress"]) == 2
    assert "no trace has a step from 15 on: they hold 3 to 6" in capsys.readouterr().err


MEASURED_AGAIN = [
    ("--steps", "3"),
    ("--gpus-per-node", "4"),
    ("--link", "400"),
    ("--link-across", "50"),
    ("--kernels", "k.toml"),
    ("--ranks", "sample"),
    ("--blind",),
]


@pytest.mark.parametrize("option", MEASURED_AGAIN, ids=lambda option: option[0])
@pytest.mark.parametrize("command", [("analyze",), ("diff",), ("check", "--policy", "p.toml"), ("baseline", "write")])
def test_a_saved_result_is_not_measured_again_and_says_so(
    command: tuple[str, ...], option: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    if command[0] == "baseline" and option[0] == "--blind":
        pytest.skip("baseline has no such option")
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text("[limits]\nidle_fraction = 1.0\n", encoding="utf-8")
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["analyze", str(trace), "-o", "saved.json", "--no-progress"]) == 0
    capsys.readouterr()
    assert main([*command, "saved.json", *option]) == 2
    told = "`saved.json` is a saved result, which can't be measured again: " + option[0]
    assert told in capsys.readouterr().err


def test_beside_another_run_such_an_option_is_a_warning(tmp_path: Path, capsys: Captured) -> None:
    trace, saved = write_steps(tmp_path / "rank0.json", steps=4), tmp_path / "saved.json"
    assert main(["analyze", str(trace), "-o", str(saved), "--no-progress"]) == 0
    capsys.readouterr()
    assert main(["diff", str(saved), "--against", str(trace), "--steps", "3:4", "--no-progress"]) == 0
    assert "can't be measured again: --steps would do nothing" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_a_cache_that_is_no_folder_is_refused(place: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "taken").touch()
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["analyze", str(trace), "--cache", str(tmp_path / place), "--no-progress"]) == 2
    assert "is no folder" in capsys.readouterr().err
