"""Limits of a CI job, from a TOML file; a key that is not known is an error that names it."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from tracelens.checks.codes import Code
from tracelens.errors import InputError
from tracelens.fields import explain_fault, nearest
from tracelens.inferred import ContextKind, Recompute, Schedule, Sharding
from tracelens.topology import Axis
from tracelens.units import refuse_fraction

SCHEMA_VERSION = 1


class Level(StrEnum):
    """What a finding weighs."""

    error = "error"
    warning = "warning"
    info = "info"
    off = "off"


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The layout that the traffic must show; a key left out is not checked."""

    world_size: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp_shard: int | None = None
    dp_replicate: int | None = None
    sharding: Sharding | None = None
    reshard_after_forward: bool | None = None
    sequence_parallel: bool | None = None
    cp_kind: ContextKind | None = None
    schedule: Schedule | None = None
    vp: int | None = None
    num_microbatches: int | None = None
    grad_dtype: str | None = None
    recompute: Recompute | None = None


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What calls, bytes and times are held against."""

    baseline: str | None = None
    """A baseline file, beside the policy unless absolute."""
    model: str | None = None
    """As `--model` of `predict` (a file may lie beside the policy): the ledger is the reference for bytes."""
    layout: dict[str, Any] = {}
    """As the options of `predict`: `tp = 8`, `framework = "torchtitan"`."""


class TrafficLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts are always exact. Bytes differ when they do by more than both floors."""

    relative: float = 0.0
    absolute_bytes: int = 0
    all_to_all_relative: float = 0.01
    """For all-to-alls, whose sizes depend on the data."""


class TimeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the step is slower when it is so by more than both floors, and by more than chance."""

    relative: float = 0.05
    absolute_ms: float = 0.1
    sigmas: float = 3.0


class OverlapLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Percentage points by which less communication may run under compute."""

    absolute_points: float = 5.0
    sigmas: float = 3.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that need no reference; a key left out is not checked. Fractions are of the step."""

    exposed_comm_fraction: float | None = None
    idle_fraction: float | None = None
    unexplained_bytes_fraction: float | None = None
    link_fraction: float | None = None
    """At least this share of the link for calls of 16 MiB and more."""
    straggler_wait_fraction: float | None = None
    node_local: tuple[Axis, ...] = ()
    """Axes whose groups may not cross nodes."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All limits of a job."""

    schema_version: int = SCHEMA_VERSION
    expect: Expect = Expect()
    reference: Reference = Reference()
    traffic: TrafficLimits = TrafficLimits()
    time: TimeLimits = TimeLimits()
    overlap: OverlapLimits = OverlapLimits()
    limits: Limits = Limits()
    severity: dict[str, Level] = {}
    """By the word of a finding."""


def limits_nothing(policy: Policy) -> bool:
    """Whether every run would keep the policy: no layout, no reference, no limit and no severity of its own."""
    default = Policy()
    parts = ("expect", "reference", "limits", "severity")
    return all(getattr(policy, part) == getattr(default, part) for part in parts)


_SECTIONS = ("expect", "reference", "traffic", "time", "overlap", "limits")


def load_policy(path: str | Path) -> Policy:
    """Read a policy.

    Raises:
        InputError: the file can't be read, is no TOML, is of another schema version, or has a key or a value that
            it can't have.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot read policy `{path}`: {told}", hint="write one with `tracelens check PATH --write-policy FILE`"
        ) from error
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"`{path}` is no TOML file: {error}", hint="docs/check.md shows a policy") from error
    version = fields.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise InputError(
            f"`{path}` is a policy of schema version {version}, this is version {SCHEMA_VERSION}",
            hint="write it again with --write-policy and take your limits over",
        )
    try:
        policy = msgspec.convert(fields, Policy)
    except msgspec.ValidationError as error:
        fault = explain_fault(error, Policy, fields)
        raise InputError(f"`{path}`: {fault.told}", hint=fault.hint) from error
    _check_words(path, policy)
    _check_numbers(path, policy)
    return policy


_FRACTIONS = frozenset({"relative", "all_to_all_relative"})


def _check_words(path: str | Path, policy: Policy) -> None:
    words = tuple(code.word for code in Code)
    for word in policy.severity:
        if word not in words:
            raise InputError(f"`{path}`: unknown key `severity.{word}`", hint=nearest(word, words))


def _check_numbers(path: str | Path, policy: Policy) -> None:
    """Fractions lie between 0 and 1, and no allowance is below 0: such a limit would hold nothing, or no run."""
    for section in ("traffic", "time", "overlap", "limits"):
        part = getattr(policy, section)
        for key in part.__struct_fields__:
            value = getattr(part, key)
            if not isinstance(value, int | float):
                continue
            is_fraction = key in _FRACTIONS or key.endswith("_fraction")
            why = refuse_fraction(value) if is_fraction else None if value >= 0 else f"{value} is no number from 0 up"
            if why is not None:
                raise InputError(f"`{path}`: {section}.{key}: {why}")


def render_policy(policy: Policy, comments: dict[str, str]) -> str:
    """The policy as TOML; what is left at its default is left out.

    Args:
        policy: to write.
        comments: a line above a section, by its name.
    """
    lines = [f"schema_version = {policy.schema_version}"]
    for section in _SECTIONS:
        part = getattr(policy, section)
        told = {key: value for key in part.__struct_fields__ if (value := getattr(part, key)) not in (None, (), {})}
        if told:
            lines += ["", *([f"# {comments[section]}"] if section in comments else []), f"[{section}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in told.items()]
    if policy.severity:
        lines += ["", "[severity]", *(f"{word} = {_toml(level)}" for word, level in policy.severity.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """A value of a policy in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    # a JSON string is a TOML basic string
    return msgspec.json.encode(str(value)).decode()
