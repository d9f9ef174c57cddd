"""Judge an inference against what is known of a configuration, field by field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tracelens.inferred import Inference

FIELDS = (
    "world_size",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "etp",
    "dp_shard",
    "dp_replicate",
    "sharding",
    "reshard_after_forward",
    "sequence_parallel",
    "cp_kind",
    "schedule",
    "vp",
    "num_microbatches",
    "micro_batch",
    "seq_len",
    "tokens_per_microbatch",
    "hidden",
    "grad_dtype",
    "layers_per_stage",
)
_TRIVIAL = {1, False, "none", None}


class Mark(StrEnum):
    """How a field came out."""

    right = "right"
    undetermined = "undetermined"  # the truth is among the values left
    silent = "silent"
    wrong = "wrong"


@dataclass
class Score:
    """Marks by field, and the fields that were wrong."""

    marks: dict[str, Counter[Mark]] = field(default_factory=dict)
    hard: Counter[Mark] = field(default_factory=Counter)
    """Of the fields whose truth is not trivial (1, false, none)."""
    sure: Counter[bool] = field(default_factory=Counter)
    """Of non-trivial fields with a confidence of 0.9 and more: right or not."""
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, truth: Mapping[str, Any], found: Inference) -> None:
        """Judge one inference."""
        for name in FIELDS:
            if name in truth and truth[name] is not None:
                self._judge(case, name, truth, found)

    def _judge(self, case: str, name: str, truth: Mapping[str, Any], found: Inference) -> None:
        value = getattr(found.config, name)
        mark = _mark(name, truth, value, found)
        self.marks.setdefault(name, Counter())[mark] += 1
        if truth[name] not in _TRIVIAL:
            self.hard[mark] += 1
            if found.confidence.get(name, 0) >= 0.9:
                self.sure[mark is Mark.right] += 1
        if mark is not Mark.right:
            left = found.undetermined.get(name)
            self.notes.append(f"{mark}: {case}: {name} is {truth[name]}, told {value if left is None else left}")

    def total(self) -> Counter[Mark]:
        """All marks together."""
        return sum(self.marks.values(), Counter())


def _mark(name: str, truth: Mapping[str, Any], value: Any, found: Inference) -> Mark:
    if value is not None:
        same = value == truth[name] or (name == "sharding" and _is_kept_zero3(truth, found))
        return Mark.right if same else Mark.wrong
    left = found.undetermined.get(name, ())
    if not left:
        return Mark.silent
    return Mark.undetermined if truth[name] in left else Mark.wrong


def _is_kept_zero3(truth: Mapping[str, Any], found: Inference) -> bool:
    """`zero3` and `zero2` mean the same where parameters are not freed after forward (the contract)."""
    kept = truth.get("reshard_after_forward") is False and found.config.reshard_after_forward is False
    return kept and {truth["sharding"], found.config.sharding} <= {"zero2", "zero3"}


def table(scores: Mapping[str, Score]) -> str:
    """Marks of several suites side by side."""
    lines = [f"{'':52}{'right':>8}{'undet.':>8}{'silent':>8}{'wrong':>8}"]

    def row(title: str, marks: Mapping[Mark, int]) -> None:
        lines.append(f"{title:52}" + "".join(f"{marks.get(mark, 0):8}" for mark in Mark))

    for suite, score in scores.items():
        row(f"{suite}, all fields", score.total())
        row(f"{suite}, non-trivial", score.hard)
    return "\n".join(lines)


def fields_table(scores: Iterable[Score]) -> str:
    """Marks by field over several suites."""
    merged: dict[str, Counter[Mark]] = {}
    for score in scores:
        for name, marks in score.marks.items():
            merged[name] = merged.get(name, Counter()) + marks
    lines = [f"{'':24}{'right':>8}{'undet.':>8}{'silent':>8}{'wrong':>8}"]
    lines += [f"{name:24}" + "".join(f"{marks.get(m, 0):8}" for m in Mark) for name, marks in merged.items()]
    return "\n".join(lines)
