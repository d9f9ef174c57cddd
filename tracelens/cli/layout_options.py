"""The options that describe a model and its layout, handed to a command as `model` and `layout`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from tracelens.errors import UsageError
from tracelens.fields import explain_fault, nearest
from tracelens.ledger.layout import CpKind, Framework, Layout, Optimizer, Precision, Recompute, Schedule
from tracelens.ledger.options import Options

F = TypeVar("F", bound=Callable[..., Any])
_POSITIVE = click.IntRange(min=1)


def _degree(flag: str, help_text: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(flag, type=_POSITIVE, help=help_text, **attributes)


def _word(flag: str, kind: type[Any], help_text: str) -> Callable[[F], F]:
    return click.option(flag, type=click.Choice([member.value for member in kind]), help=help_text)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _degree("--tp", "Tensor parallel."),
    _degree("--pp", "Pipeline stages."),
    _degree("--dp", "Data-parallel replicas and shards; world = tp·pp·cp·dp."),
    _degree("--cp", "Context parallel."),
    _degree("--ep", "Expert parallel."),
    _degree("--etp", "Tensor parallel inside experts."),
    click.option("--zero", type=click.IntRange(0, 3), help="0 nothing sharded, up to 3 parameters too."),
    _degree("--hsdp-shard", "Shard over this many of dp, replicate over the rest."),
    click.option("--no-reshard", is_flag=True, help="Keep gathered parameters between forward and backward."),
    _degree("--reshard", "Reshard to groups of this size after forward."),
    click.option("--no-sequence-parallel", is_flag=True, help="Tensor parallel without sequence parallel."),
    _word("--cp-kind", CpKind, "How context parallelism moves keys and values."),
    _degree("--vp", "Model chunks per pipeline rank."),
    _word("--schedule", Schedule, "Pipeline schedule."),
    _degree("--micro-batch", "Sequences per micro-batch."),
    _degree("--microbatches", "Micro-batches per step and replica."),
    _degree("--seq-len", "Tokens of a sequence."),
    _word("--recompute", Recompute, "What backward computes again."),
    click.option("--grad-dtype", type=click.Choice(["bf16", "fp16", "fp32"]), help="Type of reduced gradients."),
    click.option(
        "--param-dtype",
        type=click.Choice(["bf16", "fp16", "fp32"]),
        help="Type of activations and gathered parameters on the wire.",
    ),
    click.option("--no-flash-attention", is_flag=True, help="Attention that writes its scores to memory."),
    _word("--precision", Precision, "Types of the resident states."),
    _word("--optimizer", Optimizer, "What the optimizer keeps."),
    click.option(
        "--capacity-factor",
        type=click.FloatRange(min=0, min_open=True),
        help="Pad experts to this multiple of their even share.",
    ),
    click.option("--layers-per-stage", metavar="N,N,...", help="Layers of every stage, in pipeline order."),
    _word("--framework", Framework, "Whose rules: megatron unless given."),
    click.option(
        "--option",
        multiple=True,
        metavar="NAME=VALUE",
        help="A choice inside the framework, such as overlap_grad_reduce=true (docs/predict.md lists them).",
    ),
    _degree("--gpus-per-node", "GPUs in a node: 8 unless given."),
    _degree("--world-size", "GPUs that there are; checked against the degrees."),
)
_FIELDS = {"microbatches": "num_microbatches"}


def model_option(*, required: bool) -> Callable[[F], F]:
    """Add --model."""
    return click.option(
        "--model",
        "model_source",
        metavar="NAME|FILE",
        required=required,
        help="A preset such as llama3-70b, a Hugging Face config.json, or a TOML file.",
    )


def layout_options(function: F) -> F:
    """Add every option of a layout, as the argument `layout_fields` (only what was given)."""
    return _add(_OPTIONS, function)


def layout_options_beside_a_trace(function: F) -> F:
    """Likewise without --gpus-per-node, which commands that measure have anyway."""
    return _add(tuple(option for option in _OPTIONS if option_name(option) != "gpus_per_node"), function)


def _add(options: tuple[Callable[[Any], Any], ...], function: F) -> F:
    @functools.wraps(function)
    def wrapper(**given: Any) -> Any:
        fields = {name: given.pop(name) for name in map(option_name, options)}
        # a flag that is not set and a repeatable option that is not given say nothing
        told = {key: value for key, value in fields.items() if value is not None and value is not False and value != ()}
        return function(layout_fields=told, **given)

    decorated: Any = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=64)
def option_name(option: Callable[[Any], Any]) -> str:
    """The parameter name that an option decorator passes on."""

    def probe() -> None:
        """Carry the option."""

    option(probe)
    return str(probe.__click_params__[0].name)  # type: ignore[attr-defined]


LAYOUT_NAMES = frozenset(map(option_name, _OPTIONS))
"""What the options of a layout are called, dashes as underscores."""


def build_layout(fields: dict[str, Any]) -> Layout:
    """The layout that the options say.

    Raises:
        UsageError: for options that contradict one another.
    """
    fields = dict(fields)
    world_size = fields.pop("world_size", None)
    no_reshard, groups = fields.pop("no_reshard", False), fields.pop("reshard", None)
    if no_reshard and groups is not None:
        raise UsageError("--no-reshard and --reshard contradict one another")
    values = {_FIELDS.get(key, key): value for key, value in fields.items()}
    if no_reshard or groups is not None:
        values["reshard_after_forward"] = False if no_reshard else groups
    values["sequence_parallel"] = not values.pop("no_sequence_parallel", False)
    values["flash_attention"] = not values.pop("no_flash_attention", False)
    if "layers_per_stage" in values:
        values["layers_per_stage"] = _numbers(values["layers_per_stage"])
    choices = values.pop("option", ())
    layout = msgspec.convert(values, Layout)
    if choices:
        layout = msgspec.structs.replace(layout, options=_options(layout, choices))
    _check_world(layout, world_size)
    return layout


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--layers-per-stage `{text}` is no list of numbers", hint="such as 7,8,8,7") from None


def _options(layout: Layout, choices: tuple[str, ...]) -> Options:
    """The framework's own options with some of them changed."""
    own = layout.own_options()
    if own is None:
        raise UsageError(f"{layout.framework} has no options", hint="leave --option out")
    fields = {name: getattr(own, name) for name in own.__struct_fields__}
    for choice in choices:
        name, equals, value = choice.partition("=")
        if name not in fields:
            raise UsageError(f"{layout.framework} has no option `{name}`", hint=nearest(name, tuple(fields)))
        if not equals:
            raise UsageError(f"--option {name} has no value", hint=f"write --option {name}=VALUE")
        fields[name] = None if value == "null" else value
    try:
        return msgspec.convert(fields, type(own), strict=False)
    except msgspec.ValidationError as error:
        fault = explain_fault(error, type(own), fields)
        raise UsageError(f"--option: {fault.told}", hint=fault.hint) from error


def _check_world(layout: Layout, world_size: int | None) -> None:
    if world_size is not None and world_size != layout.world_size:
        raise UsageError(
            f"tp {layout.tp} · pp {layout.pp} · cp {layout.cp} · dp {layout.dp} = {layout.world_size}, "
            f"and the world size is {world_size}",
            hint="choose degrees whose product is the world size",
        )
