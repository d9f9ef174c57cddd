"""A layout: how many ways each axis cuts the job, and what else decides the traffic of a step."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from tracelens.errors import UsageError
from tracelens.ledger.options import (
    PLAIN,
    DDPOptions,
    DeepSpeedOptions,
    FSDP1Options,
    MegatronOptions,
    NativeOptions,
    Options,
)


class Framework(StrEnum):
    """Whose rules list the terms."""

    textbook = "textbook"
    megatron = "megatron"
    torchtitan = "torchtitan"
    pytorch = "pytorch"
    """torchtitan's building blocks in a script of one's own."""
    ddp = "ddp"
    fsdp1 = "fsdp1"
    deepspeed = "deepspeed"
    serving = "serving"


class CpKind(StrEnum):
    """How context parallelism brings queries and keys together."""

    ring_p2p = "ring_p2p"
    ring_alltoall = "ring_alltoall"
    allgather = "allgather"
    ulysses = "ulysses"
    ulysses_ring = "ulysses_ring"
    flex = "flex"
    """PyTorch FlexAttention: keys and values gathered, their gradients reduce-scattered."""


class Schedule(StrEnum):
    """Order of forwards and backwards on a pipeline rank."""

    gpipe = "gpipe"
    one_f_one_b = "1f1b"
    interleaved = "interleaved_1f1b"
    looped_bfs = "looped_bfs"
    zero_bubble = "zero_bubble"
    zbv = "zbv"
    dualpipe = "dualpipe"
    dualpipev = "dualpipev"


class Recompute(StrEnum):
    """What is computed again in backward."""

    none = "none"
    selective = "selective"
    """The core of attention (Korthikanti et al. 2022)."""
    op_selective = "op_selective"
    """torchtitan's per-operator policy: outputs of matmuls and reduce-scatters are kept."""
    full = "full"


class Precision(StrEnum):
    """Types of the resident states."""

    bf16 = "bf16"
    """bf16 weights with fp32 masters."""
    fp16 = "fp16"
    """fp16 weights with fp32 masters."""
    fp32 = "fp32"
    """fp32 weights, which are their own masters."""
    pure_bf16 = "pure_bf16"
    """bf16 weights and optimizer states, no masters."""


class Optimizer(StrEnum):
    """What an optimizer keeps per parameter beside the master."""

    adam = "adam"
    sgd = "sgd"
    momentum = "momentum"
    adam_8bit = "adam_8bit"


class GroupKind(StrEnum):
    """Every set of ranks that some framework communicates in."""

    tp = "tp"
    cp = "cp"
    cp_inner = "cp_inner"
    """Neighbours of a hierarchical context parallelism, which exchange heads for tokens."""
    cp_outer = "cp_outer"
    """The ring across them."""
    pp = "pp"
    dp_cp = "dp_cp"
    """All ranks with the same slice of the dense parameters."""
    dp_shard_cp = "dp_shard_cp"
    dp_replicate = "dp_replicate"
    reshard = "reshard"
    """The smaller group that `reshard_after_forward=int` gathers from in backward."""
    ep = "ep"
    etp = "etp"
    etp_ep = "etp_ep"
    expert_dp = "expert_dp"
    expert_shard = "expert_shard"
    expert_replicate = "expert_replicate"
    tp_cp = "tp_cp"
    tp_dp_cp = "tp_dp_cp"
    model = "model"
    """Tensor times pipeline parallel."""
    optimizer_instance = "optimizer_instance"
    """The ranks that share one sharded copy of the optimizer states."""
    embedding = "embedding"
    """First and last stage, which share the tied embedding."""
    world = "world"


_DEFAULT_ZERO = {
    Framework.megatron: 1,
    Framework.torchtitan: 3,
    Framework.pytorch: 3,
    Framework.fsdp1: 3,
    Framework.deepspeed: 1,
}
_DEFAULT_CP = {
    Framework.torchtitan: CpKind.allgather,
    Framework.pytorch: CpKind.allgather,
    Framework.deepspeed: CpKind.ulysses,
}


_WORDS: dict[str, type[StrEnum]] = {
    "framework": Framework,
    "cp_kind": CpKind,
    "schedule": Schedule,
    "recompute": Recompute,
    "precision": Precision,
    "optimizer": Optimizer,
}


def _word(field: str, value: str, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise UsageError(
            f"{field} can't be `{value}`", hint=f"one of: {', '.join(member.value for member in kind)}"
        ) from None


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a job is cut. A field left null takes the framework's own default."""

    framework: Framework = Framework.megatron
    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Data-parallel replicas and shards, without cp: world = tp · pp · cp · dp."""
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism inside experts; null is tp in Megatron, else 1."""
    zero: int | None = None
    """0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too."""
    hsdp_shard: int | None = None
    """Size of dp_shard where sharding does not span all of dp; null is dp."""
    reshard_after_forward: bool | int | None = None
    """Free gathered parameters after forward; an int reshards to groups of that size; null is the default."""
    sequence_parallel: bool = True
    """Cut the activations between the tensor-parallel layers along the sequence."""
    cp_kind: CpKind | None = None
    vp: int = 1
    schedule: Schedule | None = None
    micro_batch: int = 1
    num_microbatches: int = 1
    seq_len: int | None = None
    """Tokens of a sequence; null is the model's."""
    recompute: Recompute = Recompute.none
    param_dtype: str = "bf16"
    """Type of activations on the wire and of gathered parameters."""
    grad_dtype: str | None = None
    """Type in which gradients are reduced; null is the framework's default."""
    flash_attention: bool = True
    """Attention that never writes its scores to memory."""
    precision: Precision = Precision.bf16
    optimizer: Optimizer = Optimizer.adam
    capacity_factor: float | None = None
    """Pad every expert to this multiple of its even share; null is dropless."""
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of every stage in pipeline order (stage = chunk · pp + rank); null is the framework's split."""
    gpus_per_node: int = 8
    options: Options | None = None

    def __post_init__(self) -> None:
        """Take words as they are written: `framework="megatron"` is `Framework.megatron`."""
        for field, kind in _WORDS.items():
            value = getattr(self, field)
            if value is not None and not isinstance(value, kind):
                msgspec.structs.force_setattr(self, field, _word(field, value, kind))

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def zero_level(self) -> int:
        """The level of sharding, with the framework's default filled in."""
        return _DEFAULT_ZERO.get(self.framework, 0) if self.zero is None else self.zero

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism inside experts."""
        if self.etp is not None:
            return self.etp
        return self.tp if self.framework is Framework.megatron else 1

    @property
    def kind_of_cp(self) -> CpKind:
        """How context parallelism works, with the framework's default filled in."""
        return self.cp_kind or _DEFAULT_CP.get(self.framework, CpKind.ring_p2p)

    @property
    def cp_inner(self) -> int:
        """Ranks of an inner group of a hierarchical context parallelism; 1 where there is none, or none is given."""
        hierarchical = self.kind_of_cp is CpKind.ulysses_ring and self.framework is Framework.megatron
        return (self.megatron().ulysses_degree or 1) if hierarchical else 1

    @property
    def kind_of_schedule(self) -> Schedule | None:
        """The pipeline schedule; null without a pipeline."""
        if self.pp == 1:
            return None
        return self.schedule or (Schedule.interleaved if self.vp > 1 else Schedule.one_f_one_b)

    @property
    def has_sequence_parallel(self) -> bool:
        """Whether the activations between layers are cut over tp."""
        return self.sequence_parallel and self.tp > 1

    @property
    def dp_shard(self) -> int:
        """Ranks of dp that a state is sharded over, cp left out."""
        if self.zero_level == 0:
            return 1
        return self.hsdp_shard or self.dp

    @property
    def dp_replicate(self) -> int:
        """Replicas of the sharded set."""
        return self.dp // self.dp_shard

    @property
    def shard_ranks(self) -> int:
        """Ranks that dense states are really sharded over: dp_shard with cp flattened in."""
        return self.dp_shard * self.cp if self.zero_level else 1

    @property
    def reshard_ranks(self) -> int:
        """Ranks that parameters stay sharded over between forward and backward, where that is a number."""
        size = self.reshard_after_forward
        return self.shard_ranks if size is None or isinstance(size, bool) else size

    @property
    def expert_dp(self) -> int:
        """Ranks that hold a replica or shard of the same experts."""
        return self.dp * self.cp * self.tp // (self.ep * self.expert_tp)

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks that expert states are sharded over."""
        if not self.zero_level:
            return 1
        return max(1, self.shard_ranks * self.tp // (self.ep * self.expert_tp))

    @property
    def gradient_dtype(self) -> str:
        """Type in which gradients are reduced."""
        if self.grad_dtype is not None:
            return self.grad_dtype
        own = {Framework.textbook, Framework.deepspeed, Framework.fsdp1}
        return self.param_dtype if self.framework in own else "fp32"

    def native(self) -> NativeOptions:
        """The options of PyTorch's own parallelism; the framework's where others are given."""
        if isinstance(self.options, NativeOptions):
            return self.options
        return PLAIN if self.framework is Framework.pytorch else NativeOptions()

    def ddp(self) -> DDPOptions:
        """The options of DDP."""
        return self.options if isinstance(self.options, DDPOptions) else DDPOptions()

    def fsdp1(self) -> FSDP1Options:
        """The options of FSDP1."""
        return self.options if isinstance(self.options, FSDP1Options) else FSDP1Options()

    def megatron(self) -> MegatronOptions:
        """The options of Megatron-Core."""
        return self.options if isinstance(self.options, MegatronOptions) else MegatronOptions()

    def deepspeed(self) -> DeepSpeedOptions:
        """The options of DeepSpeed."""
        return self.options if isinstance(self.options, DeepSpeedOptions) else DeepSpeedOptions()

    def own_options(self) -> Options | None:
        """The options of the layout's framework, its defaults where none are given; None where it has none."""
        kinds: dict[Framework, Callable[[], Options]] = {
            Framework.megatron: self.megatron,
            Framework.torchtitan: self.native,
            Framework.pytorch: self.native,
            Framework.ddp: self.ddp,
            Framework.fsdp1: self.fsdp1,
            Framework.deepspeed: self.deepspeed,
        }
        return kinds[self.framework]() if self.framework in kinds else None
