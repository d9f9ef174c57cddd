"""The degrees of a job, read from what the job has anyway: a DeviceMesh or Megatron's parallel state."""

from __future__ import annotations

import sys
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from tracelens.topology import Axis

# Names that frameworks give a mesh dimension, and what they are here (torchtitan, verl, Accelerate, Lightning).
_AXIS_OF_DIM = {
    "fsdp": Axis.dp_shard,
    "shard": Axis.dp_shard,
    "ddp": Axis.dp_replicate,
    "replicate": Axis.dp_replicate,
    "data_parallel": Axis.dp_shard,
    "tensor_parallel": Axis.tp,
}

# Getter of megatron.core.parallel_state to the word of the layout.
_MEGATRON_DEGREES = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "dp": "get_data_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
    "etp": "get_expert_tensor_parallel_world_size",
    "vp": "get_virtual_pipeline_model_parallel_world_size",
}


def layout_of_mesh(mesh: DeviceMesh) -> dict[str, int]:
    """Degree per named dimension, in our axis names where the dimension has one of ours or a common alias."""
    names = mesh.mesh_dim_names or ()
    return {str(_AXIS_OF_DIM.get(name, name)): size for name, size in zip(names, mesh.mesh.shape, strict=False)}


def describe_mesh(mesh: DeviceMesh) -> list[dict[str, Any]]:
    """Each dimension of a mesh, outermost first: its name, size, and the group of this rank in it."""
    names = mesh.mesh_dim_names or [None] * mesh.ndim
    groups = mesh.get_all_groups()
    return [
        {"dim": name, "size": group.size(), "group": group.group_name}
        for name, group in zip(names, groups, strict=True)
    ]


def layout_of_megatron() -> dict[str, int] | None:
    """Degrees from Megatron's parallel state; None where Megatron is not in use."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    degrees = {axis: getattr(state, getter, lambda: None)() for axis, getter in _MEGATRON_DEGREES.items()}
    return {axis: degree for axis, degree in degrees.items() if degree is not None}
