"""Context parallelism: how attention gets the keys and values of other ranks, and how causal attention is divided.

Attention of a rank needs the keys and values of the whole sequence. They are gathered at once (Llama Team 2024), or
circulate in a ring (Liu et al. 2023; Megatron-LM's default): a rank computes with the part that it has while the next
is in transit, and in backward the parts circulate once more, with their gradients. PyTorch, which torchtitan uses,
gathers them while a rank computes with its own part, and merges the results of all parts (`exchange.py`).

With a causal mask a rank that holds the last part of the sequence attends to all of it. Frameworks give each rank one
part of the first and one of the second half, so that all compute the same; with contiguous parts the last of n ranks
computes (2n - 1) / n times its even share, for which the others wait.

In a ring, and where parts are merged, each part of attention is a kernel. It computes as much, with as many keys to a
query on average, as causal attention of that part's tokens, and is as slow as short sequences are.
"""

from dataclasses import dataclass

GATHER, RING, MERGE = EXCHANGES = ("gather", "ring", "merge")
HALVES, CONTIGUOUS = SPLITS = ("halves", "contiguous")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallelism:
    """`exchange` is one of EXCHANGES, `split` one of SPLITS."""

    exchange: str = GATHER
    split: str = HALVES

    def causal_factor(self, parts: float) -> float:
        """Return by how much the slowest of `parts` parts of a sequence computes more than an even share."""
        return (2 * parts - 1) / parts if self.split == CONTIGUOUS else 1.0

    def kernels(self, parts: float) -> float:
        """Return into how many kernels, one after the other, a rank's attention is cut by `parts` of a sequence."""
        return 1.0 if self.exchange == GATHER else parts
