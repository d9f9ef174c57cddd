"""The exercises by name: the article's five, and its further systems."""

from __future__ import annotations

from tracelens.capture.toys.cp import ContextParallel
from tracelens.capture.toys.ep import ExpertParallel
from tracelens.capture.toys.exercise import Exercise
from tracelens.capture.toys.fsdp import Fsdp2, Fsdp2NoReshard, Hsdp
from tracelens.capture.toys.pp import Pipeline
from tracelens.capture.toys.schedules import InterleavedOneForwardOneBackward, OneForwardOneBackward
from tracelens.capture.toys.sequence import MegatronSequenceParallel, Ulysses
from tracelens.capture.toys.sharded import ZeroOne, ZeroThree, ZeroTwo
from tracelens.capture.toys.tp import TensorParallel
from tracelens.capture.toys.zero import Zero

ARTICLE: tuple[type[Exercise], ...] = (Zero, TensorParallel, ContextParallel, Pipeline, ExpertParallel)
FURTHER: tuple[type[Exercise], ...] = (
    ZeroOne,
    ZeroTwo,
    ZeroThree,
    Fsdp2,
    Fsdp2NoReshard,
    Hsdp,
    MegatronSequenceParallel,
    Ulysses,
    OneForwardOneBackward,
    InterleavedOneForwardOneBackward,
)

EXERCISES: dict[str, type[Exercise]] = {exercise.name: exercise for exercise in ARTICLE + FURTHER}
