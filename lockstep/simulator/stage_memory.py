"""Peak device memory of a rank of each pipeline stage, by item.

Besides the job's tensors, these are the process's own memory (the driver's context with the loaded kernels), the
buffers of its communicators, and the reserve that the caching allocator holds beyond the requested memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf

from lockstep.simulator.hardware.cluster import Device
from lockstep.simulator.lowering.chunks import Part
from lockstep.simulator.lowering.program import RankClass
from lockstep.simulator.strategy.memory import peak_bytes

_UNITS_GATHERED = 3
"""With sharded weights, those of the present unit and of the prefetched one are whole (FSDP's prefetch), as are the
gradients of one unit before they are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one rank of a stage at its peak.

    `weights`, `gradients` and `optimizer` are kept all the time; `gathered` are the whole weights of sharded units,
    with the gradients of one unit. `activations` are kept for the backward pass; `workspace` is used by operators and
    recomputation. `gradient_buffers` hold gradients in transit, `communicators` are the buffers of collectives,
    `context` belongs to the process, and `reserve` is memory that the allocator holds unused.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    workspace: float = 0.0
    gradient_buffers: float = 0.0
    communicators: float = 0.0
    context: float = 0.0
    reserve: float = 0.0

    @property
    def needed(self) -> float:
        """Bytes that must fit: the allocator releases its reserve before it runs out of memory."""
        return self.total - self.reserve

    @property
    def total(self) -> float:
        """Sum of all items."""
        return float(sum(getattr(self, each.name) for each in fields(self)))


def stage_memory(
    parts: Sequence[Part],
    rank_class: RankClass,
    device: Device,
    *,
    gradient_buffer_bytes: float = 0.0,
    gathered_bytes_max: float = inf,
) -> StageMemory:
    """Return the memory of a rank of `rank_class` that holds `parts`, its chunks of the model.

    At most `gathered_bytes_max` bytes of weights are gathered at once.
    """
    job = StageMemory(
        weights=sum(part.weight_bytes for part in parts),
        gradients=sum(part.gradient_bytes for part in parts),
        optimizer=sum(part.optimizer_bytes for part in parts),
        gathered=min(gathered_bytes_max, max(part.gathered_bytes for part in parts) * _UNITS_GATHERED),
        activations=peak_bytes(rank_class.passes, [part.stored_bytes for part in parts]),
        workspace=max(part.workspace_bytes for part in parts),
        gradient_buffers=gradient_buffer_bytes,
    )
    return replace(
        job,
        communicators=communicators(rank_class) * device.communicator_bytes,
        context=device.context_bytes,
        reserve=device.allocator_reserve_ratio * job.total,
    )


def communicators(rank_class: RankClass) -> int:
    """Return the number of groups in which a rank of the class communicates; sends to both neighbours count as one."""
    programs = rank_class.programs
    passes = (each for program in programs for each in (program.forward, program.backward, program.last))
    group_sets = {group_set for each in passes for group_set, _ in each.group_sets}
    group_sets.update(phase.group_set for queued in rank_class.returns for phase in queued.phases)
    return len(group_sets) + rank_class.has_neighbours
