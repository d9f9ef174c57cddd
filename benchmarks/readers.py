"""Ways to read one trace, each run in a process of its own: `python benchmarks/readers.py READER TRACE`.

Prints one line of JSON: seconds of processor time of the reader (imports apart), and the peak of resident memory
of its process and its children, MiB. Imports stand inside the functions: a reader's process loads its own only.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

Read = Callable[[], object]


def tracelens_whole(path: Path) -> Read:
    """Our whole job: from the file to the summary of its rank."""
    from tracelens.trace.summarize import summarize

    return lambda: summarize(path)


def floor(path: Path) -> Read:
    """The least that a typed reader can do: the same fields, and nothing done with them."""
    import msgspec

    from tracelens.trace.schema import Event

    decoder = msgspec.json.Decoder(msgspec.defstruct("Trace", [("traceEvents", list[Event])]))
    return lambda: decoder.decode(_inflated(path))


def json_load(path: Path) -> Read:
    """The standard library alone, nothing done with what it gives."""
    return lambda: json.loads(_inflated(path))


def hta_overlap(path: Path) -> Read:
    """Holistic Trace Analysis: load, and the overlap of communication with compute."""
    from hta.trace_analysis import TraceAnalysis

    def read() -> object:
        analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)
        return analysis.get_comm_comp_overlap(visualize=False)

    return read


def whole_dicts(path: Path) -> Read:
    """What AMD's TraceLens does first: orjson of the whole, then a walk over dictionaries that sorts and links them."""
    import orjson

    def read() -> object:
        events = orjson.loads(_inflated(path))["traceEvents"]
        by_category: dict[str, list[Any]] = defaultdict(list)
        by_correlation: dict[int, list[Any]] = defaultdict(list)
        for identity, event in enumerate(events):
            event["UID"] = identity
            if "dur" in event:
                event["t_end"] = event["ts"] + event["dur"]
            by_category[event.get("cat", "")].append(event)
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                by_correlation[correlation].append(event)
        for one in by_category.values():
            one.sort(key=lambda event: event.get("ts", 0))
        return by_category, by_correlation

    return read


READERS: dict[str, Callable[[Path], Read]] = {
    "tracelens": tracelens_whole,
    "floor": floor,
    "json": json_load,
    "dicts": whole_dicts,
    "hta": hta_overlap,
}


def _inflated(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        from isal import igzip
    except ModuleNotFoundError:
        import gzip

        return gzip.decompress(path.read_bytes())
    with igzip.open(path) as file:
        return bytes(file.read())


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak_mib() -> float:
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def main() -> None:
    """Entry point."""
    read = READERS[sys.argv[1]](Path(sys.argv[2]))
    before, started = _processor_seconds(), time.perf_counter()
    read()
    spent, wall = _processor_seconds() - before, time.perf_counter() - started
    # what a reader prints itself stands on lines before ours
    print(json.dumps({"seconds": spent, "wall": wall, "mib": _peak_mib()}))


if __name__ == "__main__":
    main()
