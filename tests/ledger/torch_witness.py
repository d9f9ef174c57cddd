"""Real PyTorch under a fake process group: what a small Llama issues, counted at the dispatcher.

Independent of `tracelens`: nothing here knows a formula.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future, _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

PRIMITIVES = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv_": "recv",
}
torch.set_num_threads(1)
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "int64"}
Counts = Counter[tuple[tuple[int, ...], str, str, int]]
"""(ranks, primitive, dtype, elements of the full buffer) to calls."""


@dataclass(frozen=True)
class Sizes:
    """A small Llama."""

    layers: int = 2
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 96
    vocab: int = 128
    seq: int = 32
    batch: int = 2


@contextlib.contextmanager
def world(size: int, rank: int = 0) -> Iterator[None]:
    """Be one rank of a job that does not exist."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts every collective that passes the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counts = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # let DTensor act first, so that the calls it makes inside come by here too
            return NotImplemented
        name = func._schema.name.split("::")[-1]
        if func.namespace not in ("c10d", "_c10d_functional") or name not in PRIMITIVES:
            return func(*args, **(kwargs or {}))
        tensors = [tensor for argument in args for tensor in _tensors(argument)]
        # of the two buffers of a gather or scatter, the larger one is the whole
        elements = max(tensor.numel() for tensor in tensors)
        group = _group(args)
        if func.namespace == "_c10d_functional" and PRIMITIVES[name] == "all_gather":
            elements *= group.size()
        ranks = tuple(dist.get_process_group_ranks(group))
        self.counts[ranks, PRIMITIVES[name], DTYPES[tensors[0].dtype], elements] += 1
        if name == "allreduce_":
            # the reducer of DDP waits for the result of its own future
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            future.set_result(list(args[0]))
            return args[0], _create_work_from_future(future).boxed()
        return func(*args, **(kwargs or {}))


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for item in argument for tensor in _tensors(item)]
    return []


def _group(args: Sequence[Any]) -> Any:
    for argument in args:
        if isinstance(argument, torch.ScriptObject):
            return dist.ProcessGroup.unbox(argument)
    names = [argument for argument in args if isinstance(argument, str)]
    return _resolve_process_group(names[-1])


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention; keys and values are repeated before the product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.dim = sizes.hidden // sizes.heads
        self.repeats = sizes.heads // sizes.kv_heads
        self.wq = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.wk = nn.Linear(sizes.hidden, sizes.kv_heads * self.dim, bias=False)
        self.wv = nn.Linear(sizes.hidden, sizes.kv_heads * self.dim, bias=False)
        self.wo = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            linear(x).view(batch, length, -1, self.dim).transpose(1, 2) for linear in (self.wq, self.wk, self.wv)
        )
        key, value = (tensor.repeat_interleave(self.repeats, 1) for tensor in (key, value))
        out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):  # type: ignore[misc]
    """SwiGLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.w2 = nn.Linear(sizes.ffn, sizes.hidden, bias=False)
        self.w3 = nn.Linear(sizes.hidden, sizes.ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward, each behind a norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.feed_forward = FeedForward(sizes)
        self.attention_norm = nn.RMSNorm(sizes.hidden)
        self.ffn_norm = nn.RMSNorm(sizes.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):  # type: ignore[misc]
    """Embedding, blocks, norm and head; a pipeline stage leaves out what is not its own."""

    def __init__(self, sizes: Sizes, layers: int | None = None, *, first: bool = True, last: bool = True) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab, sizes.hidden) if first else None
        count = sizes.layers if layers is None else layers
        self.layers = nn.ModuleDict({str(index): Block(sizes) for index in range(count)})
        self.norm = nn.RMSNorm(sizes.hidden) if last else None
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tok_embeddings is not None:
            x = self.tok_embeddings(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.norm is None or self.output is None else self.output(self.norm(x))


def parallelize(model: Llama, mesh: Any, *, sequence_parallel: bool, logits_cut: bool) -> None:
    """Tensor parallelism as torchtitan's plan for Llama has it."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    hidden = Shard(1) if sequence_parallel else Replicate()
    head = ColwiseParallel(
        input_layouts=hidden,
        output_layouts=Shard(-1) if logits_cut else Replicate(),
        use_local_output=not logits_cut,
    )
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=hidden)
    ends: dict[str, Any] = {"tok_embeddings": embedding, "output": head}
    if sequence_parallel:
        ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)
    for block in model.layers.values():
        plan: dict[str, Any] = {
            **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            "attention.wo": RowwiseParallel(output_layouts=hidden),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=hidden),
        }
        if sequence_parallel:
            whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan |= {"attention": whole, "feed_forward": whole}
            plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        parallelize_module(block, mesh, plan)


def checkpoint_blocks(model: Llama, *, early_stop: bool) -> None:
    """Compute every block again in backward."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for name, block in list(model.layers.items()):
        model.layers[name] = checkpoint_wrapper(block, preserve_rng_state=False, early_stop=early_stop)


def shard(model: Llama, mesh: Any, *, units: str, blocks: bool | int = True, last: bool = False) -> None:
    """FSDP2 over the units that torchtitan, or a script of one's own, wraps."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    for block in model.layers.values():
        fully_shard(block, **options, reshard_after_forward=blocks)
    if units == "titan":
        fully_shard(model.tok_embeddings, **options, reshard_after_forward=blocks)
        fully_shard([model.norm, model.output], **options, reshard_after_forward=last)
        fully_shard(model, **options)
    else:
        fully_shard(model, **options, reshard_after_forward=last)


def pipeline_stage(sizes: Sizes, stage: int, stages: int, *, batch: int) -> Any:
    """One stage of a pipeline, its shapes told instead of inferred from messages."""
    from torch.distributed.pipelining import PipelineStage

    first, last = stage == 0, stage == stages - 1
    module = Llama(sizes, sizes.layers // stages, first=first, last=last)
    hidden = torch.zeros(batch, sizes.seq, sizes.hidden, requires_grad=True)
    tokens = torch.zeros(batch, sizes.seq, dtype=torch.int64)
    logits = torch.zeros(batch, sizes.seq, sizes.vocab, requires_grad=True)
    return PipelineStage(
        module,
        stage,
        stages,
        torch.device("cpu"),
        input_args=(tokens if first else hidden,),
        output_args=(logits if last else hidden,),
    )


def train(
    model: nn.Module,
    sizes: Sizes,
    *,
    microbatches: int = 1,
    logits_cut: bool = False,
    before: Callable[[int], Any] = lambda index: contextlib.nullcontext(),
    clip: bool = False,
) -> Counts:
    """Forward and backward of some micro-batches, counted."""
    from torch.distributed.tensor.parallel import loss_parallel

    tokens = torch.randint(0, sizes.vocab, (sizes.batch, sizes.seq))
    with Counting() as counting:
        for index in range(microbatches):
            with before(index) or contextlib.nullcontext():
                logits = model(tokens)
                with loss_parallel() if logits_cut else contextlib.nullcontext():
                    nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        if clip:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            if hasattr(norm, "full_tensor"):
                norm.full_tensor()
    counts: Counts = counting.counts
    return counts
