"""`tracelens toys`: right numbers, traces with their truth, and nothing left behind however it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.test_toy_fixtures import measured_rows, true_rows
from tracelens.cli.main import main

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")
COMMAND = (sys.executable, "-m", "tracelens", "toys")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """All five exercises, traced, in one run."""
    folder = tmp_path_factory.mktemp("toys") / "traces"
    done = subprocess.run([*COMMAND, "all", "--trace", folder], capture_output=True, text=True, check=False)
    return done, folder


@pytest.mark.torch
@needs_torch
def test_the_five_exercises_give_the_articles_numbers(
    traced: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = traced
    assert done.returncode == 0, done.stderr
    out = re.sub(" +", " ", done.stdout)
    for line in (
        "all-reduce [60.0, 64.0, 68.0, 72.0, 76.0, 80.0, 84.0, 88.0]",
        "all-gather, halved [30.0, 32.0, 34.0, 36.0, 38.0, 40.0, 42.0, 44.0]",
        "Z after g [[7.0, 20.0]]",
        "dX after f [[5.0, 11.0]]",
        "K/V blocks in order [0, 3, 2, 1] [1, 0, 3, 2] [2, 1, 0, 3] [3, 2, 1, 0]",
        "tokens sent [32]",
        "article: tokens received [42, 32, 13, 41]",
        "article: busiest over mean [1.31]",
        "article: capacity of an expert [20]",
    ):
        assert f" {line}\n" in out, line
    assert out.endswith("\n136 numbers on 4 ranks: all as they must be\n")


@pytest.mark.torch
@needs_torch
def test_the_cost_of_the_capture_is_measured(traced: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    found = re.findall(r"a step: [\d.]+ ms, under the capture [\d.]+ ms", traced[0].stdout)
    assert len(found) == 5


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize("exercise", ["zero", "tp", "cp", "pp", "ep"])
def test_analyze_reads_a_fresh_trace_as_its_truth(
    exercise: str, traced: tuple[subprocess.CompletedProcess[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = traced[1] / exercise
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"rank{rank}.json.gz" for rank in range(4)),
        "truth.toml",
    ]
    assert main(["analyze", str(folder), "--per-rank", "--format", "json", "--no-progress"]) == 0
    truth = tomllib.loads((folder / "truth.toml").read_text(encoding="utf-8"))
    assert measured_rows(json.loads(capsys.readouterr().out)) == true_rows(truth)


@pytest.mark.torch
@needs_torch
@pytest.mark.slow
def test_the_further_systems_equal_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "further", "--trace", tmp_path / "traces"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in sorted((tmp_path / "traces").iterdir()):
        assert main(["analyze", str(folder), "--per-rank", "--format", "json", "--no-progress"]) == 0
        truth = tomllib.loads((folder / "truth.toml").read_text(encoding="utf-8"))
        assert measured_rows(json.loads(capsys.readouterr().out)) == true_rows(truth), folder.name


@pytest.mark.torch
@needs_torch
def test_a_number_that_differs_ends_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracelens.capture.toys import launch
    from tracelens.capture.toys.exercise import Check
    from tracelens.capture.toys.worker import Report

    right = Check(name="dX", value="[5.0]", expected="[5.0]", passed=True)
    wrong = Check(name="dX", value="[4.0]", expected="[5.0]", passed=False)
    reports = (Report(name="tp", checks=(right,)), Report(name="tp", checks=(wrong,)))
    outcome = launch.Outcome(name="tp", title="f and g", reports=reports)
    monkeypatch.setattr(launch, "run_exercises", lambda names, trace_folder=None: [outcome])

    assert main(["toys", "tp"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERS on rank 1: [4.0], must be [5.0]" in out
    assert "2 numbers on 4 ranks: 1 of them DIFFER" in out


def test_without_torch_one_line_says_which_extra() -> None:
    without = "import sys; sys.modules['torch'] = None; from tracelens.cli.main import main; "
    done = subprocess.run(
        [sys.executable, "-c", without + "sys.exit(main(['toys', 'zero']))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: tracelens.capture needs the extra `torch`\n")
    assert 'hint: in the clone: pip install ".[torch]"\n' in done.stderr


@pytest.mark.torch
@needs_torch
def test_a_folder_with_content_is_not_written_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").touch()
    assert main(["toys", "zero", "--trace", str(tmp_path)]) == 2
    assert "which is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The further exercises, traced, in a session of their own, with all four processes at work."""
    process = subprocess.Popen(
        [*COMMAND, "further", "--trace", tmp_path / "traces"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(_made(tmp_path / "tmp"))},
    )
    _wait_until(lambda: len(list((tmp_path / "tmp").glob("*/process*.log"))) == 4)
    yield process
    for pid in members(process.pid):
        with contextlib.suppress(ProcessLookupError):  # it may end by itself just now
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _wait_until(condition: object, *, seconds: float = 90) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == session and state != "Z":
                found.append(int(entry.name))
    return found


def _writing_to(log: Path, session: int) -> list[int]:
    """Processes of a session whose standard error is a file."""
    return [pid for pid in members(session) if os.path.realpath(f"/proc/{pid}/fd/2") == str(log)]


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.mark.torch
@needs_torch
@needs_proc
@pytest.mark.parametrize("how", ["ctrl-c", "terminated"])
def test_an_end_from_outside_leaves_no_process_and_no_file(
    how: str, running: subprocess.Popen[str], tmp_path: Path
) -> None:
    if how == "ctrl-c":
        os.killpg(running.pid, signal.SIGINT)
    else:
        os.kill(running.pid, signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == ((130, "interrupted\n") if how == "ctrl-c" else (143, "terminated\n"))
    _wait_until(lambda: not members(running.pid), seconds=20)
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    # torch's compiler may have made its own cache there by then, which is not ours to delete
    left = [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor")]
    assert left == []


@pytest.mark.torch
@needs_torch
@needs_proc
def test_a_process_that_dies_ends_the_others(running: subprocess.Popen[str], tmp_path: Path) -> None:
    log = next((tmp_path / "tmp").glob("*/process2.log"))
    _wait_until(lambda: _writing_to(log, running.pid))
    os.kill(_writing_to(log, running.pid)[0], signal.SIGKILL)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert "error: the process of rank 2 died with exit code -9" in err
    _wait_until(lambda: not members(running.pid), seconds=20)  # the system takes a moment to end them
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


@pytest.mark.torch
@needs_torch
@needs_proc
def test_processes_die_with_a_command_that_is_killed(running: subprocess.Popen[str]) -> None:
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    _wait_until(lambda: not members(running.pid), seconds=20)
