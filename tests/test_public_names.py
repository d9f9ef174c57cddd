"""The public names: what is promised, and that it is all there."""

from __future__ import annotations

import pytest

import tracelens

# A name leaves this list with a major version; a new one is added here on purpose.
PUBLIC = [
    "Comparison",
    "Expectation",
    "Inference",
    "Layout",
    "Ledger",
    "Measurement",
    "ModelSpec",
    "RankSummary",
    "TraceLensError",
    "__version__",
    "compare",
    "infer",
    "load_model",
    "measure",
    "predict",
    "summarize",
]


def test_the_public_names_are_these_sorted_and_no_others() -> None:
    assert tracelens.__all__ == PUBLIC == sorted(PUBLIC)
    assert dir(tracelens) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(tracelens, name)
    assert isinstance(value, str) or (value.__doc__ and value.__doc__.strip())


def test_a_module_does_not_hide_a_public_function() -> None:
    # a submodule of the same name would replace the function once it is imported
    import tracelens.ledger.predict
    import tracelens.measurement.measure
    import tracelens.trace.summarize

    assert callable(tracelens.measure)
    assert callable(tracelens.predict)
    assert callable(tracelens.summarize)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        tracelens.no_such_name  # noqa: B018
