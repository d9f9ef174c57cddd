"""The native ledger equals what real PyTorch issues under a fake process group: every call, element and dtype."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import msgspec
import pytest

from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import CpKind, Framework, GroupKind, Layout, Recompute
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.options import PLAIN, DDPOptions, Units
from tracelens.ledger.predict import predict
from tracelens.ledger.stages import stage_owner

torch = pytest.importorskip("torch", reason="needs PyTorch (extra torch)")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from tests.ledger.torch_witness import (  # noqa: E402
    Counting,
    Counts,
    Llama,
    Sizes,
    checkpoint_blocks,
    parallelize,
    pipeline_stage,
    shard,
    train,
    world,
)

pytestmark = [
    pytest.mark.torch,
    # a warning of FSDP2 about in-place operations, of which there are none here
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]
SHAPES = [
    Sizes(),
    Sizes(layers=3, hidden=32, heads=8, kv_heads=8, ffn=48, vocab=64, seq=16, batch=1),
]
# rows that do not divide over the shards, so that FSDP2 pads
PADDED = Sizes(layers=2, hidden=60, heads=6, kv_heads=2, ffn=100, vocab=101, seq=8, batch=1)


def model_of(sizes: Sizes) -> ModelSpec:
    return ModelSpec(
        name="witness",
        layers=sizes.layers,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn=sizes.ffn,
        vocab=sizes.vocab,
        seq_len=sizes.seq,
    )


def predicted(sizes: Sizes, layout: Layout, rank: int = 0, *, groups: set[GroupKind] | None = None) -> Counts:
    """The ledger's calls of one rank, in the witness's terms."""
    counts: Counts = Counter()
    ledger = predict(model_of(sizes), layout)
    for row in ledger.rows_of_stage(rank * layout.pp // layout.world_size):
        if groups is None or row.group in groups:
            ranks = tuple(group_ranks(layout, row.group, rank))
            counts[ranks, row.primitive.value, row.dtype, int(row.elements)] += int(row.calls)
    return counts


def native(sizes: Sizes, **fields: Any) -> Layout:
    options = msgspec.structs.replace(PLAIN, **fields.pop("options", {}))
    return Layout(framework=Framework.pytorch, micro_batch=sizes.batch, options=options, **fields)


@pytest.mark.parametrize("sizes", [*SHAPES, PADDED])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (8, 1)])
@pytest.mark.parametrize("units", ["titan", "blocks"])
def test_fsdp2_gathers_and_scatters_unit_by_unit(sizes: Sizes, ranks: int, units: str, microbatches: int) -> None:
    with world(ranks):
        model = Llama(sizes)
        shard(model, init_device_mesh("cpu", (ranks,)), units=units)
        counted = train(model, sizes, microbatches=microbatches, clip=True)

    choices = {"units": Units(units), "root_reshards": False, "clip_gradients": True}
    layout = native(sizes, dp=ranks, num_microbatches=microbatches, options=choices)
    assert counted == predicted(sizes, layout)


@pytest.mark.parametrize(("blocks", "last"), [(True, True), (True, False), (False, False), (4, False)])
def test_fsdp2_gathers_in_backward_what_it_freed_after_forward(*, blocks: bool | int, last: bool) -> None:
    sizes = SHAPES[0]
    with world(8):
        model = Llama(sizes)
        shard(model, init_device_mesh("cpu", (8,)), units="titan", blocks=blocks, last=last)
        counted = train(model, sizes)

    choices = {"units": Units.titan, "root_reshards": last}
    layout = native(sizes, dp=8, reshard_after_forward=blocks, options=choices)
    assert counted == predicted(sizes, layout)


def test_fsdp2_without_sync_scatters_once_a_step() -> None:
    sizes, microbatches = SHAPES[0], 4
    with world(8):
        model: Any = Llama(sizes)
        shard(model, init_device_mesh("cpu", (8,)), units="titan")

        def before(index: int) -> Any:
            model.set_requires_gradient_sync(index == microbatches - 1)
            return contextlib.nullcontext()

        counted = train(model, sizes, microbatches=microbatches, before=before)

    choices = {"units": Units.titan, "root_reshards": False, "accumulate_without_sync": True}
    layout = native(sizes, dp=8, num_microbatches=microbatches, options=choices)
    assert counted == predicted(sizes, layout)


@pytest.mark.parametrize(("sizes", "replicas", "shards"), [(SHAPES[0], 2, 4), (SHAPES[1], 4, 2)])
def test_hsdp_scatters_inside_and_reduces_the_shard_across(sizes: Sizes, replicas: int, shards: int) -> None:
    with world(8):
        model = Llama(sizes)
        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("dp_replicate", "dp_shard"))
        shard(model, mesh, units="blocks", last=True)
        counted = train(model, sizes, clip=True)

    layout = native(sizes, dp=8, hsdp_shard=shards, options={"clip_gradients": True})
    assert counted == predicted(sizes, layout)


@pytest.mark.parametrize(("sizes", "ranks"), [(SHAPES[0], 2), (SHAPES[1], 8)])
@pytest.mark.parametrize("recompute", [Recompute.none, Recompute.full])
@pytest.mark.parametrize("logits_cut", [True, False])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_tensor_parallelism_issues_what_dtensor_redistributes(
    sizes: Sizes, ranks: int, recompute: Recompute, *, logits_cut: bool, sequence_parallel: bool
) -> None:
    with world(ranks):
        model = Llama(sizes)
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        parallelize(model, mesh, sequence_parallel=sequence_parallel, logits_cut=logits_cut)
        if recompute is Recompute.full:
            checkpoint_blocks(model, early_stop=False)
        counted = train(model, sizes, logits_cut=logits_cut)

    layout = native(
        sizes,
        tp=ranks,
        zero=0,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        param_dtype="fp32",
        options={"loss_parallel": logits_cut, "recompute_stops_early": False},
    )
    assert counted == predicted(sizes, layout)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_recompute_that_stops_early_leaves_out_the_last_reduction(*, sequence_parallel: bool) -> None:
    sizes = SHAPES[0]
    with world(4):
        model = Llama(sizes)
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        parallelize(model, mesh, sequence_parallel=sequence_parallel, logits_cut=False)
        checkpoint_blocks(model, early_stop=True)
        counted = train(model, sizes)

    layout = native(
        sizes,
        tp=4,
        zero=0,
        recompute=Recompute.full,
        param_dtype="fp32",
        sequence_parallel=sequence_parallel,
        options={"recompute_stops_early": True},
    )
    assert counted == predicted(sizes, layout)


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("logits_cut", [True, False])
def test_fsdp2_over_tensor_parallelism(sizes: Sizes, *, logits_cut: bool) -> None:
    with world(8):
        model = Llama(sizes)
        mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp_shard", "tp"))
        parallelize(model, mesh["tp"], sequence_parallel=True, logits_cut=logits_cut)
        shard(model, mesh["dp_shard"], units="titan")
        counted = train(model, sizes, logits_cut=logits_cut, clip=True)

    choices = {
        "units": Units.titan,
        "root_reshards": False,
        "clip_gradients": True,
        "loss_parallel": logits_cut,
    }
    assert counted == predicted(sizes, native(sizes, tp=2, dp=4, options=choices))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("kind", "method"), [(CpKind.allgather, "allgather"), (CpKind.ring_alltoall, "alltoall")])
def test_ring_attention_rotates_keys_values_and_their_gradients(ranks: int, kind: CpKind, method: str) -> None:
    from torch.distributed.tensor.experimental._context_parallel import _attention as attention

    sizes = Sizes(layers=1, seq=64, batch=1)
    width = sizes.hidden // sizes.heads
    shape = (sizes.batch, sizes.heads, sizes.seq // ranks, width)
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(3))

    def forward(q: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        return torch.zeros_like(q), torch.zeros(q.shape[:3])

    def backward(*, query: Any, key: Any, value: Any, **_: Any) -> tuple[Any, ...]:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)

    with world(ranks):
        attention.set_rotate_method(method)
        group = torch.distributed.group.WORLD
        with Counting() as counting:
            out, lse = attention._templated_ring_attention(group, 2, forward, query, key, value, is_causal=True)
            attention._templated_ring_attention_backward(
                group, 2, backward, out, "grad_out", query, key, value, out, lse, True
            )

    layout = native(sizes, cp=ranks, cp_kind=kind)
    assert counting.counts == predicted(sizes, layout, groups={GroupKind.cp})


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("cap", [None, 0.02])
def test_ddp_reduces_bucket_by_bucket_in_the_order_of_gradients(sizes: Sizes, cap: float | None) -> None:
    with world(4):
        model = torch.nn.parallel.DistributedDataParallel(
            Llama(sizes), **({} if cap is None else {"bucket_cap_mb": cap})
        )
        train(model, sizes)
        counted = train(model, sizes)

    options = DDPOptions() if cap is None else DDPOptions(bucket_mib=cap, first_bucket_mib=None)
    layout = Layout(framework=Framework.ddp, dp=4, micro_batch=sizes.batch, options=options)
    assert counted == predicted(sizes, layout)


SCHEDULES = [
    ("1F1B", {"schedule": "1f1b"}, 1),
    ("GPipe", {"schedule": "gpipe"}, 1),
    ("Interleaved1F1B", {"schedule": "interleaved_1f1b", "vp": 2}, 2),
    ("LoopedBFS", {"schedule": "looped_bfs", "vp": 2}, 2),
    ("ZBVZeroBubble", {"schedule": "zbv"}, 2),
]


@pytest.mark.parametrize(("name", "fields", "chunks"), SCHEDULES)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_pipeline_sends_what_crosses_between_its_ranks(
    name: str, fields: dict[str, Any], chunks: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    # the other stages are not there to vote that every shape is known
    agreed = torch.ones(1, dtype=torch.int32)
    monkeypatch.setattr(PipelineStage, "_warmup_backward_result", lambda *_, **__: agreed, raising=False)

    sizes, stages, microbatches = Sizes(layers=8, batch=8), 4, 8
    layout = Layout(
        framework=Framework.pytorch, pp=stages, zero=0, num_microbatches=microbatches, param_dtype="fp32", **fields
    )
    owned = [stage for stage in range(stages * chunks) if stage_owner(layout, stage) == rank]
    with world(stages, rank):
        modules = [pipeline_stage(sizes, stage, stages * chunks, batch=sizes.batch // microbatches) for stage in owned]
        schedule = get_schedule_class(name)(
            modules if chunks > 1 else modules[0],
            microbatches,
            loss_fn=lambda out, target: torch.nn.functional.cross_entropy(out.flatten(0, 1), target.flatten()),
        )
        tokens = torch.randint(0, sizes.vocab, (sizes.batch, sizes.seq))
        schedule.step(*([tokens] if owned[0] == 0 else []), target=tokens)
        with Counting() as counting:
            schedule.step(*([tokens] if owned[0] == 0 else []), target=tokens)

    assert counting.counts == predicted(sizes, layout, rank, groups={GroupKind.pp})
