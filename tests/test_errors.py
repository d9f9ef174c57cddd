"""Errors carry their way out, and survive the way home from a worker process."""

from __future__ import annotations

import pickle

import pytest

from tracelens.errors import InputError, MissingExtraError, ModelError, TraceLensError, UsageError


@pytest.mark.parametrize("kind", [TraceLensError, InputError, UsageError, ModelError, MissingExtraError])
def test_an_error_of_a_worker_process_arrives_whole(kind: type[TraceLensError]) -> None:
    error = pickle.loads(pickle.dumps(kind("rank0.json ends early", hint="copy it again")))
    assert type(error) is kind
    assert (error.message, error.hint, error.exit_code) == ("rank0.json ends early", "copy it again", 2)
    assert str(error) == "rank0.json ends early"


def test_a_missing_extra_says_what_to_install() -> None:
    error = MissingExtraError.for_extra("torch", what="`tracelens toys`")
    assert error.message == "`tracelens toys` needs the extra `torch`"
    assert error.hint == 'in the clone: pip install ".[torch]"'


def test_every_error_ends_a_command_with_2() -> None:
    assert {kind.exit_code for kind in (InputError, UsageError, ModelError, MissingExtraError)} == {2}
