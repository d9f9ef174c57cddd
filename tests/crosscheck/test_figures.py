"""HTA's figures by hand, and the walk that begins at ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crosscheck.traces import ALL_REDUCE, GEMM, kernel, on_stream, write_trace
from tracelens.crosscheck.faults import stages
from tracelens.crosscheck.figures import Work, decimals_of, figures_of, label_of, merge
from tracelens.crosscheck.ours import our_figures
from tracelens.crosscheck.recording import COMMUNICATION, COMPUTATION, MEMORY, OTHER, read_recording, to_us
from tracelens.trace.summarize import summarize


def work(*spans: tuple[float, float, str]) -> Work:
    starts, ends, kinds = zip(*spans, strict=True)
    return Work(np.array(starts, float), np.array(ends, float), np.array(kinds))


def test_kinds_that_run_together_go_by_the_name_that_hta_gives_them() -> None:
    assert label_of(1) == "COMPUTATION"
    assert label_of(6) == "COMMUNICATION overlapping MEMORY"
    assert label_of(7) == "COMPUTATION overlapping COMMUNICATION overlapping MEMORY"


def test_the_digits_are_those_that_hta_prints() -> None:
    assert decimals_of("communication overlapped %") == 2
    assert decimals_of("COMPUTATION share") == 1
    assert decimals_of("idle µs") == 0


def test_figures_of_four_kernels() -> None:
    # compute 0..40, communication 30..70, a copy 60..80, nothing until a sync event 90..100
    figures = figures_of(
        work((0, 40, COMPUTATION), (30, 70, COMMUNICATION), (60, 80, MEMORY), (90, 100, OTHER)),
    )
    assert figures["communication overlapped %"] == 25.0
    assert figures["kernel time µs"] == 100.0
    assert (figures["compute µs"], figures["idle µs"], figures["non-compute µs"]) == (40.0, 10.0, 50.0)
    assert figures["COMPUTATION µs"] == 30.0
    assert figures["COMPUTATION overlapping COMMUNICATION µs"] == 10.0
    assert figures["COMMUNICATION µs"] == 20.0
    assert figures["COMMUNICATION overlapping MEMORY µs"] == 10.0
    assert figures["MEMORY µs"] == 10.0
    assert figures["MEMORY share"] == 12.5  # of 80 µs, the sync event apart


def test_without_communication_there_is_no_overlap_to_speak_of() -> None:
    assert figures_of(work((0, 40, COMPUTATION)))["communication overlapped %"] is None


def test_a_span_turned_around_by_rounding_counts_as_minus_one() -> None:
    starts, ends = merge(np.array([0.0, 5.0, 20.0]), np.array([10.0, 7.0, 19.0]))
    assert (starts.tolist(), ends.tolist()) == ([0.0, 20.0], [10.0, 19.0])


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (100_700, "100.7"),
        (6_322_354_305_679_731, "6322354305679.731"),
        (1_719_500_000_123_456_789, "1719500000123456.789"),
    ],
)
def test_nanoseconds_become_the_float_that_a_json_reader_makes(ns: int, text: str) -> None:
    assert to_us(np.array([ns]))[0] == float(text)


KERNELS = st.lists(
    st.tuples(st.sampled_from([GEMM, ALL_REDUCE, "Memcpy HtoD"]), st.integers(1, 5000), st.integers(0, 900)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=30)
@given(KERNELS)
def test_on_exact_times_hta_s_arithmetic_gives_our_own_figures(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[str, int, int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("walk")
    events = [
        kernel(name, start / 1000, length / 1000, number)
        if name != "Memcpy HtoD"
        else on_stream("gpu_memcpy", name, start / 1000, length / 1000, {"stream": 7, "correlation": number})
        for number, (name, start, length) in enumerate(spans)
    ]
    path = write_trace(folder / "rank0.json", *events)
    recording = read_recording(path, summarize(path))
    fault, first = next(stages(recording))
    assert fault is None
    ours = our_figures(recording)
    assert first.keys() == ours.keys()
    for name, value in ours.items():
        places = decimals_of(name)
        if value is None or first[name] is None:
            assert value is first[name], name
        else:
            assert first[name] == pytest.approx(value, abs=0.51 * 10**-places), name
