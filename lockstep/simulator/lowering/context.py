"""Context parallelism: how attention gets keys and values of other ranks, and how causal attention's work divides.

Attention of a rank needs keys and values of the whole sequence. They are gathered at once (torchtitan's default,
Llama Team 2024), or go round a ring (Liu et al. 2023; Megatron-LM's default): a rank computes with the part that it has
while the next is on its way, and in backward parts go round once more, with their gradients.

With a causal mask a rank that holds the last part of the sequence attends to all of it. Frameworks give each rank one
part of the first and one of the second half, so that all compute the same; with contiguous parts the last of n ranks
computes (2n - 1) / n times its even share, for which the others wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.simulator.hardware.collectives import ALL_GATHER, REDUCE_SCATTER
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.placement import Transfer

GATHER, RING = EXCHANGES = ("gather", "ring")
HALVES, CONTIGUOUS = SPLITS = ("halves", "contiguous")
_AXES = frozenset(("cp",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallelism:
    """`exchange` is one of EXCHANGES, `split` one of SPLITS."""

    exchange: str = GATHER
    split: str = HALVES

    def causal_factor(self, parts: float) -> float:
        """Return by how much the slowest of `parts` parts of a sequence computes more than an even share."""
        return (2 * parts - 1) / parts if self.split == CONTIGUOUS else 1.0

    def ring_transfers(self, before: Sequence[Transfer], mesh: Mesh) -> tuple[Transfer, Transfer] | None:
        """Return the round of keys and values and that of their gradients; None without a ring."""
        if self.exchange != RING or mesh.degree("cp") == 1:
            return None
        for transfer in before:
            if transfer.kind == ALL_GATHER and transfer.axes == _AXES:
                return transfer, Transfer(REDUCE_SCATTER, _AXES, transfer.volume_bytes)
        return None
