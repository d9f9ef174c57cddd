"""Where what a user gives and what a trace shows can't both be: said before a comparison puzzles anyone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracelens.comparison.expectation import inferred_fields
from tracelens.inferred import InferredConfig
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec

_FIELDS = (
    "tp", "pp", "dp", "cp", "ep", "etp", "zero", "hsdp_shard", "vp", "microbatches", "micro_batch", "seq_len",
    "grad_dtype",
)  # fmt: skip
_AXES = ("tp", "pp", "dp", "cp", "ep")
_LEFT_OUT = ("tp", "pp", "cp", "ep")
"""Axes that are 1 where others are given and they are not."""


def contradict_layout(
    given: Mapping[str, Any], layout: Layout, config: InferredConfig | None, world_size: int | None
) -> Iterator[str]:
    """Options of a layout that the traffic shows to be others: `you gave tp 4, the traffic shows tp 2`.

    Args:
        given: options as the user gave them.
        layout: that they were completed to.
        config: what the traffic shows, where anything was inferred.
        world_size: ranks of the job.
    """
    seen = {} if config is None else inferred_fields(config, world_size)
    for name in _FIELDS:
        if name in given and name in seen and given[name] != seen[name]:
            yield f"you gave {name} {given[name]}, the traffic shows {name} {seen[name]}"
    for name in _LEFT_OUT if any(axis in given for axis in _AXES) else ():
        if name not in given and seen.get(name, 1) != getattr(layout, name):
            yield f"{name} was left out and so is {getattr(layout, name)}, the traffic shows {name} {seen[name]}"
    if given.get("framework") == Framework.ddp and "zero" not in given and seen.get("zero"):
        yield f"you gave framework ddp, which shards nothing, the traffic shows zero {seen['zero']}"


def contradict_model(model: ModelSpec, config: InferredConfig | None) -> Iterator[str]:
    """The sizes of a model that the trace shows to be others; nothing where either is unknown."""
    if config is None or config.hidden is None:
        return
    shown, own = [f"hidden {config.hidden}"], [f"hidden {model.hidden}"]
    differs = config.hidden != model.hidden
    if config.layers_per_stage is not None and config.pp is not None:
        layers = config.layers_per_stage * config.pp
        shown.append(f"{'about ' if config.pp > 1 else ''}{layers} layers")
        own.append(f"{model.layers} layers")
        # stages may have a layer more or less than one another
        differs = differs or abs(layers - model.layers) >= config.pp
    if differs:
        yield f"the trace shows {', '.join(shown)}; {model.name} has {', '.join(own)}"
