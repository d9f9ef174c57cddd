"""A Megatron step on up to five axes, DeepSpeed's stages, DualPipe and serving, written from their sources.

Megatron-LM pipeline_parallel/schedules.py, tensor_parallel/layers.py, distributed/param_and_grad_buffer.py;
TransformerEngine attention/dot_product_attention/context_parallel.py; DeepSpeed runtime/zero/stage_1_and_2.py,
stage3.py; deepseek-ai/DualPipe dualpipe.py. Order, primitives, counts and sizes; no model is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.inference_tape import Tape
from tracelens.summary import RankSummary

F, B, O = "forward", "backward", "optimizer"  # noqa: E741


@dataclass(frozen=True)
class Megatron:
    """A layout in Megatron's rank order tp-cp-dp-pp, with the sizes of a small model."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int | None = None  # in the order etp-ep-edp; None: experts cut or copied over tp, which can't be told
    vp: int = 1
    microbatches: int = 4
    layers: int = 4  # of a chunk
    cp_kind: str = "ring_p2p"
    hidden: int = 256
    tokens: int = 512  # of a micro-batch on a context rank
    recompute: bool = False
    distopt: bool = True
    seq: int | None = None  # with a mask of [b, 1, s, s] handed out

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def truth(self) -> dict[str, object]:
        """What an inference should find."""
        many = self.dp * self.cp > 1
        truth: dict[str, object] = {
            "world_size": self.world, "tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp, "ep": self.ep,
            "num_microbatches": self.microbatches, "tokens_per_microbatch": self.tokens * self.cp,
        }  # fmt: skip
        if self.etp is not None:
            truth["etp"] = self.etp
        if self.seq is not None:
            truth |= {"seq_len": self.seq, "micro_batch": self.tokens * self.cp // self.seq}
        if self.tp > 1:
            truth |= {"sequence_parallel": True, "hidden": self.hidden}
        if self.cp > 1:
            truth |= {"cp_kind": self.cp_kind}
        if many:
            sharded = self.distopt
            truth |= {"sharding": "zero1" if sharded else "none", "grad_dtype": "fp32"}
            truth |= {"dp_shard": self.dp if sharded else 1, "dp_replicate": 1 if sharded else self.dp}
        if self.pp > 1:
            truth |= {"schedule": "interleaved_1f1b" if self.vp > 1 else "1f1b", "vp": self.vp}
        return truth

    def summaries(self) -> list[RankSummary]:
        """One rank of each stage."""
        return [self.step(stage * self.tp * self.cp * self.dp).summary() for stage in range(self.pp)]

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The groups of a rank by what they are for."""
        t, c = rank % self.tp, rank // self.tp % self.cp
        d, p = rank // (self.tp * self.cp) % self.dp, rank // (self.tp * self.cp * self.dp)
        block = p * self.tp * self.cp * self.dp
        row = block + d * self.tp * self.cp
        inside = self.tp * self.cp
        first = block + t + (d * self.cp + c) // self.ep * self.ep * self.tp
        experts = tuple(first + i * self.tp for i in range(self.ep))
        parts: tuple[int, ...] = (rank,)
        if self.etp is not None:
            inner, pair = (rank - block) % self.etp, self.etp * self.ep
            start = block + (rank - block) // pair * pair
            experts = tuple(start + inner + i * self.etp for i in range(self.ep))
            parts = tuple((rank - block) // self.etp * self.etp + block + i for i in range(self.etp))
        return {
            "default_pg": tuple(range(self.world)),
            "TENSOR_MODEL_PARALLEL_GROUP": tuple(row + c * self.tp + i for i in range(self.tp)),
            "CONTEXT_PARALLEL_GROUP": tuple(row + t + i * self.tp for i in range(self.cp)),
            "DATA_PARALLEL_GROUP_WITH_CP": tuple(block + t + i * self.tp for i in range(self.cp * self.dp)),
            "PIPELINE_MODEL_PARALLEL_GROUP": tuple(
                t + c * self.tp + d * inside + i * inside * self.dp for i in range(self.pp)
            ),
            "EXPERT_MODEL_PARALLEL_GROUP": experts,
            "EXPERT_TENSOR_PARALLEL_GROUP": parts,
        }

    def step(self, rank: int) -> Tape:
        """One training step of a rank."""
        tape = Tape(rank, self.world, self.groups(rank))
        lane = tape.groups["PIPELINE_MODEL_PARALLEL_GROUP"]
        place = lane.index(rank)
        for number, (kind, chunk) in enumerate(self._order(place)):
            self._pass(tape, lane, place, kind, chunk, number)
        self._update(tape, place)
        return tape

    def _order(self, place: int) -> list[tuple[str, int]]:
        """Forwards and backwards with their chunks, in Megatron's order."""
        total, p, v = self.microbatches * self.vp, self.pp, self.vp
        warm = p - place - 1 if v == 1 else 2 * (p - place - 1) + (v - 1) * p
        warm = min(warm, total)
        order: list[tuple[str, int]] = [(F, i // p % v if v > 1 else 0) for i in range(warm)]
        for i in range(total - warm):
            order.append((F, (i + warm) // p % v if v > 1 else 0))
            order.append((B, v - 1 - i // p % v if v > 1 else 0))
        order += [(B, v - 1 - i // p % v if v > 1 else 0) for i in range(total - warm, total)]
        return order

    def _pass(self, tape: Tape, lane: tuple[int, ...], place: int, kind: str, chunk: int, number: int) -> None:
        first, last = place == 0 and chunk == 0, place == self.pp - 1 and chunk == self.vp - 1
        size = self.tokens * self.hidden // self.tp
        ahead, behind = lane[(place + 1) % self.pp], lane[(place - 1) % self.pp]
        come, go = (behind, ahead) if kind == F else (ahead, behind)
        receives, sends = (not first, not last) if kind == F else (not last, not first)
        group = "PIPELINE_MODEL_PARALLEL_GROUP"
        phase = F if number == 0 else None
        if receives:
            tape.call("recv", group, size, peer=come, phase=phase)
        self._layers(tape, kind, first=first, last=last)
        if sends:
            tape.call("send", group, size, peer=go, phase=phase)

    def _layers(self, tape: Tape, kind: str, *, first: bool, last: bool) -> None:
        s = self.tokens * self.hidden
        tp = "TENSOR_MODEL_PARALLEL_GROUP"
        back = kind == B
        if first and not back:
            for dtype in ("int64", "int64", "fp32", "int64"):
                tape.call("broadcast", tp, self.tokens * self.cp, dtype=dtype, phase=F)
            if self.seq is not None:
                tape.call("broadcast", tp, self.tokens * self.cp * self.seq, dtype="bool", phase=F)
            tape.call("reduce_scatter", tp, s, phase=F)
        if last and back:
            tape.call("all_gather", tp, s, phase=B)
            tape.compute(400, backward=True)
            tape.call("reduce_scatter", tp, s, phase=B)
        for _ in range(self.layers):
            if back and self.recompute:
                self._layer(tape, F, s, issue=B)
            self._layer(tape, kind, s, issue=kind)
        if first and back:
            tape.call("all_gather", tp, s, phase=B)
        if last and not back:
            tape.call("all_gather", tp, s, phase=F)
            tape.compute(400)
            for _ in range(3):
                tape.call("all_reduce", tp, self.tokens, dtype="fp32", phase=F)

    def _layer(self, tape: Tape, kind: str, s: int, *, issue: str) -> None:
        """6 gathers and 4 scatters of a layer with sequence parallelism, attention's and the experts' exchanges."""
        tp, late = "TENSOR_MODEL_PARALLEL_GROUP", issue == B
        for part in ("attention", "mlp"):
            tape.call("all_gather", tp, s, phase=issue)
            tape.compute(100 if kind == F else 200, backward=late)
            if part == "attention" and self.cp > 1:
                self._context(tape, kind, issue)
            if part == "mlp" and self.ep > 1:
                self._experts(tape, kind, issue)
            if kind == B:
                tape.call("all_gather", tp, s, phase=issue)
            tape.call("reduce_scatter", tp, s, phase=issue)

    def _context(self, tape: Tape, kind: str, issue: str) -> None:
        group = "CONTEXT_PARALLEL_GROUP"
        q, kv = self.tokens * self.hidden // self.tp, self.tokens * self.hidden // self.tp // 4
        ranks = tape.groups[group]
        place = ranks.index(tape.rank)
        ahead, behind = ranks[(place + 1) % self.cp], ranks[(place - 1) % self.cp]
        if self.cp_kind == "ring_p2p":
            sizes = [2 * kv] * (self.cp - 1) if kind == F else [2 * kv, *[4 * kv] * (self.cp - 2), 2 * kv]
            if kind == B:
                ahead, behind = behind, ahead
            for size in sizes:
                tape.call("send", group, size, peer=ahead, phase=issue)
                tape.call("recv", group, size, peer=behind, phase=issue)
                tape.compute(10, backward=issue == B)
        elif self.cp_kind == "allgather":
            for _ in range(2):
                tape.call("all_gather", group, kv * self.cp, phase=issue)
            tape.compute(20, backward=issue == B)
            for _ in range(2 if kind == B else 0):
                tape.call("reduce_scatter", group, kv * self.cp, phase=issue)
        else:
            for number, size in enumerate((q, kv, kv, q)):
                tape.call("all_to_all", group, size, phase=issue, name="all_to_all")
                if number == (2 if kind == F else 0):
                    tape.compute(20, backward=issue == B)

    def _experts(self, tape: Tape, kind: str, issue: str) -> None:
        group = "EXPERT_MODEL_PARALLEL_GROUP"
        routed = self.tokens * self.hidden * 2 // self.tp
        splits = [self.tokens * 2 // self.tp // self.ep + (1 if i % 2 else -1) for i in range(self.ep)]
        if kind == F:
            tape.call("all_gather", group, 8 * self.ep * self.ep, dtype="int64", phase=issue)
        for number in range(2):
            tape.call("all_to_all", group, routed, phase=issue, splits=splits)
            tape.call("all_to_all", group, routed // self.hidden, dtype="fp32", phase=issue, splits=splits)
            tape.compute(100, backward=issue == B)
            if number == 0:
                self._parts(tape, sum(splits) * self.hidden, issue)

    def _parts(self, tape: Tape, brought: int, issue: str) -> None:
        """What the dispatch brought, gathered over the parts of an expert and scattered again."""
        group = "EXPERT_TENSOR_PARALLEL_GROUP"
        size = len(tape.groups[group])
        if size == 1:
            return
        tape.call("all_gather", group, brought * size, phase=issue)
        tape.call("all_gather", group, brought * size // self.hidden, dtype="fp32", phase=issue)
        tape.compute(100 if issue == F else 200, backward=issue == B)
        tape.call("reduce_scatter", group, brought * size, phase=issue)

    def _update(self, tape: Tape, place: int) -> None:
        params = self.layers * self.vp * 12 * self.hidden**2 // self.tp + (place == 0) * 1024 * self.hidden
        dp = "DATA_PARALLEL_GROUP_WITH_CP"
        if self.tp > 1:
            tape.call("all_reduce", "TENSOR_MODEL_PARALLEL_GROUP", 2 * self.hidden * self.layers, dtype="fp32", phase=O)
        if not self.distopt:
            tape.call("all_reduce", dp, params, dtype="fp32", phase=O, name="allreduce_coalesced")
        else:
            tape.call("reduce_scatter", dp, params, dtype="fp32", phase=O, name="reduce_scatter_tensor_coalesced")
            tape.call("all_gather", dp, params, phase=O, name="allgather_into_tensor_coalesced")
        tape.call("all_reduce", "default_pg", 1, dtype="fp32", phase=O)


def deepspeed(
    stage: int, world: int, microbatches: int, *, reuse: bool = False
) -> tuple[list[RankSummary], dict[str, object]]:
    """DeepSpeed's ZeRO 1 to 3 on one flat group (all-reduce for 1 and 2, gathers parameter by parameter for 3).

    With `reuse` the parameters stay for backward, as they do where the next use is near (max_reuse_distance).
    """
    tape = Tape(0, world, {"default_pg": range(world), "undefined": range(world)})
    units = [61_440, *[49_152, 16_384] * 6, 61_440]
    total = sum(units)
    for number in range(microbatches):
        for unit in units if stage == 3 else ():
            tape.call("all_gather", "undefined", unit, name="allgather_into_tensor_coalesced")
            tape.compute(50)
        tape.compute(50)
        tape.compute(100, backward=True)
        last = number == microbatches - 1
        for index, unit in enumerate(reversed(units)):
            if stage == 3 and index and not reuse:
                tape.call("all_gather", "undefined", unit, phase=B, name="allgather_into_tensor_coalesced")
            tape.compute(80, backward=True)
        for bucket in (total // 2, total - total // 2) if stage == 3 else ():
            tape.call("reduce_scatter", "undefined", bucket, phase=B, name="reduce_scatter_tensor_coalesced")
        for bucket in (total // 2, total - total // 2) if stage == 2 or (stage == 1 and last) else ():
            tape.call("all_reduce", "undefined", bucket, phase=B)
    tape.call("all_reduce", "undefined", 1, dtype="fp32", phase=O)
    if stage < 3:
        tape.call("all_gather", "undefined", total, phase=O)
    truth: dict[str, object] = {"world_size": world, "tp": 1, "pp": 1, "cp": 1, "dp": world, "sharding": f"zero{stage}"}
    truth |= {"dp_shard": world, "dp_replicate": 1, "grad_dtype": "bf16"}
    if stage > 1:
        truth["num_microbatches"] = microbatches
    return [tape.summary()], truth


def serving(tp: int, pp: int, layers: int = 8) -> tuple[list[RankSummary], dict[str, object]]:
    """Decoding with tensor parallelism inside pipeline stages: all-reduces of activations, no gradients."""
    found = []
    for stage in range(pp):
        rank = stage * tp
        groups = {"default_pg": range(tp * pp), "tp": range(rank, rank + tp), "pp": range(rank % tp, tp * pp, tp)}
        tape = Tape(rank, tp * pp, groups)
        for _ in range(4):
            if stage:
                tape.call("recv", "pp", 64 * 1024, peer=rank - tp, phase=None)
            for _ in range(2 * layers):
                tape.compute(10)
                tape.call("all_reduce", "tp", 64 * 1024, phase=None)
            if stage < pp - 1:
                tape.call("send", "pp", 64 * 1024, peer=rank + tp, phase=None)
        found.append(tape.summary())
    return found, {"world_size": tp * pp, "tp": tp, "pp": pp, "cp": 1, "dp": 1, "ep": 1}


def dualpipe(p: int, chunks: int) -> tuple[list[RankSummary], dict[str, object]]:
    """Bidirectional DualPipe: every rank holds a stage of either direction."""
    tapes = []
    for rank in range(p):
        tape = Tape(rank, p, {"default_pg": range(p)})
        for pair in _dualpipe_order(p, rank, chunks):
            _dualpipe_slot(tape, p, rank, pair)
        tapes.append(tape.summary())
    truth = {"world_size": p, "pp": p, "tp": 1, "dp": 1, "schedule": "dualpipe", "vp": 2, "num_microbatches": chunks}
    return tapes, truth


_Pass = tuple[str, int]
"""Kind, and the direction: 0 from rank 0 on, 1 from the last rank back."""


def _dualpipe_order(p: int, rank: int, chunks: int) -> Iterator[list[_Pass]]:
    half, mirrored = p // 2, rank >= p // 2
    r = min(rank, p - 1 - rank)

    def turn(*passes: _Pass) -> list[_Pass]:
        return [(kind, way ^ mirrored) for kind, way in passes]

    for _ in range(2 * (half - r - 1)):
        yield turn((F, 0))
    for _ in range(r + 1):
        yield turn((F, 0))
        yield turn((F, 1))
    for _ in range(half - r - 1):
        yield turn((B, 1))
        yield turn((F, 1))
    for _ in range(chunks // 2 - p + r + 1):
        yield turn((F, 0), (B, 1))
        yield turn((F, 1), (B, 0))
    for _ in range(half - r - 1):
        yield turn((B, 1))
        yield turn((F, 1), (B, 0))
    for _ in range(r + 1):
        yield turn((B, 1))
        yield turn((B, 0))
    for _ in range(half - r - 1):
        yield turn((B, 0))


def _dualpipe_slot(tape: Tape, p: int, rank: int, passes: list[_Pass]) -> None:
    """Receive, compute and send one pass, or a forward and a backward as one."""
    size = 8192
    moves = []
    for kind, way in passes:
        step = 1 if (way == 0) == (kind == F) else -1
        if 0 <= rank - step < p:
            tape.call("recv", "default_pg", size, peer=rank - step, phase=None)
        moves.append((kind, rank + step))
    for kind, _ in passes:
        tape.compute(100 if kind == F else 200, backward=kind == B)
    for _, peer in moves:
        if 0 <= peer < p:
            tape.call("send", "default_pg", size, peer=peer, phase=None)


def written() -> dict[str, tuple[list[RankSummary], dict[str, object]]]:
    """All schedules of this module by name."""
    megatron = {
        "tp 4 dp 2": Megatron(tp=4, dp=2),
        "tp 8 dp 8, recompute": Megatron(tp=8, dp=8, recompute=True),
        "tp 2 cp 2 ring dp 2": Megatron(tp=2, cp=2, dp=2),
        "cp 4 heads dp 2": Megatron(cp=4, dp=2, cp_kind="ulysses"),
        "cp 4 gather dp 4 tp 2": Megatron(tp=2, cp=4, dp=4, cp_kind="allgather"),
        "pp 4 dp 2, 8 micro-batches": Megatron(pp=4, dp=2, microbatches=8),
        "pp 4 interleaved tp 2 dp 2": Megatron(pp=4, vp=2, tp=2, dp=2, microbatches=8),
        "pp 8 interleaved v 3": Megatron(pp=8, vp=3, dp=2, microbatches=16),
        "pp 2 interleaved": Megatron(pp=2, vp=2, dp=4, tp=2, microbatches=4),
        "ep 4 dp 8": Megatron(ep=4, dp=8),
        "ep 8 pp 2 dp 8": Megatron(ep=8, dp=8, pp=2, microbatches=8),
        "five axes": Megatron(tp=2, cp=2, pp=2, dp=4, ep=4, microbatches=8),
        "five axes, 512": Megatron(tp=4, cp=2, pp=4, dp=16, ep=8, vp=2, microbatches=16, cp_kind="allgather"),
        "pp 16 tp 8 dp 4": Megatron(tp=8, pp=16, dp=4, microbatches=32),
        "ep 4 etp 1 tp 4 dp 4": Megatron(tp=4, dp=4, ep=4, etp=1),
        "ep 4 etp 2 tp 2 dp 8": Megatron(tp=2, dp=8, ep=4, etp=2),
        "ep 2 etp 2 tp 4 dp 4 pp 2": Megatron(tp=4, dp=4, ep=2, etp=2, pp=2, microbatches=8),
        "ep 4 etp 4 tp 2 dp 8": Megatron(tp=2, dp=8, ep=4, etp=4),
        "ep 4 etp 1 cp 2 dp 4": Megatron(cp=2, dp=4, ep=4, etp=1),
        "tp 2 dp 2, masks": Megatron(tp=2, dp=2, seq=128),
        "tp 2 cp 2 dp 2, masks": Megatron(tp=2, cp=2, dp=2, seq=512),
        "dp 8 without a distributed optimizer": Megatron(tp=2, dp=8, distopt=False),
    }
    found = {f"megatron {name}": (layout.summaries(), layout.truth()) for name, layout in megatron.items()}
    for stage, micro in ((1, 1), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2)):
        found[f"deepspeed zero {stage}, {micro} micro-batches"] = deepspeed(stage, 16, micro)
    found["deepspeed zero 3, kept for backward"] = deepspeed(3, 16, 2, reuse=True)
    found |= {f"serving tp {tp} pp {pp}": serving(tp, pp) for tp, pp in ((8, 1), (4, 2))}
    found |= {f"dualpipe {p}": dualpipe(p, chunks) for p, chunks in ((4, 12), (8, 20))}
    return found
