"""The JSON document and its schema hold together, and with the contract's names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.report.build import a_document, bare_document, huge_document, ordinary_document
from tracelens.errors import Severity
from tracelens.report.document import Document, make_document
from tracelens.report.json import render_json
from tracelens.report.schema import document_schema
from tracelens.results import Finding, Measurement

DOCUMENTS = [ordinary_document, huge_document, bare_document, a_document]

# The names that scripts rely on, object by object.
CONTRACT = {
    "Document": "schema_version tracelens_version run groups traffic group_time time overlap skew pipeline routing "
    "inference comparison findings",
    "Run": "world_size ranks files steps backend devices gpus_per_node coverage skipped problems",
    "TraceFile": "path rank window bytes events",
    "Coverage": "calls calls_with_bytes calls_with_kernel kernels kernels_with_call unsized_kernels",
    "Skipped": "path why",
    "Problem": "code severity message file rank",
    "Group": "id names descriptions size ranks ranks_source mesh axis axes roles spans_nodes confidence",
    "Traffic": "ranks class axis group primitive dtype phase evidence steps_used calls_per_step "
    "kernels_per_step unlinked_kernels payload_bytes_per_step wire_bytes_per_step busy_ns_per_step "
    "exposed_ns_per_step algbw_bytes_per_s busbw_bytes_per_s",
    "CallsPerStep": "min median max mean",
    "StepTime": "rank step span_ns compute_ns exposed_comm_ns exposed_memory_ns idle_ns comm_ns overlap_ns memory_ns",
    "Overlap": "rank comm_overlap_pct",
    "Finding": "code severity message hint axis ranks measured limit",
    "Comparison": "sizes_from rows explained_bytes_fraction absent_bytes_fraction unsized_time_fraction",
    "ComparisonRow": "term class stage axis mesh primitive dtype phase predicted_calls measured_calls predicted_bytes "
    "measured_bytes ratio predicted_overlap measured_overlap_pct verdict why",
}


def _validator() -> Any:
    schema = document_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("build", DOCUMENTS)
def test_every_document_follows_the_schema(build: Callable[[], Document]) -> None:
    document = json.loads(render_json(build()))
    assert [error.message for error in _validator().iter_errors(document)] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("run", "coverage", "calls"), "many"),
        (("traffic", 0, "primitive"), "all_recude"),
        (("traffic", 0, "evidence"), "hearsay"),
        (("groups", 0, "mesh"), 3),
        (("time", 0, "span_ns"), 0.5),
    ],
)
def test_the_schema_refuses_what_does_not_belong(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(render_json(ordinary_document()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not _validator().is_valid(document)


@pytest.mark.parametrize("name", CONTRACT)
def test_the_schema_has_every_name_of_the_contract(name: str) -> None:
    assert set(CONTRACT[name].split()) <= set(document_schema()["$defs"][name]["properties"])


def test_the_schema_describes_fields_by_the_words_that_follow_them_in_the_source() -> None:
    definitions = document_schema()["$defs"]
    assert definitions["Group"]["properties"]["mesh"]["description"].startswith("(size, stride), innermost first")
    assert definitions["Run"]["description"] == "The job and what was read of it."


def test_every_key_stands_in_the_output_even_when_nothing_is_known() -> None:
    document = json.loads(render_json(a_document()))
    assert set(CONTRACT["Document"].split()) <= set(document)
    assert document["schema_version"] == 1
    assert document["inference"] is None
    assert document["comparison"] is None
    assert document["skew"] is None
    assert document["findings"] == []


def test_unknown_is_null() -> None:
    row = json.loads(render_json(bare_document()))["traffic"][0]
    assert row["payload_bytes_per_step"] is None
    assert row["group"] is None
    assert row["axis"] is None


def test_a_document_reads_back_as_it_was() -> None:
    document = ordinary_document()
    assert msgspec.json.decode(render_json(document), type=Document) == document


def test_the_mesh_is_written_as_size_and_stride_innermost_first() -> None:
    groups = json.loads(render_json(ordinary_document()))["groups"]
    assert [group["mesh"] for group in groups if group["names"] == ["2"]] == [[[4, 2]], [[4, 2]]]


def test_findings_of_a_command_stand_in_its_document() -> None:
    finding = Finding(code="bytes-differ", severity=Severity.error, message="more bytes than predicted")
    measured = ordinary_document()
    measurement = Measurement(
        run=measured.run,
        groups=measured.groups,
        traffic=measured.traffic,
        group_time=measured.group_time,
        time=measured.time,
        overlap=measured.overlap,
    )
    document = json.loads(render_json(make_document(measurement, findings=(finding,))))
    assert document["findings"][0]["code"] == "bytes-differ"
    assert re.search(r"^\{\n  \"schema_version\"", render_json(measured))
