"""The report that is read at a terminal and pasted in a chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.golden import assert_golden
from tests.report.build import (
    MS,
    a_document,
    a_group,
    a_row,
    a_run,
    a_step,
    an_unsized_row,
    bare_document,
    huge_document,
    ordinary_document,
)
from tracelens.collectives import Primitive
from tracelens.errors import Problem, Severity
from tracelens.report.document import Document
from tracelens.report.terminal import render_text
from tracelens.results import Overlap, Skipped, StepTime

GOLDEN = Path(__file__).parent / "golden"
DOCUMENTS = [ordinary_document, huge_document, bare_document, a_document]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("name", "build"), [("ordinary", ordinary_document), ("huge", huge_document), ("bare", bare_document)]
)
def test_the_report_reads_as_in_its_golden_file(name: str, build: Callable[[], Document]) -> None:
    assert_golden(render_text(build()), GOLDEN / f"{name}.txt")


def test_explain_reads_as_in_its_golden_file() -> None:
    assert_golden(render_text(ordinary_document(), explain=True), GOLDEN / "ordinary_explained.txt")


@pytest.mark.parametrize("build", DOCUMENTS)
@pytest.mark.parametrize("every_row", [False, True])
def test_no_line_is_wider_than_100_columns_or_ends_in_a_blank(build: Callable[[], Document], every_row: bool) -> None:
    text = render_text(build(), every_row=every_row, explain=True)
    assert [line for line in text.splitlines() if cell_len(line) > 100 or line != line.rstrip()] == []


@pytest.mark.parametrize("build", DOCUMENTS)
def test_colour_changes_no_word(build: Callable[[], Document]) -> None:
    coloured = render_text(build(), colour=True)
    assert ANSI.sub("", coloured) == render_text(build())


def test_colour_is_kept_where_it_is_asked_for_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    coloured = render_text(ordinary_document(), colour=True)
    assert "\x1b[33m" in coloured
    assert ANSI.sub("", coloured) == render_text(ordinary_document())


def test_hundreds_of_ranks_and_groups_stay_under_a_hundred_lines_and_say_what_is_left_out() -> None:
    # GIVEN 512 ranks, 189 groups, 512 problems and 512 skipped files
    text = render_text(huge_document())

    # THEN the report stays short, and says how much more there is and how to see it
    assert len(text.splitlines()) < 100
    assert "512 classes of ranks differ; --per-rank: each" in text
    assert "… 511 more kernels-unlinked problems; all with --per-rank or --format json" in text
    assert "… 504 more skipped files; all with --per-rank or --format json" in text
    assert "0-7 and 63 alike" in text


def test_classes_of_ranks_too_many_to_show_are_averaged_over_their_ranks() -> None:
    # GIVEN six classes: five of one rank with 10 ms at 10 GB/s, one of five ranks with 40 ms at 30 GB/s
    group = a_group(tuple(range(10)), "5", "mesh_dp")
    classes = [(rank,) for rank in range(5)] + [(5, 6, 7, 8, 9)]
    rows = tuple(
        a_row(group, Primitive.all_reduce, ranks, rank_class=index,
              busy_ns_per_step=(40 if len(ranks) > 1 else 10) * MS, exposed_ns_per_step=0,
              busbw_bytes_per_s=30e9 if len(ranks) > 1 else 10e9)
        for index, ranks in enumerate(classes)
    )  # fmt: skip
    text = render_text(a_document(groups=(group,), traffic=rows))

    # THEN busy is (5 x 10 + 5 x 40) / 10, and bandwidth is bytes over time: (50 x 10 + 200 x 30) / 250
    line = next(line for line in text.splitlines() if line.startswith("  mesh_dp") and "bf16" in line)
    assert re.search(r" 25.0 ms +0 ns +26.0 GB/s +10$", line)


def test_per_rank_shows_every_row() -> None:
    text = render_text(huge_document(), every_row=True)
    assert "more row" not in text
    assert text.count("all_reduce") >= 512
    assert all(f"logs/{rank}.txt" in text for rank in range(512))


def test_unknown_is_a_question_mark_and_never_zero() -> None:
    # GIVEN a kernel whose bytes nobody knows
    row = an_unsized_row("vllm::cross_device_reduce_1stage", (0,), busy_ns_per_step=None)
    text = render_text(a_document(traffic=(row,)))

    # THEN neither bytes nor time become 0
    line = next(line for line in text.splitlines() if "cross_device" in line)
    assert " ? " in line
    assert "0 B" not in text


def test_a_group_with_an_unsized_row_gives_its_bytes_as_a_lower_bound() -> None:
    group = a_group((0, 1), "5")
    rows = (
        a_row(group, Primitive.all_reduce, (0, 1), wire_bytes_per_step=2**20),
        a_row(group, Primitive.all_to_all, (0, 1), wire_bytes_per_step=None, payload_bytes_per_step=None),
    )
    text = render_text(a_document(groups=(group,), traffic=rows))
    assert "≥ 1.00 MiB" in text


def test_the_budget_of_the_first_lines_is_the_mean_and_adds_up() -> None:
    # GIVEN two steps of 100 and 120 ms
    time = (a_step(0, 3, compute=60), a_step(0, 4, compute=80))
    head = render_text(a_document(time=time)).split("\n\n")[0]
    assert "110 ms = 70.0 ms compute + 25.0 ms exposed comm + 5.00 ms exposed memory + 10.0 ms idle" in head
    assert "mean of steps 3-4 on 1 rank, 100 ms to 120 ms" in head
    assert "comm 45.0 ms, 44.4 % under compute" in head


def test_few_steps_stand_alone_and_many_as_min_median_max() -> None:
    few = render_text(a_document(time=tuple(a_step(rank, 3) for rank in range(16))))
    many = render_text(a_document(time=tuple(a_step(rank, 3, compute=rank) for rank in range(17))))
    assert "median" not in few
    assert re.search(r"^  median +48.0 ms +8.00 ms", many, flags=re.MULTILINE)
    assert "longest: rank 16, step 3" in many


@pytest.mark.parametrize("attack", ["\x1b[31mred", "a\nb", "\x9b2J", "\u202egnp.exe", "tab\tbed", "\x07bell", "\ud800"])
def test_names_from_a_trace_can_not_steer_the_terminal(attack: str) -> None:
    # GIVEN the attack in every place that a trace can write to
    group = a_group((0, 1), attack, attack, id=attack)
    document = a_document(
        run=a_run(
            devices=(attack,),
            backend=attack,
            skipped=(Skipped(path=attack, why=attack),),
            problems=(Problem(code="odd", severity=Severity.info, message=attack, file=attack),),
        ),
        groups=(group,),
        traffic=(a_row(group, Primitive.all_reduce, (0, 1), dtype=attack), an_unsized_row(attack, (0,))),
    )
    for text in (render_text(document, explain=True), ANSI.sub("", render_text(document, colour=True))):
        assert [char for char in text if not char.isprintable() and char != "\n"] == []


def test_long_names_are_shortened_in_the_middle_and_numbers_are_whole() -> None:
    group = a_group((0, 1), "5", "HYBRID_DP_CP_GROUP_WITH_A_VERY_LONG_DESCRIPTION_THAT_FITS_NOWHERE_AT_ALL")
    row = a_row(group, Primitive.reduce_scatter, (0, 1), dtype="fp8_e4m3fnuz",
                payload_bytes_per_step=999 * 2**20, busy_ns_per_step=999 * MS,
                exposed_ns_per_step=999 * MS, busbw_bytes_per_s=123.4e9)  # fmt: skip
    text = render_text(a_document(groups=(group,), traffic=(row,)))
    assert "999 MiB" in text
    assert "123 GB/s" in text
    assert re.search(r"HYBRID\S*…\S*ALL", text)


def test_a_trace_without_communication_says_so() -> None:
    assert "no communication in this trace" in render_text(a_document())


def test_a_recording_without_steps_is_called_a_window() -> None:
    time = (StepTime(rank=0, step=None, span_ns=10, compute_ns=10, exposed_comm_ns=0, exposed_memory_ns=0,
                     idle_ns=0, comm_ns=0, overlap_ns=0, memory_ns=0),)  # fmt: skip
    text = render_text(a_document(time=time))
    assert "window    10 ns = 10 ns compute" in text
    assert "mean of the whole recording on 1 rank" in text


def test_a_receive_whose_kernel_carries_a_send_too_shares_its_time() -> None:
    # GIVEN a send and a receive in one kernel: the time stands with the send
    group = a_group((0, 1), "5", "mesh_pp")
    receive = a_row(group, Primitive.recv, (0, 1), wire_bytes_per_step=0, busy_ns_per_step=None,
                    exposed_ns_per_step=None, busbw_bytes_per_s=None, calls_with_time=16)  # fmt: skip
    text = render_text(a_document(groups=(group,), traffic=(a_row(group, Primitive.send, (0, 1)), receive)))

    # THEN the receive says so, and the sum of the group is no lower bound
    assert re.search(r"recv .* 0 B +shared +\? +\?$", text, flags=re.MULTILINE)
    assert "≥" not in text


def test_rows_that_differ_in_their_evidence_only_are_told_apart() -> None:
    group = a_group((0, 1), "5", "mesh_pp")
    rows = [a_row(group, Primitive.send, (0, 1), evidence=evidence) for evidence in ("metadata", "position")]
    text = render_text(a_document(groups=(group,), traffic=tuple(rows)))
    assert re.search(r"send +bf16 +fwd +meta +8 ", text)
    assert re.search(r"send +bf16 +fwd +place +8 ", text)


@pytest.mark.parametrize(
    ("ranks", "told"), [((0, 0, 1, 1), "over 2 ranks"), ((0, 0), "whole recording: 50.00 %"), ((None, None), "over 2")]
)
def test_windows_of_a_rank_count_as_one_rank(ranks: tuple[int | None, ...], told: str) -> None:
    overlap = tuple(Overlap(rank=rank, comm_overlap_pct=50.0) for rank in ranks)
    (line,) = (line for line in render_text(a_document(overlap=overlap)).splitlines() if "whole recording:" in line)
    assert told in line
    assert ("over" in line.split("%")[1]) == ("over" in told)
