"""`tracelens schema` prints the schema that the document follows."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tests.report.build import ordinary_document
from tracelens.cli.main import main
from tracelens.report.json import render_json


def test_the_printed_schema_accepts_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    out, err = capsys.readouterr()
    schema = json.loads(out)
    assert err == ""
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.validate(json.loads(render_json(ordinary_document())), schema)
