"""How reading and measuring grow with the number of ranks: `python benchmarks/scale.py {traces,summaries}`.

`traces` writes ranks of a given size and reads more and more of them: time and memory should be straight lines, memory
a flat one. `summaries` makes summaries of a large job (TP 8, PP 4, the rest DP) and measures the group table, the
classes and everything else. Time is that of the processors: other work on the machine changes the wall clock only.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl
import zstandard

from tracelens.engine import summarize_all
from tracelens.inference.infer import infer
from tracelens.measurement.classes import find_classes
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.measure import measure
from tracelens.measurement.traffic import measure_traffic
from tracelens.results import RanksSource
from tracelens.summary import LocalGroup, RankSummary
from tracelens.trace.discover import Discovery, discover
from tracelens.trace.summarize import summarize

GENERATOR = Path(__file__).resolve().parents[1] / "fixtures" / "generate.py"
TP, PP = 8, 4


def generate(*arguments: str) -> None:
    """Run the generator of traces."""
    subprocess.run([sys.executable, str(GENERATOR), *arguments], check=True)


# --- traces -----------------------------------------------------------------------------------------------


def write_ranks(folder: Path, count: int, megabytes: int) -> None:
    """Ranks of one size: the recording of one, renumbered in blocks of 8."""
    generate("big", "-o", str(folder), "--size-mb", str(megabytes), "--compression", "zst")
    [source] = folder.glob("*.zst")
    text = zstandard.ZstdDecompressor().stream_reader(source.read_bytes()).read()
    source.unlink()
    packer = zstandard.ZstdCompressor(level=1)
    for rank in range(count):
        block = [rank // 8 * 8 + place for place in range(8)]
        named = text.replace(b'"rank": 0', b'"rank": %d' % rank).replace(
            b'"world_size": 8', b'"world_size": %d' % count
        )
        for form in (", ", ","):
            own, old = form.join(map(str, block)), form.join(map(str, range(8)))
            named = named.replace(f"[{old}]".encode(), f"[{own}]".encode())
        (folder / f"rank{rank}.json.zst").write_bytes(packer.compress(named))


def read_ranks(folder: Path, counts: Sequence[int], jobs: int) -> None:
    """Read more and more ranks, each number in a process of its own."""
    print(f"{'ranks':>6} {'cpu s':>8} {'cpu s/rank':>10} {'wall s':>8} {'reader MiB':>10} {'parent MiB':>10}")
    for count in counts:
        code = f"from benchmarks.scale import read; read({str(folder)!r}, {count}, {jobs})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=GENERATOR.parents[1])


def read(folder: str, count: int, jobs: int) -> None:
    """Read the first ranks of a folder and print what it took."""
    found = discover([folder])
    begin = time.perf_counter()
    summaries = summarize_all(Discovery(found.sources[:count], ()), jobs=jobs)
    wall = time.perf_counter() - begin
    assert len(summaries.ranks) == count
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    readers, parent = (
        resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
    )
    print(f"{count:>6} {cpu:>8.1f} {cpu / count:>10.3f} {wall:>8.1f} {readers:>10} {parent:>10}", flush=True)


# --- summaries --------------------------------------------------------------------------------------------


def stages() -> list[RankSummary]:
    """The summary of one rank of each of four stages."""
    with tempfile.TemporaryDirectory() as folder:
        generate("pp4_1f1b", "-o", folder, "--micro-batches", "64", "--torch", "2.8")
        return [summarize(file) for file in sorted(Path(folder).glob("rank*"))[:PP]]


def renumber(stage: RankSummary, rank: int, world: int) -> bytes:
    """The file of a rank of the large job that does what the rank of its stage does."""
    width = world // PP
    place = rank % width
    chain = tuple(place + width * number for number in range(PP))
    tensor = tuple(range(rank - rank % TP, rank - rank % TP + TP))
    data = tuple(rank // width * width + rank % TP + TP * number for number in range(width // TP))
    everyone = tuple(range(world))

    def regroup(number: int, group: LocalGroup) -> LocalGroup:
        ranks = everyone if group.description == "default_pg" else (chain, tensor, data)[number % 3]
        return msgspec.structs.replace(
            group, name=f"{number}:{ranks[0]}", ranks=ranks, size=len(ranks), ranks_source=RanksSource.metadata
        )

    used = sorted(stage.calls.filter(pl.col("primitive").is_in(["send", "recv"]))["group"].drop_nulls().unique())
    groups = tuple(
        regroup(0 if index in used else 1 + index % 2, group) for index, group in enumerate(stage.head.groups)
    )
    head = msgspec.structs.replace(
        stage.head, rank=rank, world_size=world, groups=(*groups, world_group(world)), path=f"rank{rank}.json"
    )
    old = {peer: number for number, peer in enumerate(sorted(range(PP)))}
    calls = stage.calls.with_columns(
        peer=pl.col("peer").replace_strict({p: chain[n] for p, n in old.items()}, default=None, return_dtype=pl.Int64)
    )
    return RankSummary(head=head, calls=calls, **{name: getattr(stage, name) for name in FRAMES_KEPT}).to_bytes()


FRAMES_KEPT = ("kernels", "links", "segments", "compute", "budget", "shapes", "matmuls")


def world_group(world: int) -> LocalGroup:
    """The group of all, which every rank knows."""
    return LocalGroup(
        name="world", description="default_pg", size=world, ranks=tuple(range(world)), ranks_source=RanksSource.metadata
    )


def measure_summaries(count: int, *, whole: bool) -> None:
    """Make the summaries of a job and measure it."""
    templates = stages()
    calls = [len(stage.calls) for stage in templates]
    print(f"{count} ranks, {min(calls)} to {max(calls)} calls each")
    width = count // PP
    files = [renumber(templates[rank // width], rank, count) for rank in timed("(made)", count)]
    total = time.process_time()
    ranks = [RankSummary.from_bytes(files.pop(0)) for _ in timed("read", count)]
    begin = time.process_time()
    table = GroupTable(ranks)
    report("group table", begin)
    begin = time.process_time()
    steps = [list(range(len(rank.head.steps))) for rank in ranks]
    rows, _ = measure_traffic(ranks, table, steps)
    report("traffic of every rank", begin)
    begin = time.process_time()
    classes = find_classes(rows, len(ranks))
    report(f"classes ({max(classes) + 1})", begin)
    begin = time.process_time()
    layout = infer(ranks).config
    report(f"inference (tp {layout.tp}, pp {layout.pp})", begin)
    report("all of these", total)
    if whole:
        begin = time.process_time()
        measurement = measure(ranks)
        report(f"measured wholly, with waiting ({len(measurement.skew or ())} rows)", begin)


def timed(what: str, count: int) -> Iterator[int]:
    """Count, and report when done."""
    begin = time.process_time()
    yield from range(count)
    report(what, begin)


def report(what: str, begin: float) -> None:
    """One line: seconds of processors, and the peak of memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"  {what:<40} {time.process_time() - begin:>8.1f} cpu s   peak {peak} MiB", flush=True)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["traces", "summaries"])
    parser.add_argument("--ranks", type=int, help="256 traces, or 16384 summaries")
    parser.add_argument("--size-mb", type=int, default=20, help="of a trace, 10^6 bytes of JSON")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--whole", action="store_true", help="measure the summaries wholly")
    given = parser.parse_args()
    if given.what == "summaries":
        measure_summaries(given.ranks or 16384, whole=given.whole)
        return
    count = given.ranks or 256
    with tempfile.TemporaryDirectory() as folder:
        write_ranks(Path(folder), count, given.size_mb)
        read_ranks(Path(folder), [n for n in (1, 16, 64, 256, 1024) if n < count] + [count], given.jobs)


if __name__ == "__main__":
    main()
