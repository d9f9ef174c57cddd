"""The same summaries from every engine, also when a process is killed while it reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.engine import summarize_all, summarize_source
from tracelens.engines.base import Engine, Outcome
from tracelens.engines.local import InProcess, Pool
from tracelens.errors import InputError, UsageError
from tracelens.summary import FRAMES, RankSummary
from tracelens.trace.discover import Discovery, Source, discover


@pytest.fixture
def discovery(tmp_path: Path) -> Discovery:
    for rank in range(4):
        write_trace(tmp_path / f"rank{rank}.json", rank=rank)
    (tmp_path / "rank9.json").write_text("no trace")
    return discover([tmp_path])


def run(engine: Engine, sources: Sequence[Source]) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    for index, outcome in engine.run(summarize_source, sources):
        assert index not in outcomes, "each file is told once"
        outcomes[index] = outcome
    return outcomes


def assert_equal(one: Outcome, other: Outcome) -> None:
    assert type(one) is type(other) or isinstance(one, RankSummary)
    if isinstance(one, RankSummary) and isinstance(other, RankSummary):
        assert one.head == other.head
        assert all(getattr(one, name).equals(getattr(other, name)) for name in FRAMES)
    else:
        assert str(one) == str(other)


def test_a_pool_gives_what_one_process_gives(discovery: Discovery) -> None:
    here, there = run(InProcess(), discovery.sources), run(Pool(2), discovery.sources)
    assert sorted(here) == sorted(there) == [0, 1, 2, 3, 4]
    for index, outcome in here.items():
        assert_equal(outcome, there[index])
    assert isinstance(there[4], InputError)


def die_on_rank_1(source: Source) -> Outcome:
    """A reader that the system kills, as it does for want of memory."""
    if source.path.name == "rank1.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return summarize_source(source)


def test_only_the_file_that_kills_its_reader_is_lost(discovery: Discovery) -> None:
    outcomes = dict(Pool(2).run(die_on_rank_1, discovery.sources))
    assert sorted(outcomes) == [0, 1, 2, 3, 4]
    lost = outcomes[1]
    assert isinstance(lost, InputError)
    assert "rank1.json` was killed" in lost.message
    assert lost.hint is not None
    assert "memory" in lost.hint
    assert all(isinstance(outcomes[rank], RankSummary) for rank in (0, 2, 3))


_SLEEPERS = """
import sys, time
from pathlib import Path
from tracelens.engines.local import Pool
from tracelens.trace.discover import Source

def sleep(source):
    Path(sys.argv[1], source.path.name).write_text(str(__import__("os").getpid()))
    time.sleep(600)

if __name__ == "__main__":
    list(Pool(2).run(sleep, [Source(Path(name), 1) for name in ("a", "b")]))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_reader_outlives_the_command_however_it_ends(tmp_path: Path, end: signal.Signals) -> None:
    script = tmp_path / "sleepers.py"
    script.write_text(_SLEEPERS)
    notes = tmp_path / "notes"
    notes.mkdir()
    command = subprocess.Popen([sys.executable, script, notes], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: sum(bool(note.read_text()) for note in notes.iterdir()) == 2)
        readers = [int(note.read_text()) for note in notes.iterdir()]
        command.send_signal(end)
        command.wait(timeout=20)
        wait_until(lambda: not any(is_running(pid) for pid in readers))
    finally:
        command.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_file_that_cannot_be_read_is_left_out_and_named(discovery: Discovery) -> None:
    summaries = summarize_all(discovery)
    assert [summary.rank for summary in summaries.ranks] == [0, 1, 2, 3]
    assert [Path(file.path).name for file in summaries.skipped] == ["rank9.json"]


# --- a cluster --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as workers:
        yield workers


def die_once(source: Source, *, grave: Path) -> Outcome:
    """A worker that is killed in the middle, once: whoever comes next finds the grave and lives."""
    if source.path.name == "rank2.json":
        try:
            grave.touch(exist_ok=False)
        except FileExistsError:
            return summarize_source(source)
        os.kill(os.getpid(), signal.SIGKILL)
    return summarize_source(source)


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")
def test_a_cluster_gives_what_one_process_gives_even_when_a_worker_is_killed(
    cluster: object, discovery: Discovery, tmp_path: Path
) -> None:
    from tracelens.engines.cluster import Dask

    address = cluster.scheduler_address  # type: ignore[attr-defined]
    grave = tmp_path / "grave"
    there = dict(Dask(address).run(partial(die_once, grave=grave), discovery.sources))
    assert grave.exists(), "the worker was killed"
    here = run(InProcess(), discovery.sources)
    assert sorted(here) == sorted(there)
    for index, outcome in here.items():
        assert_equal(outcome, there[index])


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")
def test_a_cluster_is_reached_through_its_address(cluster: object, discovery: Discovery) -> None:
    summaries = summarize_all(discovery, scheduler=cluster.scheduler_address)  # type: ignore[attr-defined]
    assert [summary.rank for summary in summaries.ranks] == [0, 1, 2, 3]


@pytest.mark.cluster
def test_a_scheduler_file_that_is_not_there_is_a_usage_error(discovery: Discovery) -> None:
    pytest.importorskip("distributed", reason="needs the extra `cluster`")
    with pytest.raises(UsageError, match="no such scheduler file"):
        summarize_all(discovery, scheduler="nowhere.json")
