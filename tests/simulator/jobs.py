"""Small clusters, models and graphs for the simulator's tests."""

from itertools import pairwise

import numpy as np

from lockstep.simulator.hardware.cluster import Cluster, Device, Level
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.lowering.graph import COMPUTE, FEATURE, Graph
from lockstep.simulator.lowering.link_model import Flow
from lockstep.simulator.models.model import FULL, ModelSpec, Module, Operator, OperatorInput
from lockstep.simulator.strategy.mesh import Mesh
from lockstep.simulator.strategy.tree import StrategyTree

UNIT = Device(name="unit", flops_per_second=1.0, memory_bytes_per_second=1e30, memory_bytes=1e30)
"""A device that computes one FLOP a second and has all the memory there is."""


def flat(n_ranks, bytes_per_second=1e30):
    """Return devices on one switch, without latency."""
    level = Level(name="switch", fanout=n_ranks, link=Link(bytes_per_second=bytes_per_second))
    return Cluster(name="flat", device=UNIT, levels=(level,))


def uniform(stages, schedule, *, virtual=1, forward_s=1.0, backward_s=2.0):
    """Return the tree of a pipeline of equal blocks on the unit device; chunks go round the stages."""
    block = Module(
        name="block",
        children=(
            Operator(
                name="work",
                dims={},
                reads=(OperatorInput(("b",)),),
                writes=("b",),
                output_elements=0.0,
                flops=forward_s,
                backward_ratio=backward_s / forward_s,
            ),
        ),
    )
    names = [f"block{index}" for index in range(stages * virtual)]
    tree = StrategyTree.of(ModelSpec(name="uniform", blocks=tuple((name, block) for name in names), precision=FULL))
    tree.root.schedule(schedule)
    mesh = Mesh.grid({"pp": stages})
    for index, name in enumerate(names):
        tree[name].map(mesh.at("pp", index % stages))
    return tree


def flow(*links, cap=1e30, alone=1.0, kind="all_reduce", members=(0,), latency_s=0.0, use=1.0):
    """Return a flow that passes each of `links` once for every byte."""
    return Flow(kind, latency_s, 1.0, cap, min(cap, alone), tuple((link, use) for link in links), members)


def graph(operations, edges=(), capacity=(1.0,)):
    """Return a graph of operations (queue, seconds or bytes, owner or flow), by hand."""
    flows = [what for _, _, what in operations if isinstance(what, Flow)]
    source = np.array([edge[0] for edge in edges], dtype=np.int64)
    target = np.array([edge[1] for edge in edges], dtype=np.int64)
    count = len(operations)
    numbers = iter(range(len(flows)))
    return Graph(
        queue=np.array([queue for queue, _, _ in operations], dtype=np.int8),
        seconds=np.array([what.latency_s if isinstance(what, Flow) else work for _, work, what in operations]),
        volume_bytes=np.array([float(work) if isinstance(what, Flow) else 0.0 for _, work, what in operations]),
        flow=np.array([next(numbers) if isinstance(what, Flow) else -1 for _, _, what in operations]),
        owner=np.array([-1 if isinstance(what, Flow) else what for _, _, what in operations]),
        flows=flows,
        first_successor=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count)))),
        successors=target[np.argsort(source, kind="stable")],
        indegree=np.bincount(target, minlength=count),
        capacity=list(capacity),
        expansions=[],
        bounds=[],
        rows=np.arange(count),
    )


def computations(*seconds, owner=0):
    """Return computations of one rank."""
    return [(COMPUTE, work, owner) for work in seconds]


def features(*flows_and_bytes):
    """Return feature communications from (flow, bytes)."""
    return [(FEATURE, volume, what) for what, volume in flows_and_bytes]


def chain(*operations):
    """Return the edges of a chain."""
    return list(pairwise(operations))
