"""Imports go down only: the contract in pyproject.toml, held by import-linter."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def _contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, object]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def test_imports_keep_the_contract() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_contract_names_every_part_of_the_package() -> None:
    # `capture` hangs beside the layers
    layers = str(next(contract["layers"] for contract in _contracts() if contract["type"] == "layers"))
    parts = {path.stem for path in (CHECKOUT / "tracelens").iterdir() if path.suffix == ".py" or path.is_dir()}
    beside = {"__init__", "__main__", "__pycache__", "cache", "engine", "engines", "sampling", "capture", "py"}
    assert [part for part in sorted(parts - beside) if f"tracelens.{part}" not in layers] == []
