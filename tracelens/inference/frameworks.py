"""Which framework's habits the traffic shows."""

from __future__ import annotations

from tracelens.collectives import Primitive
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.uses import Role
from tracelens.results import Phase

P = Primitive


def find_framework(job: Job, case: Case) -> None:
    """Weigh habits that only one framework has, as far as they were seen in real code."""
    if job.world == 1:
        return  # nothing travels: what a call is for can't be told from its group
    for s in job.sightings(Role.weights, Role.updates):
        named = {c.collective for c in s.use.calls if c.collective}
        if named and all("coalesced" in name for name in named):
            case.decide("framework", "megatron", 0.8, "buckets of gradients and parameters travel coalesced")
        elif s.use.role is Role.updates and s.use.detail == "all_reduce":
            case.decide("framework", "deepspeed", 0.8, "gradients of a sharded optimizer are all-reduced")
    for s in job.sightings(Role.batch):
        case.decide("framework", "megatron", 0.7, s.use.why)
        break
    valid = [
        c
        for view in job.views
        for c in view.calls
        if c.primitive is P.all_reduce and c.dtype == "int64" and c.is_scalar and c.phase is Phase.forward
    ]
    if valid and job.has(Role.weights):
        case.decide("framework", "torchtitan", 0.75, "the number of valid tokens is all-reduced in every step")
