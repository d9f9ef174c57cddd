"""Which layers stand on which pipeline rank, and whom it sends to."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.errors import ModelError
from tracelens.ledger.layout import Framework, Layout, Schedule
from tracelens.ledger.model import ModelSpec
from tracelens.units import plural

_V_SHAPED = (Schedule.zbv, Schedule.dualpipev)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive layers that are computed as one stage of the pipeline."""

    stage: int
    """Position in the pipeline, from 0."""
    first_layer: int
    layers: int
    moe_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What one pipeline rank holds and sends."""

    rank: int
    """Pipeline rank, from 0."""
    chunks: tuple[Chunk, ...]
    has_embedding: bool
    has_head: bool
    sends_forward: int
    """Activation messages sent per micro-batch."""
    sends_backward: int
    receives_forward: int
    receives_backward: int

    @property
    def layers(self) -> int:
        """Layers on this rank."""
        return sum(chunk.layers for chunk in self.chunks)

    @property
    def moe_layers(self) -> int:
        """Mixture-of-experts layers on this rank."""
        return sum(chunk.moe_layers for chunk in self.chunks)

    @property
    def traffic_key(self) -> tuple[object, ...]:
        """Equal for ranks whose traffic is equal."""
        shape = tuple((chunk.layers, chunk.moe_layers) for chunk in self.chunks)
        messages = (self.sends_forward, self.sends_backward, self.receives_forward, self.receives_backward)
        return (shape, self.has_embedding, self.has_head, messages, self.rank == 0)


def plan_stages(model: ModelSpec, layout: Layout) -> tuple[StagePlan, ...]:
    """One plan per pipeline rank.

    Raises:
        ModelError: when the layers can't be spread over the stages.
    """
    stages = layout.pp * _chunks_per_rank(layout)
    counts = split_layers(model, layout, stages)
    owners = [stage_owner(layout, stage) for stage in range(stages)]
    chunks = _cut_chunks(model, counts)
    return tuple(_plan(rank, chunks, owners, layout) for rank in range(layout.pp))


def _chunks_per_rank(layout: Layout) -> int:
    return 2 if layout.kind_of_schedule in _V_SHAPED else layout.vp


def stage_owner(layout: Layout, stage: int) -> int:
    """The pipeline rank that holds a stage: looped, or there and back for V-shaped schedules."""
    if layout.kind_of_schedule in _V_SHAPED:
        return stage if stage < layout.pp else 2 * layout.pp - 1 - stage
    return stage % layout.pp


def split_layers(model: ModelSpec, layout: Layout, stages: int) -> tuple[int, ...]:
    """Layers of every stage, first stage first.

    Even where it divides; else with the embedding and the head counted as a layer each, as Llama 3 cuts its
    126 layers into 16 stages. torchtitan always counts so (`generate_llm_fqn_per_model_part`).

    Raises:
        ModelError: naming layers, pp and vp when neither way works.
    """
    if layout.layers_per_stage is not None:
        return _given_split(model, layout, stages)
    weighted = layout.framework is Framework.torchtitan and layout.native().weighted_stages
    if stages == 1 or (model.layers % stages == 0 and not weighted):
        return (model.layers // stages,) * stages
    total = model.layers + 2
    if stages > total or (total % stages and not weighted):
        raise ModelError(
            f"layers {model.layers} can't be cut into pp {layout.pp} · vp {stages // layout.pp} = {stages} stages",
            hint="choose pp and vp that divide the layers (or layers + 2), or give layers_per_stage",
        )
    counts = [total // stages + (stage < total % stages) for stage in range(stages)]
    counts[0] -= 1
    counts[-1] -= 1
    return tuple(counts)


def _given_split(model: ModelSpec, layout: Layout, stages: int) -> tuple[int, ...]:
    counts = layout.layers_per_stage or ()
    if len(counts) != stages or sum(counts) != model.layers or min(counts) < 0:
        raise ModelError(
            f"layers_per_stage {list(counts)} must be {plural(stages, 'number')} (pp {layout.pp} · "
            f"vp {stages // layout.pp}) that add up to layers {model.layers}"
        )
    return counts


def _cut_chunks(model: ModelSpec, counts: tuple[int, ...]) -> list[Chunk]:
    chunks: list[Chunk] = []
    first = 0
    for stage, count in enumerate(counts):
        moe = sum(model.is_moe_layer(layer) for layer in range(first, first + count))
        chunks.append(Chunk(stage=stage, first_layer=first, layers=count, moe_layers=moe))
        first += count
    return chunks


def _plan(rank: int, chunks: list[Chunk], owners: list[int], layout: Layout) -> StagePlan:
    own = tuple(chunk for chunk in chunks if owners[chunk.stage] == rank)
    last = len(chunks) - 1
    after = sum(chunk.stage < last and owners[chunk.stage + 1] != rank for chunk in own)
    before = sum(chunk.stage > 0 and owners[chunk.stage - 1] != rank for chunk in own)
    return StagePlan(
        rank=rank,
        chunks=own,
        has_embedding=owners[0] == rank,
        has_head=owners[last] == rank,
        sends_forward=after,
        receives_backward=after,
        receives_forward=before,
        sends_backward=before,
    )
