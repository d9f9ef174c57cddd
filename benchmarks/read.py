"""Speed and memory of reading against other readers, as ratios in one run: `python benchmarks/read.py`.

Each reader runs on one core in a process of its own; of several rounds the best one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from isal import igzip

CHECKOUT = Path(__file__).resolve().parents[1]
REAL_TRACES = CHECKOUT.parent / "shared" / "traces"
TITLES = {
    "tracelens": "TraceLens, the whole job",
    "floor": "floor: inflate and typed decode",
    "json": "json.loads alone",
    "dicts": "orjson and a walk over dicts",
    "hta": "HTA: load and overlap",
}
FOLDER_FILES = 4


class Result(NamedTuple):
    """The best of all rounds of one reader."""

    seconds: float
    mib: float


def run_reader(reader: str, trace: Path, python: str) -> Result | str:
    """Measure one reader once; the reason when it can't."""
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(core), python, str(CHECKOUT / "benchmarks" / "readers.py"), reader, str(trace)],
        env={**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    measured = json.loads(done.stdout.splitlines()[-1])
    return Result(measured["seconds"], measured["mib"])


def compare_readers(trace: Path, rounds: int, pythons: dict[str, str]) -> dict[str, Result | str]:
    """All readers on one trace, in turn, so that what slows the machine down slows all of them."""
    results: dict[str, Result | str] = {}
    for _ in range(rounds):
        for reader in TITLES:
            if isinstance(results.get(reader), str):
                continue
            new, old = run_reader(reader, trace, pythons.get(reader, sys.executable)), results.get(reader)
            if isinstance(new, Result) and isinstance(old, Result):
                new = Result(min(new.seconds, old.seconds), min(new.mib, old.mib))
            results[reader] = new
    return results


def render(trace: Path, results: dict[str, Result | str]) -> Iterator[str]:
    """A Markdown table of one trace."""
    with igzip.open(trace) as file:
        size_mb = sum(map(len, iter(lambda: file.read(1 << 20), b""))) / 1e6
    floor, own = results["floor"], results["tracelens"]
    yield f"\n{trace.name}: {size_mb:.0f} MB of JSON\n"
    yield "| reader | processor seconds | × floor | × TraceLens | peak MiB | × TraceLens |"
    yield "|---|---:|---:|---:|---:|---:|"
    for reader, result in results.items():
        if isinstance(result, str) or isinstance(floor, str) or isinstance(own, str):
            yield f"| {TITLES[reader]} | not run: {result} |"
            continue
        yield (
            f"| {TITLES[reader]} | {result.seconds:.2f} | {result.seconds / floor.seconds:.2f}"
            f" | {result.seconds / own.seconds:.2f} | {result.mib:.0f} | {result.mib / own.mib:.1f} |"
        )


def time_folder(trace: Path, jobs: int) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, of `tracelens summarize` on a folder of several ranks."""
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(FOLDER_FILES):
            shutil.copy(trace, Path(folder) / f"rank{rank}_trace.json.gz")
        command = [sys.executable, "-m", "tracelens", "summarize", folder, "-o", f"{folder}/out", "--jobs", str(jobs)]
        before, started = os.times(), time.perf_counter()
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, check=True, capture_output=True)
        wall, after = time.perf_counter() - started, os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    return wall, user + system


def generate(folder: Path, size_mb: int) -> Path:
    """A trace of a given size."""
    script = str(CHECKOUT / "fixtures" / "generate.py")
    subprocess.run([sys.executable, script, "big", "-o", str(folder), "--size-mb", str(size_mb)], check=True)
    return next(folder.glob("*.json.gz"))


def largest_real() -> Path | None:
    """The largest of the traces of others beside the checkout, by compressed size."""
    return max(REAL_TRACES.rglob("*.json.gz"), key=lambda path: path.stat().st_size, default=None)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, help="traces to read; by default a generated and a real one")
    parser.add_argument("--size-mb", type=int, default=200, help="size of the generated trace, 10^6 bytes of JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", help="interpreter that has HTA; by default this one")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        generated = generate(folder, arguments.size_mb)
        real = largest_real()
        pythons = {"hta": arguments.hta_python or sys.executable}
        for trace in arguments.traces or [generated, *([real] if real else [])]:
            print("\n".join(render(trace, compare_readers(trace, arguments.rounds, pythons))), flush=True)
        print(f"\n{FOLDER_FILES} such files, seconds by the clock (of the processor):")
        for jobs in (1, 2):
            wall, spent = min(time_folder(generated, jobs) for _ in range(arguments.rounds))
            print(f"--jobs {jobs}: {wall:.1f} ({spent:.1f})", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
