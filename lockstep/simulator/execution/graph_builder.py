"""Builds graphs incrementally: operations and edges as they are added, and arrays of all of them at the end."""

import numpy as np
from numpy.typing import NDArray

from lockstep.simulator.lowering.fused_passes import OpExpansion
from lockstep.simulator.lowering.graph import COMPUTE, FEATURE, GRADIENT, Bounds, Graph
from lockstep.simulator.lowering.link_model import Flow, LinkModel
from lockstep.simulator.lowering.ops import Calls

NO_OPERATION = -1
_SHORT_LATENCY_RATIO = 0.1
"""Of a message's transfer: shorter latencies stay with it. Two operations for each message would cost large pipelines a
fifth of their time (benchmarks/simulator_cost.py)."""
_Row = tuple[int, int, float, float, int, int]
"""Operations built at once: count, queue, seconds, bytes, flow, owner; several in an array of shape (rows, 6)."""
_Rows = NDArray[np.float64]


class GraphBuilder:
    """Operations are numbered as they are built; groups of several classes have theirs built once, by who comes first.

    `edges` holds source and target in turn, `runs` arrays of both.
    """

    def __init__(self, link_model: LinkModel) -> None:
        self.link_model = link_model
        self.edges: list[int] = []
        self.runs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._total = 0
        self._rows: list[_Rows] = []
        self._flows: list[Flow] = []
        self._numbers: dict[int, int] = {}
        self._shared: dict[tuple[int, int, object], int] = {}
        self._called: dict[tuple[int, int], tuple[Calls, _Rows]] = {}

    def add(self, seconds: float, owner: int, count: int = 1) -> NDArray[np.int64]:
        """Add `count` equal computations; return their numbers."""
        return self._add_rows((count, COMPUTE, seconds, 0.0, NO_OPERATION, owner))

    def add_each(self, seconds: NDArray[np.float64], owner: int) -> int:
        """Add a computation of each of `seconds`; return the number of the first."""
        first = self._total
        self._total += len(seconds)
        rows = np.empty((len(seconds), 6))
        rows[:] = (1, COMPUTE, 0.0, 0.0, NO_OPERATION, owner)
        rows[:, 2] = seconds
        self._rows.append(rows)
        return first

    def send(
        self, queue: int, number: int, volume_bytes: float, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Add `count` equal messages of a flow; return by message what leaves the sender, and what arrives.

        Messages leave one behind the other. What they take on the way occupies no link: it is an operation of its own,
        for which those of other messages do not wait, unless it is short compared with the message.
        """
        flow = self._flows[number]
        on_the_way_s = flow.latency_s
        if on_the_way_s <= _SHORT_LATENCY_RATIO * volume_bytes / flow.cap:
            messages = self._add_rows((count, queue, on_the_way_s, volume_bytes, number, NO_OPERATION))
            self.runs.append((messages[:-1], messages[1:]))
            return messages, messages
        leaving = self._add_rows((count, queue, 0.0, volume_bytes, number, NO_OPERATION))
        arriving = self._add_rows((count, queue, on_the_way_s, 0.0, number, NO_OPERATION))
        self.runs += [(leaving[:-1], leaving[1:]), (leaving, arriving)]
        return leaving, arriving

    def flow_number(
        self, group_set: int, group: int, kind: str, volume_bytes: float, *, latency_share: float = 1.0
    ) -> int:
        """Return the number of a flow in the graph."""
        flow = self.link_model.flow(group_set, group, kind, volume_bytes, latency_share=latency_share)
        if id(flow) not in self._numbers:  # the link model makes each flow once and keeps it
            self._numbers[id(flow)] = len(self._flows)
            self._flows.append(flow)
        return self._numbers[id(flow)]

    def communicate(self, calls: Calls, rank_class: int, key: object) -> int:
        """Add the calls of a pass for a class's group; return the number of the first.

        `key` identifies the pass: the members of a group add its calls once.
        """
        group = self.link_model.group_of[calls.group_set][rank_class]
        place = (calls.group_set, group, key)
        if place not in self._shared:
            self._shared[place] = self._total
            rows = self._rows_of(calls, group)
            self._rows.append(rows)
            self._total += len(rows)
        return self._shared[place]

    def _rows_of(self, calls: Calls, group: int) -> _Rows:
        key = (id(calls), group)  # kept with the rows, so that no other gets the same
        if key not in self._called:
            kinds: list[_Row] = []
            for is_blocking, phase in calls.kinds:
                number = self.flow_number(
                    calls.group_set,
                    group,
                    phase.kind,
                    phase.volume_bytes,
                    latency_share=phase.latency_share,
                )
                flow, queue = self._flows[number], FEATURE if is_blocking else GRADIENT
                moves = 0.0 if phase.is_rendezvous else 1.0
                moved_bytes = flow.ratio * phase.volume_bytes * moves
                kinds.append((1, queue, flow.latency_s * moves, moved_bytes, number, NO_OPERATION))
            self._called[key] = (calls, np.array(kinds, dtype=np.float64)[calls.which])
        return self._called[key][1]

    def _add_rows(self, row: _Row) -> NDArray[np.int64]:
        first = self._total
        self._total += row[0]
        self._rows.append(np.array([row], dtype=np.float64))
        return np.arange(first, self._total)

    def finish(self, expansions: list[OpExpansion], bounds: list[Bounds]) -> Graph:
        """Return the graph of all that was built."""
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        source = np.concatenate([edges[:, 0], *(run[0] for run in self.runs)])
        target = np.concatenate([edges[:, 1], *(run[1] for run in self.runs)])
        rows = np.concatenate(self._rows)
        count = rows[:, 0].astype(np.int64)
        operations = np.repeat(rows, count, axis=0)
        order = np.argsort(source, kind="stable")
        return Graph(
            queue=operations[:, 1].astype(np.int8),
            seconds=operations[:, 2].copy(),
            volume_bytes=operations[:, 3].copy(),
            flow=operations[:, 4].astype(np.int64),
            owner=operations[:, 5].astype(np.int64),
            flows=self._flows,
            first_successor=np.concatenate(([0], np.cumsum(np.bincount(source, minlength=self._total)))),
            successors=target[order],
            indegree=np.bincount(target, minlength=self._total),
            capacity=self.link_model.capacity,
            expansions=expansions,
            bounds=bounds,
            rows=np.cumsum(count) - count,
        )
