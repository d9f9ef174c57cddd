"""What starting costs: the modules that each way in loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "pandas",
    "hta",
    "matplotlib",
    "plotly",
    "altair",
    "bokeh",
    "polars",
    "numpy",
    "rich",
    "pyarrow",
}
SCIENTIFIC = HEAVY - {"polars", "numpy", "rich"}


def loaded(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `code`."""
    listing = f"import sys; {code}; print(*{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_the_list_of_commands_loads_no_heavy_library(arguments: list[str]) -> None:
    modules = loaded(f"from tracelens.cli.main import main; main({arguments!r})")
    assert "click" in modules
    assert modules & HEAVY == set()


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import tracelens") & HEAVY == set()


@pytest.mark.parametrize("name", ["summarize", "measure", "RankSummary", "Measurement"])
def test_the_public_names_load_neither_torch_nor_pandas_nor_a_plotting_library(name: str) -> None:
    assert loaded(f"import tracelens; tracelens.{name}") & SCIENTIFIC == set()


def test_analyze_loads_neither_torch_nor_pandas_nor_a_plotting_library() -> None:
    assert loaded("import tracelens.cli.analyze") & SCIENTIFIC == set()


def test_help_imports_no_command_module() -> None:
    code = (
        "from tracelens.cli.main import main; main(['--help']); "
        "print(*(name for name in sys.modules if name.startswith('tracelens.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["tracelens.cli.main"]
