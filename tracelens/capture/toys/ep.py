"""Expert parallelism: tokens go to their experts by all-to-all, and come back by another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from tracelens.capture.toys.exercise import WORLD_SIZE, Check, Exercise, Sent, check_close, check_values
from tracelens.collectives import Primitive


class AllToAll(torch.autograd.Function):
    """Rows to their ranks; backward, the same with the splits exchanged."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, out_splits: list[int], in_splits: list[int]) -> torch.Tensor:
        ctx.splits = (in_splits, out_splits)
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        out_splits, in_splits = ctx.splits
        grad = grads[0].new_empty(sum(out_splits), grads[0].shape[1])
        dist.all_to_all_single(grad, grads[0].contiguous(), out_splits, in_splits)
        return grad, None, None


def imbalance(received: Sequence[int]) -> float:
    """Load of the busiest over the mean load: the article's rho."""
    return max(received) * len(received) / sum(received)


def capacity(factor: float, *, tokens: int, topk: int, experts: int) -> int:
    """Tokens that an expert takes at most (Switch Transformer, Fedus et al. 2021, equation 3, with top-k)."""
    return math.ceil(factor * tokens * topk / experts)


class ExpertParallel(Exercise):
    """8 experts, two on each rank; 16 tokens on each rank, each to its 2 best experts."""

    name = "ep"
    title = "tokens to their experts and back, by two all-to-alls"
    layout: ClassVar = {"ep": WORLD_SIZE, "dp": WORLD_SIZE, "zero": 0}

    EXPERTS, TOPK, TOKENS, HIDDEN = 8, 2, 16, 4

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        random = torch.Generator().manual_seed(0)
        self.router = torch.randn(self.HIDDEN, self.EXPERTS, generator=random)
        self.experts = torch.randn(self.EXPERTS, self.HIDDEN, self.HIDDEN, generator=random)
        self.tokens = torch.randn(WORLD_SIZE, self.TOKENS, self.HIDDEN, generator=random)
        self.per_rank = self.EXPERTS // WORLD_SIZE
        self.own = slice(self.rank * self.per_rank, (self.rank + 1) * self.per_rank)

        experts, tokens = self.experts.clone().requires_grad_(), self.tokens.clone().requires_grad_()
        self.reference = [self._look_up(part, experts) for part in tokens]
        torch.stack(self.reference).square().sum().backward()
        self.reference_experts_grad = experts.grad[self.own]
        self.reference_tokens_grad = tokens.grad[self.rank]

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = torch.softmax(x @ self.router, dim=1).topk(self.TOPK, dim=1)
        return weights, experts

    def _look_up(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Every token asks its experts itself: what one process would do."""
        weights, chosen = self._route(x)
        answers = torch.tanh(torch.einsum("th,tkhg->tkg", x, experts[chosen]))
        return (weights[:, :, None] * answers).sum(dim=1)

    def step(self) -> Iterator[Check]:
        """Route, dispatch, compute, combine; and backward through all of it."""
        x = self.tokens[self.rank].clone().requires_grad_()
        experts = self.experts[self.own].clone().requires_grad_()

        weights, chosen = self._route(x)
        copies, chosen = x.repeat_interleave(self.TOPK, dim=0), chosen.reshape(-1)
        target = chosen // self.per_rank
        order = torch.argsort(target, stable=True)
        send = torch.bincount(target, minlength=WORLD_SIZE)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)  # first the counts: how much will come

        arrived = AllToAll.apply(copies[order], receive.tolist(), send.tolist())
        whose = torch.empty(int(receive.sum()), dtype=torch.int64)
        dist.all_to_all_single(whose, chosen[order], receive.tolist(), send.tolist())
        answers = torch.zeros_like(arrived)
        for index, expert in enumerate(experts):
            mine = (whose == self.rank * self.per_rank + index).nonzero()[:, 0]
            answers = answers.index_add(0, mine, torch.tanh(arrived[mine] @ expert))
        returned = AllToAll.apply(answers, send.tolist(), receive.tolist())

        unsorted = torch.zeros_like(returned).index_add(0, order, returned)
        out = (weights[:, :, None] * unsorted.view(self.TOKENS, self.TOPK, self.HIDDEN)).sum(dim=1)
        out.square().sum().backward()

        yield check_values("tokens sent", [int(send.sum())], [self.TOKENS * self.TOPK])
        yield check_values("tokens received", receive, self._dispatch_matrix()[:, self.rank])
        yield check_close("output", out.detach(), self.reference[self.rank].detach(), tolerance=1e-6)
        yield check_close("gradient of own experts", experts.grad, self.reference_experts_grad, tolerance=1e-5)
        yield check_close("gradient of own tokens", x.grad, self.reference_tokens_grad, tolerance=1e-5)
        yield from article_load()

    def _dispatch_matrix(self) -> torch.Tensor:
        """Tokens from each rank (row) to each rank (column), from the router alone."""
        targets = [self._route(part)[1].reshape(-1) // self.per_rank for part in self.tokens]
        return torch.stack([torch.bincount(target, minlength=WORLD_SIZE) for target in targets])

    def sent(self) -> list[Sent]:
        """Counts, expert numbers, and the tokens four times: dispatch and combine, forward and backward."""
        matrix = self._dispatch_matrix()
        out, back = matrix[self.rank], matrix[:, self.rank]
        leaves = int(out.sum() - out[self.rank])
        returns = int(back.sum() - back[self.rank])
        sent, received = int(out.sum()), int(back.sum())
        group = (0, 1, 2, 3)
        row_bytes = self.HIDDEN * 4
        return [
            Sent(
                group=group,
                primitive=Primitive.all_to_all,
                dtype="int64",
                calls=2,
                payload_bytes=8 * (WORLD_SIZE + sent),
                wire_bytes=8 * (WORLD_SIZE - 1 + leaves),
            ),
            Sent(
                group=group,
                primitive=Primitive.all_to_all,
                calls=4,
                payload_bytes=2 * (sent + received) * row_bytes,
                wire_bytes=2 * (leaves + returns) * row_bytes,
            ),
        ]


# The dispatch matrix that the article prints for its own random router: row i is what rank i sends.
ARTICLE_DISPATCH = ((10, 8, 2, 12), (10, 6, 3, 13), (11, 10, 3, 8), (11, 8, 5, 8))
ARTICLE_EXPERT_LOAD = (21, 21, 19, 13, 12, 1, 19, 22)


def article_load() -> Iterator[Check]:
    """The article's printed load, checked as data."""
    matrix = torch.tensor(ARTICLE_DISPATCH)
    received = matrix.sum(dim=0).tolist()
    limit = capacity(1.25, tokens=64, topk=2, experts=8)
    over = [expert for expert, load in enumerate(ARTICLE_EXPERT_LOAD) if load > limit]
    yield check_values("article: tokens sent", matrix.sum(dim=1), [32, 32, 32, 32])
    yield check_values("article: tokens received", received, [42, 32, 13, 41])
    yield check_values("article: received by the experts of a rank", _by_rank(ARTICLE_EXPERT_LOAD), received)
    yield check_values("article: busiest over mean", [round(imbalance(received), 2)], [1.31])
    yield check_values("article: capacity of an expert", [limit], [20])
    yield check_values("article: experts over capacity", over, [0, 1, 7])


def _by_rank(expert_load: Sequence[int]) -> list[int]:
    return [expert_load[2 * rank] + expert_load[2 * rank + 1] for rank in range(WORLD_SIZE)]
