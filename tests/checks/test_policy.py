"""Policies as files: what they hold, and the errors that name what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.checks.policy import (
    Expect,
    Level,
    Limits,
    Policy,
    TimeLimits,
    limits_nothing,
    load_policy,
    render_policy,
)
from tracelens.errors import InputError
from tracelens.topology import Axis


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tracelens.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_policy_is_read_as_it_is_written(tmp_path: Path) -> None:
    policy = Policy(
        expect=Expect(tp=8, sharding="zero3", reshard_after_forward=True),
        time=TimeLimits(relative=0.07),
        limits=Limits(idle_fraction=0.1, node_local=(Axis.tp, Axis.etp)),
        severity={"dp-exposed": Level.error, "calls-differ": Level.off},
    )
    assert load_policy(write(tmp_path, render_policy(policy, {"expect": "the layout"}))) == policy


@pytest.mark.parametrize("text", ["", "schema_version = 1\n", "[expect]\n", "[time]\nrelative = 0.1\n"])
def test_a_policy_that_limits_nothing_is_known(tmp_path: Path, text: str) -> None:
    assert limits_nothing(load_policy(write(tmp_path, text)))


@pytest.mark.parametrize("text", ["[expect]\ntp = 8\n", "[severity]\ntp-across-nodes = 'error'\n"])
def test_a_policy_that_limits_anything_is_known_too(tmp_path: Path, text: str) -> None:
    assert not limits_nothing(load_policy(write(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[expekt]\ntp = 8\n", "unknown key `expekt`", "did you mean `expect`?"),
        ("[time]\nrelativ = 0.1\n", "unknown key `time.relativ`", "did you mean `relative`?"),
        ("[limits]\nzzz = 1\n", "unknown key `limits.zzz`", "known: exposed_comm_fraction, idle_fraction"),
        ("[severity]\ncall-differ = 'off'\n", "unknown key `severity.call-differ`", "did you mean `calls-differ`?"),
        ("[severity]\ncalls-differ = 'fatal'\n", "must be one of error, warning, info, off", None),
        ("[expect]\ntp = 'eight'\n", '`expect.tp` must be a whole number, not "eight"', None),
        ("[limits]\nnode_local = ['tq']\n", "`limits.node_local[0]` must be one of tp, cp, ep, etp, pp, dp", None),
        (
            "[expect]\nsharding = 'zero4'\n",
            '`expect.sharding` must be one of none, zero1, zero2, zero3, not "zero4"',
            None,
        ),
        ("[limits]\nidle_fraction = 'x'\n", '`limits.idle_fraction` must be a number, not "x"', None),
        ("[traffic]\nabsolute_bytes = 0.5\n", "`traffic.absolute_bytes` must be a whole number, not 0.5", None),
        ("limits = 3\n", "`limits` must be a table, not 3", None),
        ("[limits]\nnode_local = 'tp'\n", '`limits.node_local` must be a list, not "tp"', None),
        ("[expect]\nsequence_parallel = 1\n", "`expect.sequence_parallel` must be true or false, not 1", None),
        ("schema_version = 2\n", "a policy of schema version 2, this is version 1", "--write-policy"),
        ("tp = = 8\n", "is no TOML file", None),
        *(
            (f"[limits]\n{key} = 25\n", f"limits.{key}: 25 is 2500 %; for 25 % write 0.25", None)
            for key in Limits.__struct_fields__
            if key.endswith("_fraction")
        ),
        ("[limits]\nidle_fraction = -0.1\n", "limits.idle_fraction: -0.1 is no fraction", None),
        ("[limits]\nidle_fraction = nan\n", "limits.idle_fraction: nan is no fraction", None),
        ("[time]\nrelative = 5\n", "time.relative: 5 is 500 %; for 5 % write 0.05", None),
        ("[traffic]\nall_to_all_relative = 1.5\n", "traffic.all_to_all_relative: 1.5 is 150 %", None),
        ("[time]\nsigmas = -1.0\n", "time.sigmas: -1.0 is no number from 0 up", None),
    ],
)
def test_what_is_wrong_with_a_policy_is_named(tmp_path: Path, text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InputError) as raised:
        load_policy(write(tmp_path, text))
    assert message in raised.value.message
    assert "tracelens.toml" in raised.value.message
    if hint is not None:
        assert hint in (raised.value.hint or "")


def test_a_missing_policy_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        load_policy(tmp_path / "none.toml")
    assert "--write-policy" in (raised.value.hint or "")
