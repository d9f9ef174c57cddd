"""Where model and layout come from: options before metadata, metadata before inference."""

from __future__ import annotations

import msgspec
import pytest

from tests.measurement.build import summary
from tests.report.build import a_document, a_group, a_row
from tracelens.collectives import Primitive
from tracelens.comparison.expectation import (
    Captured,
    captured_fields,
    captured_model,
    complete_fields,
    inferred_fields,
    is_single_precision,
    read_captured,
)
from tracelens.errors import InputError
from tracelens.inferred import InferredConfig
from tracelens.report.saved import measurement_of
from tracelens.summary import RankSummary

SEEN = InferredConfig(
    world_size=16, tp=2, pp=1, cp=1, dp=8, dp_shard=4, dp_replicate=2, sharding="zero3", reshard_after_forward=False,
    sequence_parallel=False, schedule="none", num_microbatches=4, micro_batch=2, framework="torchtitan",
)  # fmt: skip
NOTHING = Captured()


def captured(text: str) -> RankSummary:
    return summary(0, capture=msgspec.Raw(text.encode()))


def test_options_that_name_an_axis_make_the_layout_given() -> None:
    fields, origin, told = complete_fields({"tp": 2}, NOTHING, SEEN, 16)
    # dp is what is left of the world; only what a step holds, and the framework, come from the trace
    assert fields == {"tp": 2, "dp": 8, "microbatches": 4, "micro_batch": 2, "framework": "torchtitan"}
    assert origin == "given"
    assert told == ("inferred from the trace: microbatches 4, micro_batch 2, framework torchtitan",)


def test_what_a_user_gives_always_counts() -> None:
    fields, _, told = complete_fields({"tp": 2, "microbatches": 8, "framework": "megatron"}, NOTHING, SEEN, 16)
    assert (fields["microbatches"], fields["framework"]) == (8, "megatron")
    assert told == ("inferred from the trace: micro_batch 2",)


def test_metadata_goes_before_inference() -> None:
    layout = {"dp_replicate": 1, "dp_shard": 8, "tp": 2}
    fields, origin, _ = complete_fields({}, Captured(layout=layout), SEEN, 16)
    assert origin == "metadata"
    assert (fields["tp"], fields["dp"], fields["zero"]) == (2, 8, 3)


def test_an_inferred_layout_is_written_as_options() -> None:
    assert inferred_fields(SEEN, 16) == {
        "tp": 2, "pp": 1, "cp": 1, "dp": 8, "micro_batch": 2, "microbatches": 4, "framework": "torchtitan", "zero": 3,
        "hsdp_shard": 4, "no_reshard": True, "no_sequence_parallel": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"dp_shard": 4, "dp_replicate": 2, "tp": 2}, {"tp": 2, "dp": 8, "hsdp_shard": 4, "zero": 3}),
        ({"dp_shard": 1, "dp_replicate": 8}, {"dp": 8, "zero": 0}),
        ({"pp": 4}, {"pp": 4, "dp": 4}),
        ({"pp": 3}, {"pp": 3}),
    ],
)
def test_the_layout_of_the_metadata_is_written_as_options(layout: dict[str, int], expected: dict[str, int]) -> None:
    assert captured_fields(layout, 16) == expected


def test_the_first_trace_with_metadata_tells() -> None:
    text = '{"schema": 1, "model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "ffn": 256}, "layout": null}'
    found = read_captured([summary(0), captured(text)])
    model = captured_model(found)
    assert model is not None
    assert (model.layers, model.hidden, model.vocab) == (2, 64, 100)
    assert read_captured([summary(0)]) == NOTHING


def test_a_model_that_is_told_in_part_is_no_model() -> None:
    assert captured_model(Captured(schema=1, model={"hidden": 4096, "layers": 32})) is None
    assert captured_model(NOTHING) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [('{"schema": 2}', "metadata of schema 2, this version reads 1"), ('{"schema": "one"}', "can't be read")],
)
def test_metadata_of_another_kind_is_an_error(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_captured([captured(text)])


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [(("fp32",), True), (("fp32", "bf16"), False), (("int64",), False), (("fp32", "int64"), True)],
)
def test_a_job_is_single_precision_when_nothing_travels_in_half(dtypes: tuple[str, ...], expected: bool) -> None:
    group = a_group((0, 1), "1")
    rows = tuple(a_row(group, Primitive.all_reduce, (0, 1), dtype=dtype) for dtype in dtypes)
    assert is_single_precision(measurement_of(a_document(groups=(group,), traffic=rows))) is expected
