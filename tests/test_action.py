"""The GitHub Action: its shell steps run as a runner would, with our command and nothing else of GitHub's."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tracelens.cli.main import main

CHECKOUT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((CHECKOUT / "action.yml").read_text(encoding="utf-8"))
TRACES = CHECKOUT / "fixtures" / "fsdp2_tp2" / "rank0_trace.json.gz"


class Runner:
    """Runs the shell steps of the action one after the other, as GitHub's runner does, and keeps what they write."""

    def __init__(self, folder: Path, inputs: Mapping[str, str]) -> None:
        self.folder = folder
        defaults = {name: entry["default"] for name, entry in ACTION["inputs"].items() if "default" in entry}
        self.values = {f"inputs.{name}": value for name, value in {**defaults, **inputs}.items()}
        (folder / "bin").mkdir()
        (folder / "temp").mkdir()
        self.files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")}
        for file in self.files.values():
            file.touch()
        self.stdout = ""
        self.stderr = ""

    def command(self, name: str, script: str) -> None:
        """Put a command in the way of the real one."""
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IEXEC)

    def run(self, name: str) -> int:
        """One step; returns its exit code."""
        (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == name]
        assert step["shell"] == "bash"
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_ACTION_PATH": str(CHECKOUT),
            **{key: str(file) for key, file in self.files.items()},
            **{key: self._fill(text) for key, text in step.get("env", {}).items()},
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        self.stdout, self.stderr = done.stdout, done.stderr
        for line in self.files["GITHUB_OUTPUT"].read_text().splitlines():
            key, _, value = line.partition("=")
            self.values[f"steps.check.outputs.{key}"] = value
        return done.returncode

    def _fill(self, text: str) -> str:
        return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: self.values[found[1]], text)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "tracelens.toml"
    assert main(["check", str(TRACES), "--write-policy", str(file), "--no-progress"]) == 0
    return file


def _runner(folder: Path, **inputs: str) -> Runner:
    folder.mkdir()
    runner = Runner(folder, {"path": str(TRACES), **inputs})
    runner.command("tracelens", f'exec {sys.executable} -m tracelens "$@"')
    return runner


def test_a_good_run_passes_with_a_summary_and_a_report(policy: Path, tmp_path: Path) -> None:
    runner = _runner(tmp_path / "job", policy=str(policy))
    assert runner.run("Check the traces") == 0, runner.stderr
    report = runner.folder / "tracelens-report"
    assert sorted(file.name for file in report.iterdir()) == ["report.html", "report.json", "report.md", "report.xml"]
    assert runner.files["GITHUB_STEP_SUMMARY"].read_text().startswith("## TraceLens: passed")
    assert runner.values["steps.check.outputs.exit-code"] == "0"
    assert runner.run("Give the verdict") == 0


def test_a_limit_that_is_not_kept_fails_the_last_step_after_all_was_written(policy: Path, tmp_path: Path) -> None:
    # GIVEN a policy that expects another layout
    policy.write_text(re.sub(r"(?m)^tp = \d+", "tp = 4", policy.read_text()))
    runner = _runner(tmp_path / "job", policy=str(policy))

    # WHEN the steps run, THEN the report is written first, the annotations say why, and the last step fails
    assert runner.run("Check the traces") == 0, runner.stderr
    shown, _, annotations = (
        runner.stdout.rpartition("::stop-commands::")[2].partition("\n")[2].partition("\n::tracelens-")
    )
    assert "tp" in shown
    assert [line for line in annotations.splitlines()[1:] if line.startswith("::error title=TL201 layout-differs::")]
    assert runner.files["GITHUB_STEP_SUMMARY"].read_text().startswith("## TraceLens: failed")
    assert runner.run("Give the verdict") == 1
    assert _with(runner, fail="false").run("Give the verdict") == 0


def _with(runner: Runner, **inputs: str) -> Runner:
    runner.values.update({f"inputs.{name}": value for name, value in inputs.items()})
    return runner


def test_what_cannot_be_read_or_checked_fails_at_once(policy: Path, tmp_path: Path) -> None:
    runner = _runner(tmp_path / "job", policy=str(policy), path=str(tmp_path / "nowhere"))
    assert runner.run("Check the traces") == 2
    assert "no such file" in runner.stderr
    runner = _runner(tmp_path / "other", policy=str(tmp_path / "missing.toml"))
    assert runner.run("Check the traces") == 2
    assert "missing.toml" in runner.stderr
    assert runner.values["steps.check.outputs.exit-code"] == "2"
    assert runner.files["GITHUB_STEP_SUMMARY"].read_text() == ""


def test_inputs_are_arguments_one_a_line_and_never_run_as_commands(policy: Path, tmp_path: Path) -> None:
    # GIVEN a file whose name has blanks and would be a command, and an option on a line of its own
    odd = tmp_path / "rank0 $(touch pwned) `touch pwned`;touch pwned.json.gz"
    odd.write_bytes(TRACES.read_bytes())
    runner = _runner(tmp_path / "job", policy=str(policy), path=f"{odd}\n\n", options="--steps=3:4\n--per-rank")
    assert runner.run("Check the traces") == 0, runner.stderr
    assert not list(tmp_path.rglob("pwned"))


def test_the_package_is_installed_from_the_action_into_an_environment_of_its_own(tmp_path: Path) -> None:
    # GIVEN a Python that only notes what it is asked for, and makes another such one
    runner = _runner(tmp_path / "job", python="python3")
    note = f'echo "$@" >> {tmp_path}/asked'
    making = f"mkdir -p $3/bin && printf '#!/bin/sh\\n{note}\\n' > $3/bin/python && chmod +x $3/bin/python"
    runner.command("python3", f'{note}; if [ "$2" = venv ]; then {making}; fi')
    assert runner.run("Install TraceLens") == 0, runner.stderr
    venv = runner.folder / "temp" / "tracelens"
    assert (tmp_path / "asked").read_text().splitlines() == [f"-m venv {venv}", f"-m pip install --quiet {CHECKOUT}"]
    assert runner.files["GITHUB_PATH"].read_text().strip() == str(venv / "bin")


def _scripts(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["run"]] if isinstance(node.get("run"), str) else []
        return own + [text for value in node.values() for text in _scripts(value)]
    return [text for value in node for text in _scripts(value)] if isinstance(node, list) else []


@pytest.mark.parametrize("name", ["action.yml", "examples/ci/github.yml"])
def test_no_script_has_an_expression_in_it(name: str) -> None:
    # an expression is put into the script before a shell reads it, so that its value could be a command
    scripts = _scripts(yaml.safe_load((CHECKOUT / name).read_text(encoding="utf-8")))
    assert scripts
    assert [script for script in scripts if "${{" in script] == []


def test_the_example_for_github_gives_the_action_inputs_that_it_has() -> None:
    workflow = yaml.safe_load((CHECKOUT / "examples" / "ci" / "github.yml").read_text(encoding="utf-8"))
    (step,) = [step for step in workflow["jobs"]["benchmark"]["steps"] if "tracelens@" in step.get("uses", "")]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert {name for name, entry in ACTION["inputs"].items() if entry.get("required")} <= set(step["with"])


@pytest.mark.parametrize(("tp", "expected"), [(2, 0), (4, 1)])
def test_the_script_for_gitlab_runs_and_its_last_command_gives_the_verdict(
    tp: int, expected: int, policy: Path, tmp_path: Path
) -> None:
    policy.write_text(re.sub(r"(?m)^tp = \d+", f"tp = {tp}", policy.read_text()))
    pipeline = yaml.safe_load((CHECKOUT / "examples" / "ci" / "gitlab.yml").read_text(encoding="utf-8"))
    runner = _runner(tmp_path / "job")
    (runner.folder / "traces").mkdir()
    (runner.folder / "traces" / TRACES.name).write_bytes(TRACES.read_bytes())
    for file in tmp_path.glob("tracelens*"):
        (runner.folder / file.name).write_bytes(file.read_bytes())
    script = "\n".join(pipeline["communication"]["script"])
    environment = {**os.environ, "PATH": f"{runner.folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=runner.folder, env=environment, check=False)
    assert done.returncode == expected
    junit = pipeline["communication"]["artifacts"]["reports"]["junit"]
    assert (runner.folder / junit).is_file()
