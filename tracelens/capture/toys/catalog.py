"""The exercises by name: the article's five, and its further systems."""

from __future__ import annotations

from tracelens.capture.toys.cp import ContextParallel
from tracelens.capture.toys.ep import ExpertParallel
from tracelens.capture.toys.exercise import Exercise
from tracelens.capture.toys.pp import Pipeline
from tracelens.capture.toys.tp import TensorParallel
from tracelens.capture.toys.zero import Zero

ARTICLE: tuple[type[Exercise], ...] = (Zero, TensorParallel, ContextParallel, Pipeline, ExpertParallel)
FURTHER: tuple[type[Exercise], ...] = ()

EXERCISES: dict[str, type[Exercise]] = {exercise.name: exercise for exercise in ARTICLE + FURTHER}
