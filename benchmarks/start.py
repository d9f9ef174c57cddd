"""How long it takes to start: `tracelens --help` beside an interpreter that does nothing.

    python benchmarks/start.py

Aim: `tracelens --help` under 0.3 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 15
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import click": ["-c", "import click"],
    "import tracelens": ["-c", "import tracelens"],
    "tracelens --help": ["-m", "tracelens", "--help"],
    "tracelens analyze --help": ["-m", "tracelens", "analyze", "--help"],
}


def measure(arguments: list[str]) -> list[float]:
    """Seconds of each run, after one that warms the caches."""
    seconds = []
    for _ in range(RUNS + 1):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def main() -> None:
    """Print least, middle and ratio to an empty interpreter of every command."""
    empty = statistics.median(measure(COMMANDS["python -c pass"]))
    print(f"{'':26}{'min s':>8}{'median s':>10}{'ratio':>8}")
    for name, arguments in COMMANDS.items():
        seconds = measure(arguments)
        middle = statistics.median(seconds)
        print(f"{name:26}{min(seconds):8.3f}{middle:10.3f}{middle / empty:8.1f}")


if __name__ == "__main__":
    main()
