"""The execution graph: every op of every class of ranks as an operation, and its predecessors.

An operation is in a queue of each of its ranks and starts when all its predecessors have ended. The order of a queue is
expressed as edges too, so the executor needs no queues.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.fused_passes import OpExpansion
from lockstep.simulator.lowering.link_model import Flow

COMPUTE = 0
FEATURE = 1
GRADIENT = 2
SENDING = 3
"""Queues. Sends between stages have a channel of their own, as frameworks give them their own communicator."""

Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The first and the last operation of each pass."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the data goes from a chunk (stage, own number) to the next, by the group sets of sends both ways."""

    before: tuple[int, int]
    after: tuple[int, int]
    forward_group_set: int
    backward_group_set: int
    message_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations as arrays of shape (operations,), their successors in CSR form, and the flows they use.

    `seconds` is the work of a computation and the latency of a communication, `volume_bytes` what a flow then moves,
    `flow` the index in `flows` or -1. `owner` is the class of ranks of a computation, a number behind those of all
    classes where several have it together, -1 for communication. `expansions` holds the ops of fused operations.
    `bounds` gives by class the first and the last operation of each pass, arrays of shape (passes,). `rows` holds the
    first operation of each row: equal operations, built at once, in the order of their passes.
    """

    queue: NDArray[np.int8]
    seconds: NDArray[np.float64]
    volume_bytes: NDArray[np.float64]
    flow: NDArray[np.int64]
    owner: NDArray[np.int64]
    flows: list[Flow]
    first_successor: NDArray[np.int64]
    successors: NDArray[np.int64]
    indegree: NDArray[np.int64]
    capacity: list[float]
    expansions: list[OpExpansion]
    bounds: list[Bounds]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.queue)
