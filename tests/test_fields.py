"""Faults of files and options in a user's words: no type of Python, no path of a schema."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from tracelens.cli.main import main
from tracelens.fields import explain_fault


class Colour(StrEnum):
    red = "red"
    blue = "blue"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ratio: float | None = None
    flag: bool = False
    names: tuple[str, ...] = ()
    size: int = 0


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    width: int
    inner: Inner = Inner()
    kind: Colour | None = None
    mode: Literal["fast"] | None = None
    either: bool | int | None = None
    table: dict[str, Colour] = {}
    colours: tuple[Colour, ...] = ()


@pytest.mark.parametrize(
    ("fields", "told", "hint"),
    [
        ({"width": 1, "inner": {"ratio": "x"}}, '`inner.ratio` must be a number, not "x"', None),
        ({"width": 1, "inner": {"flag": 1}}, "`inner.flag` must be true or false, not 1", None),
        ({"width": 1, "inner": {"names": "x"}}, '`inner.names` must be a list, not "x"', None),
        ({"width": 1, "inner": {"names": ["a", 2]}}, "`inner.names[1]` must be a text, not 2", None),
        ({"width": 1, "inner": 3}, "`inner` must be a table, not 3", None),
        ({"width": "w" * 99}, '`width` must be a whole number, not "' + "w" * 58 + "…", None),
        ({"width": 1, "kind": "green"}, '`kind` must be one of red, blue, not "green"', None),
        ({"width": 1, "mode": "slow"}, '`mode` must be one of fast, not "slow"', None),
        ({"width": 1, "either": "x"}, '`either` must be true or false or a whole number, not "x"', None),
        ({"width": 1, "table": {"a": "green"}}, "must be one of red, blue", None),
        ({"width": 1, "colours": ["red", "green"]}, '`colours[1]` must be one of red, blue, not "green"', None),
        ({"width": 1, "widht": 1}, "unknown key `widht`", "did you mean `width`?"),
        ({"width": 1, "inner": {"zzz": 1}}, "unknown key `inner.zzz`", "known: ratio, flag, names, size"),
        ({}, "`width` is missing", "known: width, inner, kind"),
    ],
)
def test_a_fault_names_the_field_and_what_it_takes(fields: dict[str, Any], told: str, hint: str | None) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(fields, Outer)
    fault = explain_fault(raised.value, Outer, fields)

    assert told in fault.told
    assert not any(word in fault.told for word in ("$", "null", "`int", "`str", "enum", "Object"))
    assert (fault.hint is None) if hint is None else (hint in (fault.hint or ""))


@pytest.mark.parametrize(
    ("arguments", "told", "hint"),
    [
        (("--option", "overlap_grad_reduce=maybe"), '`overlap_grad_reduce` must be true or false, not "maybe"', None),
        (("--option", "dispatcher=foo"), '`dispatcher` must be one of alltoall, allgather, deepep, not "foo"', None),
        (("--option", "bucket_elements=x"), '`bucket_elements` must be a whole number, not "x"', None),
        (("--option", "overlap_grad_reduce"), "--option overlap_grad_reduce has no value", "overlap_grad_reduce=VALUE"),
        (("--option", "overlap_grad=true"), "no option `overlap_grad`", "did you mean `overlap_grad_reduce`?"),
    ],
)
def test_an_option_that_can_not_be_taken_says_what_it_takes(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str, hint: str | None
) -> None:
    code = main(["predict", "--model", "llama3-8b", *arguments])
    err = capsys.readouterr().err

    assert code == 2
    assert told in err
    assert hint is None or hint in err
    assert "$" not in err


MODEL = "layers = 2\nhidden = 64\nheads = 4\nffn = 128\nvocab = 1000\n"
CLUSTER = "name = 'x'\n[nvlink]\nbytes_per_s = 'fast'\n"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        (MODEL.replace("layers", "layrs"), "unknown key `layrs`", "did you mean `layers`?"),
        (MODEL.replace("hidden = 64", "hidden = 'wide'"), '`hidden` must be a whole number, not "wide"', ""),
        (MODEL.replace("heads = 4\n", ""), "`heads` is missing", "known: name, layers"),
        (MODEL + "norm = 'batch'\n", '`norm` must be one of rmsnorm, layernorm, not "batch"', ""),
        (MODEL + "[moe]\nexprts = 8\n", "unknown key `moe.exprts`", "did you mean `experts`?"),
    ],
)
def test_a_model_file_is_explained_like_a_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, told: str, hint: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    code = main(["predict", "--model", str(file)])
    err = capsys.readouterr().err

    assert code == 2
    assert told in err
    assert hint in err


def test_a_cluster_file_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(CLUSTER)
    code = main(["predict", "--model", "llama3-8b", "--cluster", str(file)])

    assert code == 2
    assert "describes no cluster: `" in capsys.readouterr().err


def test_a_command_that_is_none_is_answered_with_the_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analze"]) == 2
    err = capsys.readouterr().err
    assert "no such command `analze`" in err
    assert "did you mean `analyze`?" in err


def test_an_exercise_that_is_none_is_answered_with_those_there_are_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toys", "bogus"]) == 2
    err = capsys.readouterr().err
    assert err.count("fsdp2-no-reshard") == 1
    assert "'bogus'" in err
