"""The error boundary: what each way to end prints, where, and with which exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import tracelens
from tracelens.cli.main import COMMANDS, main
from tracelens.errors import InputError

Captured = pytest.CaptureFixture[str]
Install = Callable[[Callable[[], int | None]], None]


@pytest.fixture
def boom(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a command `boom` that does what the test wants."""

    def install(action: Callable[[], int | None]) -> None:
        module = types.ModuleType("tests.cli.boom")
        module.command = click.command("boom")(action)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, "boom", (module.__name__, "Ends as the test wants."))

    return install


def test_a_users_error_is_one_line_and_a_hint_on_stderr_and_2(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        raise InputError("rank0.json ends in the middle of an event", hint="copy it again")

    boom(action)
    assert main(["boom"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: rank0.json ends in the middle of an event\n\nhint: copy it again\n",
    )


def test_an_error_without_a_hint_is_one_line(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        raise InputError("no traces here")

    boom(action)
    assert main(["boom"]) == 2
    assert capsys.readouterr().err == "error: no traces here\n"


def test_our_own_fault_shows_the_traceback_asks_for_a_report_and_is_2(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        raise ZeroDivisionError("what we did not think of")

    boom(action)
    assert main(["boom"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "ZeroDivisionError: what we did not think of" in err
    assert "fault of tracelens" in err
    assert "please report it" in err


def test_an_interrupt_is_130_and_one_word(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        raise KeyboardInterrupt

    boom(action)
    assert main(["boom"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_sigterm_is_143_and_one_word_and_cleans_up(boom: Install, capsys: Captured) -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def action() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(True)

    boom(action)
    assert main(["boom"]) == 143
    assert capsys.readouterr() == ("", "terminated\n")
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interrupt_that_a_library_made_an_error_of_is_no_fault_of_ours(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("while a class was built") from interrupt

    boom(action)
    assert main(["boom"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_chooses_between_0_and_1_by_what_it_returns(boom: Install, code: int) -> None:
    boom(lambda: code)
    assert main(["boom"]) == code


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["analze"], "no such command `analze`", "did you mean `analyze`?"),
        (["no-such-command"], "no such command `no-such-command`", f"known: {', '.join(COMMANDS)}"),
        (["analyze"], "Missing argument 'PATH...'", "tracelens analyze --help"),
        (["analyze", "x", "--steps", "5:3"], "ends before it begins", "tracelens analyze --help"),
        (["analyze", "x", "--steps", "all"], "is no range of steps", "tracelens analyze --help"),
        (["analyze", "x", "--jobs", "0"], "Invalid value for '--jobs'", "tracelens analyze --help"),
        (["analyze", "x", "--format", "pdf"], "Invalid value for '--format'", "tracelens analyze --help"),
        (["analyze", "x", "--no-such-option"], "No such option", "tracelens analyze --help"),
        (["summarize", "x"], "Missing option '-o'", "tracelens summarize --help"),
    ],
)
def test_wrong_usage_is_2_and_says_where_the_help_is(
    arguments: list[str], message: str, hint: str, capsys: Captured
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.endswith(f"\n\nhint: {hint}\n")


def test_without_a_command_the_help_is_shown(capsys: Captured) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tracelens, version {tracelens.__version__}\n"


def test_a_reader_that_closes_early_is_no_error() -> None:
    # GIVEN a pipe that nobody reads
    reading, writing = os.pipe()
    os.close(reading)

    # WHEN more than it could hold is written
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "schema"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)

    # THEN nobody hears of it
    assert (done.returncode, done.stderr) == (0, "")


FULL = Path("/dev/full")
FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "fsdp2_tp2" / "rank0_trace.json.gz"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def told_with(stdout: str, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout is redirected as a shell would."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {stdout}', "sh", sys.executable, "-m", "tracelens", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@needs_full
@pytest.mark.parametrize(
    "arguments",
    [["schema"], ["--help"], ["--version"], ["predict", "--help"], ["analyze", str(FIXTURE), "--jobs", "1"]],
)
def test_a_full_disk_behind_stdout_is_one_line_and_2(arguments: list[str]) -> None:
    code, err = told_with(f"> {FULL}", *arguments)
    assert code == 2
    assert err == (
        "error: cannot write to stdout: No space left on device\n\nhint: make room there, or send it elsewhere\n"
    )


@needs_full
def test_a_full_disk_behind_stderr_leaves_the_exit_code() -> None:
    assert told_with(f"2> {FULL}", "analyze", "nowhere.json") == (2, "")


@pytest.mark.parametrize("command", ["schema", "analyze", "summarize"])
def test_a_closed_stdout_is_one_line_and_2(command: str, tmp_path: Path) -> None:
    arguments = {
        "schema": [],
        "analyze": [str(FIXTURE), "--jobs", "1", "--no-progress"],
        "summarize": [str(FIXTURE), "--jobs", "1", "--no-progress", "-o", str(tmp_path / "summaries")],
    }
    code, err = told_with(">&-", command, *arguments[command])
    assert (code, err) == (2, "error: cannot write to stdout: it is closed\n\nhint: give -o FILE\n")


def test_an_error_of_the_system_that_no_one_caught_is_our_fault(boom: Install, capsys: Captured) -> None:
    def action() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    boom(action)
    assert main(["boom"]) == 2
    assert "fault of tracelens" in capsys.readouterr().err


def test_a_terminal_without_unicode_gets_escapes_and_no_crash() -> None:
    code = (
        "import sys; from tracelens.cli.main import main; from tracelens.cli.output import write_stdout; "
        "main(['--version']); write_stdout('12.0 \\u00b5s\\n')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"12.0 \\xb5s")


def test_the_module_runs_as_the_command_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "analyze", str(tmp_path / "absent.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: no such file or folder")


def test_a_path_in_an_error_steers_no_terminal_and_no_ci_runner(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "nowhere\x1b[31m\n::error::owned ##[error]owned.json"]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert [line for line in told.splitlines() if line.startswith("::") or "##[" in line] == []
