"""Layouts of real PyTorch code, to run as a rank of a world that does not exist (needs torch).

The collectives are those of DDP, FSDP, DTensor, context parallelism and the pipeline schedules of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.inference_models import Decoder, Sizes

TITAN_ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@dataclass(frozen=True)
class Layout:
    """One configuration: sizes of the axes and the habits."""

    name: str
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp_shard: int = 1
    dp_replicate: int = 1
    ep: int = 1
    data: str = "fsdp2"  # ddp, fsdp1, fsdp1_grad, fsdp2, zero1, none
    reshard: bool | int = True
    sp: bool = True
    cp_kind: str = "allgather"
    schedule: str = "none"
    vp: int = 1
    microbatches: int = 1
    fp32_reduce: bool = True
    sizes: Sizes = field(default_factory=Sizes)
    held_out: bool = False
    trains: bool = True  # or runs forward only, as an evaluation does

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp * self.pp * self.cp * self.dp_shard * self.dp_replicate

    def ranks(self) -> tuple[int, ...]:
        """One rank of each pipeline stage."""
        per_stage = self.world // self.pp
        return tuple(stage * per_stage for stage in range(self.pp))

    def truth(self) -> dict[str, Any]:
        """What an inference should find; what no trace can show is left out."""
        plain = self.data in ("ddp", "none")
        dp = self.dp_shard * self.dp_replicate
        truth: dict[str, Any] = {
            "world_size": self.world,
            "tp": self.tp,
            "pp": self.pp,
            "cp": self.cp,
            "dp": dp,
            "ep": self.ep,
            "dp_shard": 1 if plain else self.dp_shard,
            "dp_replicate": dp if plain else self.dp_replicate,
            "etp": 1,
            "hidden": self.sizes.hidden,
            "tokens_per_microbatch": self.sizes.batch * self.sizes.seq,
        }
        if dp * self.cp > 1:
            truth["sharding"] = {"ddp": "none", "none": "none", "zero1": "zero1"}.get(self.data, "zero3")
            truth["grad_dtype"] = "fp32" if plain or self.fp32_reduce or self.data == "zero1" else "bf16"
        if self.data == "fsdp1_grad":
            truth["sharding"] = "zero2"
        if truth.get("sharding") in ("zero2", "zero3"):
            truth["reshard_after_forward"] = self.data == "fsdp1" or (bool(self.reshard) and self.data != "fsdp1_grad")
        if self.tp > 1:
            truth["sequence_parallel"] = self.sp
        if self.cp > 1:
            truth["cp_kind"] = {"gathered": "allgather"}.get(self.cp_kind, self.cp_kind)
        if self.pp > 1:
            truth |= {"schedule": SCHEDULES[self.schedule][0], "vp": self.vp}
        if self.pp > 1 or (self.data not in ("ddp", "zero1") or self.tp * self.cp * self.ep > 1):
            truth["num_microbatches"] = self.microbatches
        return truth


SCHEDULES = {
    "GPipe": ("gpipe", 1),
    "1F1B": ("1f1b", 1),
    "Interleaved1F1B": ("interleaved_1f1b", 2),
    "LoopedBFS": ("looped_bfs", 2),
    "InterleavedZeroBubble": ("zero_bubble", 2),
    "ZBVZeroBubble": ("zbv", 2),
    "DualPipeV": ("dualpipev", 2),
}


class Program:
    """A step of a layout on one rank."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.mesh = self._mesh()
        self.stages = self._stages()
        parameters = [p for stage in self.stages for p in stage.parameters()]
        self.optimizer = self._optimizer(parameters)
        self.pipeline = self._pipeline() if layout.pp > 1 else None

    def _mesh(self) -> Any:
        names = [n for n in TITAN_ORDER if getattr(self.layout, n) > 1] or ["dp_shard"]
        if self.layout.data == "ddp" and self.layout.ep > 1:
            return init_device_mesh(
                "cpu", (self.layout.world // self.layout.ep, self.layout.ep), mesh_dim_names=("dp_replicate", "ep")
            )
        return init_device_mesh("cpu", tuple(getattr(self.layout, n) for n in names), mesh_dim_names=tuple(names))

    def _has(self, name: str) -> bool:
        return name in (self.mesh.mesh_dim_names or ())

    def _stages(self) -> list[nn.Module]:
        x = self.layout
        rank = self.mesh["pp"].get_local_rank() if x.pp > 1 else 0
        count = x.pp * x.vp
        own = [rank + x.pp * i for i in range(x.vp)]
        if x.schedule in ("ZBVZeroBubble", "DualPipeV"):
            own = [rank, count - 1 - rank]
        self.own = own
        context = self.mesh["cp"].get_group() if x.cp > 1 else None
        by_heads = x.cp_kind == "ulysses"
        ring = None if context is None or by_heads else (x.cp_kind, context)
        if x.cp_kind in ("allgather", "ring_alltoall"):
            _rotate("alltoall" if x.cp_kind == "ring_alltoall" else "allgather")
        groups = (context if by_heads else None, self._expert_group(), ring)
        per = x.sizes.layers // count
        return [
            self._apply(
                Decoder(x.sizes, range(i * per, (i + 1) * per), first=i == 0, last=i == count - 1, groups=groups)
            )
            for i in own
        ]

    def _expert_group(self) -> Any:
        x = self.layout
        if x.ep == 1:
            return None
        if self._has("ep"):
            return self.mesh["ep"].get_group()
        if x.ep == x.dp_shard:
            return self.mesh["dp_shard"].get_group()
        import torch.distributed as dist

        group, _ = dist.new_subgroups(group_size=x.ep)
        return group

    def _apply(self, model: nn.Module) -> nn.Module:
        x = self.layout
        if x.tp > 1:
            _tensor_parallel(model, self.mesh["tp"], sp=x.sp)
        if x.data == "ddp" and x.dp_replicate > 1:
            group = self.mesh["dp_replicate"].get_group() if len(self.mesh.mesh_dim_names) > 1 else None
            if x.ep > 1:
                group = None
                expert = {n for n, _ in model.named_parameters() if ".own." in n}
                nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, expert)
            return nn.parallel.DistributedDataParallel(model, process_group=group)
        if x.data == "zero1":
            return nn.parallel.DistributedDataParallel(model)
        if x.data.startswith("fsdp1"):
            return _fsdp1(model, x, self.mesh)
        if x.data == "fsdp2" and x.dp_shard * x.cp > 1:
            _fsdp2(model, x, self._shard_mesh())
        return model

    def _shard_mesh(self) -> Any:
        x = self.layout
        shard = [n for n in ("dp_shard", "cp") if self._has(n)]
        if x.dp_replicate > 1 and len(shard) == 2:
            return self.mesh["dp_replicate", "dp_shard"]
        if len(shard) == 2:
            return self.mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
        return self.mesh["dp_replicate", shard[0]] if x.dp_replicate > 1 else self.mesh[shard[0]]

    def _optimizer(self, parameters: list[Any]) -> Any:
        if self.layout.data == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.0)
        return torch.optim.SGD(parameters, lr=0.0)

    def _pipeline(self) -> Any:
        from torch.distributed.pipelining import PipelineStage, schedules

        x = self.layout
        one = torch.zeros(x.sizes.batch, x.sizes.seq // x.cp, dtype=torch.long)
        seq = x.sizes.seq // x.cp
        dtype = torch.bfloat16 if x.data == "fsdp2" and x.dp_shard > 1 else torch.float32
        own = seq // x.tp if x.sp else seq
        wide = torch.zeros(x.sizes.batch, own, x.sizes.hidden, dtype=dtype, requires_grad=True)
        logits = torch.zeros(x.sizes.batch, seq, x.sizes.vocab)
        count = x.pp * x.vp
        stages = [
            PipelineStage(
                model,
                index,
                count,
                torch.device("cpu"),
                input_args=(one if index == 0 else wide,),
                output_args=(logits if index == count - 1 else wide,),
                group=self.mesh["pp"].get_group(),
            )
            for index, model in zip(self.own, self.stages, strict=True)
        ]
        kind = getattr(schedules, f"Schedule{x.schedule}")
        target: Any = stages[0] if kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B) else stages
        return kind(target, x.microbatches, loss_fn=_loss)

    def step(self) -> None:
        """One step, of training or of an evaluation."""
        x = self.layout
        tokens = torch.randint(0, x.sizes.vocab, (x.sizes.batch * (x.microbatches if x.pp > 1 else 1), x.sizes.seq))
        if x.cp > 1:
            tokens = tokens[:, : x.sizes.seq // x.cp]
        if not x.trains:
            self._evaluate(tokens)
            return
        if self.pipeline is not None:
            self._pipelined_step(tokens)
        else:
            for _ in range(x.microbatches):
                _loss(self.stages[0](tokens), tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def _evaluate(self, tokens: torch.Tensor) -> None:
        if self.pipeline is not None:
            self._pipelined_step(tokens)
        else:
            self.stages[0](tokens)

    def _pipelined_step(self, tokens: torch.Tensor) -> None:
        count = self.layout.pp * self.layout.vp
        assert self.pipeline is not None
        run = self.pipeline.step if self.layout.trains else self.pipeline.eval
        last = {"target": tokens, "losses": []} if count - 1 in self.own else {}
        run(*([tokens] if 0 in self.own else []), **last)


def _rotate(method: str) -> None:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention.set_rotate_method(method)


def _loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if hasattr(logits, "full_tensor"):
        logits = logits.full_tensor()
    return F.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), target.reshape(-1))


def _tensor_parallel(model: Any, mesh: Any, *, sp: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    if sp:
        whole = {"tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))}
        whole |= {
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
    else:
        whole = {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate()),
            "output": ColwiseParallel(output_layouts=Replicate()),
        }
    parallelize_module(model, mesh, {k: v for k, v in whole.items() if getattr(model, k) is not None})
    inner: dict[str, Any] = {f"attention.{n}": ColwiseParallel() for n in ("wq", "wk", "wv")}
    inner |= {f"feed_forward.{n}": ColwiseParallel() for n in ("w1", "w3")}
    out = {"output_layouts": Shard(1)} if sp else {}
    inner |= {"attention.wo": RowwiseParallel(**out), "feed_forward.w2": RowwiseParallel(**out)}
    if sp:
        gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        inner |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        inner |= {"attention": PrepareModuleInput(**gather), "feed_forward": PrepareModuleInput(**gather)}
    for block in model.layers.values():
        parallelize_module(block, mesh, inner)


def _fsdp2(model: Any, layout: Layout, mesh: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    reduce = torch.float32 if layout.fp32_reduce else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    options = {"mesh": mesh, "mp_policy": policy}
    for block in model.layers.values():
        fully_shard(block, **options, reshard_after_forward=layout.reshard)
    if model.tok_embeddings is not None:
        fully_shard(model.tok_embeddings, **options, reshard_after_forward=layout.reshard)
    if model.norm is not None:
        fully_shard([model.norm, model.output], **options, reshard_after_forward=False)
    fully_shard(model, **options)


def _fsdp1(model: Any, layout: Layout, mesh: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from benchmarks.inference_models import Block

    hybrid = layout.dp_replicate > 1
    kind = ShardingStrategy.SHARD_GRAD_OP if layout.data == "fsdp1_grad" else ShardingStrategy.FULL_SHARD
    if hybrid:
        kind = ShardingStrategy.HYBRID_SHARD
    reduce = torch.float32 if layout.fp32_reduce else torch.bfloat16
    return FullyShardedDataParallel(
        model,
        device_mesh=mesh,
        sharding_strategy=kind,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
