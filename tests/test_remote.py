"""Traces behind URLs, from a server of our own on this machine."""

from __future__ import annotations

import functools
import gzip
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.cache import SummaryCache
from tracelens.engine import summarize_all
from tracelens.errors import InputError
from tracelens.measurement.measure import measure
from tracelens.trace.discover import discover
from tracelens.trace.summarize import summarize

pytest.importorskip("fsspec", reason="needs the extra `remote`")
pytest.importorskip("aiohttp", reason="needs the extra `remote`")
pytestmark = [pytest.mark.remote, pytest.mark.filterwarnings("default")]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path / "served"
    for rank in range(2):
        write_trace(folder / "run" / f"rank{rank}.json", rank=rank)
    packed = folder / "run" / "rank1.json"
    (folder / "run" / "rank1.json.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_a_file_behind_a_url_is_what_it_is_on_disk(served: tuple[str, Path]) -> None:
    url, folder = served
    for name in ("rank0.json", "rank1.json.gz"):
        there, here = summarize(f"{url}/run/{name}"), summarize(folder / "run" / name)
        assert there.head.path == f"{url}/run/{name}"
        assert there.calls.equals(here.calls)
        assert (there.rank, there.head.events) == (here.rank, here.head.events)


def test_a_folder_and_a_glob_behind_a_url_are_searched(served: tuple[str, Path]) -> None:
    url, _ = served
    for given in (f"{url}/run/", f"{url}/run/rank*.json*"):
        found = discover([given])
        assert [source.path.name for source in found.sources] == ["rank0.json", "rank1.json.gz"]
        measurement = measure(summarize_all(found))
        assert measurement.run.ranks == (0, 1)
        assert measurement.skew is not None


@pytest.mark.parametrize("name", ["job [1]", "lr=1e-4*", "what?"])
def test_a_name_of_glob_characters_is_a_name_where_it_is_one(name: str, tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    for rank in range(2):
        content = write_trace(tmp_path / f"rank{rank}.json", rank=rank).read_bytes()
        store.pipe_file(f"/{tmp_path.name}/{name}/rank{rank}.json", content)
    there = f"memory://{tmp_path.name}/{name}"
    for given, expected in ((there, 2), (f"{there}/rank0.json", 1), (f"memory://{tmp_path.name}/*/rank[01].json", 2)):
        found = discover([given])
        assert [source.path.name for source in found.sources] == ["rank0.json", "rank1.json"][:expected]
        assert measure(summarize_all(found, jobs=1)).run.ranks == (0, 1)[:expected]


def test_a_signed_address_is_a_file_and_no_glob(served: tuple[str, Path]) -> None:
    url, _ = served
    found = discover([f"{url}/run/rank1.json.gz?X-Amz-Signature=ab*cd[e]&X-Amz-Expires=60"])
    assert [source.path.name for source in found.sources] == ["rank1.json.gz"]
    assert measure(summarize_all(found)).run.ranks == (1,)


def test_a_summary_behind_a_url_is_read(served: tuple[str, Path]) -> None:
    url, folder = served
    kept = summarize(folder / "run" / "rank0.json")
    kept.save(folder / "rank0.tracelens")
    assert summarize(f"{url}/rank0.tracelens").head == kept.head


def test_what_is_not_there_is_an_input_error(served: tuple[str, Path]) -> None:
    url, _ = served
    with pytest.raises(InputError, match="no such file"):
        discover([f"{url}/run/rank7.json"])


def test_a_remote_trace_is_cached_until_it_changes(served: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = served
    cache = SummaryCache(tmp_path / "cache")
    first = cache.summarize(discover([f"{url}/run/rank0.json"]).sources[0].path)
    again = cache.summarize(discover([f"{url}/run/rank0.json"]).sources[0].path)
    assert again.head == first.head
    assert len(list(cache.folder.rglob("*.tracelens"))) == 1
    text = (folder / "run" / "rank0.json").read_text()
    (folder / "run" / "rank0.json").write_text(text + " " * 100)
    cache.summarize(discover([f"{url}/run/rank0.json"]).sources[0].path)
    assert len(list(cache.folder.rglob("*.tracelens"))) == 2
