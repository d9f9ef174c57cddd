"""All that is known of a job while it is being inferred: views of its ranks and the uses of their groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, GroupView, RankView
from tracelens.inference.roles import find_uses
from tracelens.inference.uses import Role, Use, sizeable
from tracelens.results import Finding


@dataclass(frozen=True, slots=True)
class Sighting:
    """A use of a group, and the rank that it was seen on."""

    view: RankView
    use: Use

    @property
    def group(self) -> GroupView:
        """The group used."""
        return self.view.groups[self.use.group]

    @property
    def elements(self) -> int:
        """All that its calls carry."""
        return sum(c.elements or 0 for c in self.use.calls)


@dataclass
class Job:
    """The ranks seen, one per class, with the uses of their groups."""

    views: Sequence[RankView]
    world: int | None
    blind: bool
    uses: list[list[Use]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, views: Sequence[RankView], *, blind: bool) -> Job:
        """Classify the groups of all ranks."""
        worlds = {view.world_size for view in views if view.world_size is not None}
        job = cls(views=views, world=max(worlds) if worlds else None, blind=blind)
        job.uses = [find_uses(view) for view in views]
        return job

    def sightings(self, *roles: Role) -> list[Sighting]:
        """Every use with one of these roles."""
        return [
            Sighting(view, use)
            for view, uses in zip(self.views, self.uses, strict=True)
            for use in uses
            if use.role in roles
        ]

    def has(self, *roles: Role) -> bool:
        """Whether any group is used so."""
        return any(use.role in roles for uses in self.uses for use in uses)

    def calls(self) -> Iterator[Call]:
        """The calls of all ranks."""
        for view in self.views:
            yield from view.calls

    @property
    def trains(self) -> bool:
        """Whether a backward was seen.

        A phase is told only in a step with a backward, so that forward says it as well: the first stage of a pipeline
        issues nothing else. Without phases messages that come back say it, where two threads launch compute.
        """
        return any(c.phase is not None for c in self.calls()) or (
            self.returns_messages and any(len({g.thread for g in view.gaps}) > 1 for view in self.views)
        )

    @property
    def returns_messages(self) -> bool:
        """Whether a stage sends each neighbour as much as it gets: activations one way, their gradients the other.

        Going forward only, more go one way; but for a V, whose two stages a rank send both ways.
        """
        return any(_is_balanced(s.use.calls) for s in self.sightings(Role.pipeline))


def _is_balanced(calls: Sequence[Call]) -> bool:
    """Whether as many messages of each size come from each peer as go to it."""
    messages = sizeable(calls)
    sent, came = (Counter((c.peer, c.elements) for c in messages if c.primitive is way) for way in _WAYS)
    return bool(sent) and sent == came


_WAYS = (Primitive.send, Primitive.recv)


def main_kind(sightings: Sequence[Sighting]) -> list[Sighting]:
    """The sightings of the kind of group that carries the most."""
    weight: dict[object, float] = {}
    for s in sightings:
        key = s.group.size
        weight[key] = weight.get(key, 0) + s.elements * s.use.confidence + 1
    if not weight:
        return []
    best = max(weight, key=lambda key: weight[key])
    return [s for s in sightings if s.group.size == best]
