"""The section on the layout: a line to paste, a row per field, doubts with what would settle them."""

from __future__ import annotations

import msgspec

from tracelens.collectives import Primitive
from tracelens.inferred import FieldEvidence, Inference, InferredConfig, PrimitiveShare
from tracelens.report.inference import inference_lines
from tracelens.report.table import WIDTH

FOUND = Inference(
    workload="training",
    status="ambiguous",
    config=InferredConfig(world_size=16, tp=2, pp=1, dp=8, sequence_parallel=True, vp=1),
    confidence={"world_size": 1.0, "tp": 0.97, "pp": 0.96, "dp": 0.98, "sequence_parallel": 0.97, "vp": 0.9},
    undetermined={"sharding": ("zero1", "zero2")},
    constraints_checked=7,
    free_parameters=3,
    evidence=(
        FieldEvidence(field="tp", supports=("14 gathers and scatters of one size in turn",)),
        FieldEvidence(field="sharding", supports=(), against=("one micro-batch",)),
    ),
    would_decide=("a step of several micro-batches",),
    launcher_line="--tp 2 --pp 1 --dp 8",
    primitives=(
        PrimitiveShare(primitive=Primitive.all_gather, wire_bytes_pct=60.0, busy_pct=None, points_at="sharding"),
    ),
)


def _text(*, explain: bool = False) -> list[str]:
    return [line.text for line in inference_lines(FOUND, explain=explain)]


def test_many_values_left_are_counted_and_few_are_listed() -> None:
    some = msgspec.structs.replace(FOUND, undetermined={"tp": (1, 2, 4), "dp": tuple(range(1, 19))})
    text = "\n".join(line.text for line in inference_lines(some))
    assert "tp is open: 1 or 2 or 4" in text
    assert "dp is open: one of 18 values from 1 to 18" in text


def test_the_first_line_after_the_title_can_be_pasted() -> None:
    assert _text()[0] == "Layout, worked out from the traffic (training, ambiguous)"
    assert _text()[1].strip() == "--tp 2 --pp 1 --dp 8"


def test_a_field_stands_with_value_confidence_and_evidence() -> None:
    (row,) = [line for line in _text() if line.split()[:1] == ["tp"]]
    assert row.split()[1:3] == ["2", "0.97"]
    assert row.endswith("14 gathers and scatters of one size in turn")


def test_yes_is_told_and_what_is_one_is_not_unless_explained() -> None:
    assert any(line.split()[:2] == ["sequence_parallel", "yes"] for line in _text())
    assert not any(line.split()[:1] == ["vp"] for line in _text())
    assert any(line.split()[:1] == ["vp"] for line in _text(explain=True))


def test_a_doubt_names_the_values_left_the_reason_and_what_would_settle_it() -> None:
    text = " ".join(line.strip() for line in _text())
    assert "sharding is open: zero1 or zero2 (one micro-batch)" in text
    assert "would decide: a step of several micro-batches" in text


def test_explain_adds_all_evidence_and_what_primitives_point_at() -> None:
    text = _text(explain=True)
    assert any("sharding, against: one micro-batch" in line for line in text)
    (row,) = [line for line in text if line.split()[:1] == ["all_gather"]]
    assert row.split()[1:4] == ["60.0", "%", "?"]


def test_no_line_is_wider_than_the_page() -> None:
    assert max(map(len, _text(explain=True))) <= WIDTH


def test_without_an_inference_there_is_no_section() -> None:
    assert inference_lines(None) == []
