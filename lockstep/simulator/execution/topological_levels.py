"""The longest path through a large graph, level by level: all operations that are ready at once.

Pipelines repeat. If the last operations of every active row begin the same time after those a few positions earlier,
that time is assumed to be the period, and as many further operations are extrapolated as every row has left, so that
their levels are skipped. In the end it is verified that each operation begins when the last one that it waits for ends,
which holds for the longest path and nothing else; if the extrapolation was wrong, every level is computed.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.contracts.errors import ConfigError
from lockstep.simulator.lowering.graph import Graph

_FIRST_LOOK = 64
_NEXT_LOOK = 1.2
"""Levels between two searches for a period; one search costs as much as ten levels."""
_ALIKE = 12
"""Repeating operations of each row that are taken for a period; the final verification makes the result right."""
_WORTH = 32
"""Positions from which an extrapolation, including its verification, is cheaper than the skipped levels."""
_SAME = 1e-14
"""Relative difference up to which times count as equal: rounding errors of a few sums."""
_Indices = NDArray[np.int64]
_Times = NDArray[np.float64]


def start_by_level(graph: Graph, spent: _Times, *, extrapolates: bool = True) -> _Times:
    """Return when each operation starts that takes `spent` seconds, arrays of shape (operations,).

    Without `extrapolates` no level is left out, for comparison.

    Raises
    ------
    ConfigError
        Operations wait for each other in a cycle.
    """
    levels = _Levels(graph, spent, extrapolates=extrapolates)
    levels.run()
    if levels.extrapolations and not levels.is_proved():
        levels = _Levels(graph, spent, extrapolates=False)
        levels.run()
    left = len(graph) - int(np.count_nonzero(levels.finished))
    if left:
        raise ConfigError(f"order of the passes: got {left} operations that wait for each other")
    return levels.start


class _Levels:
    """The state between two levels: what is finished; for how many the rest waits, and when it starts at the earliest.

    `extrapolations` counts the guesses that were made.
    """

    def __init__(self, graph: Graph, spent: _Times, *, extrapolates: bool) -> None:
        self.graph = graph
        self.spent = spent
        self.start: _Times = np.zeros(len(graph))
        self.finished = np.zeros(len(graph), dtype=bool)
        self.extrapolations = 0
        self._waiting = graph.indegree.copy()
        self._n_edges = np.diff(graph.first_successor)
        self._numbers = np.arange(len(graph.successors))
        self._mark = np.empty(len(graph), dtype=np.int64)
        lengths = np.diff(graph.rows, append=len(graph))
        self._first = graph.rows[lengths > _WORTH]
        self._length = lengths[lengths > _WORTH]
        self._extrapolates = extrapolates and len(self._first) > 0

    def run(self) -> None:
        """Go through all levels."""
        ready = np.flatnonzero(self._waiting == 0)
        level, look = 0, _FIRST_LOOK
        while len(ready):
            level += 1
            if self._extrapolates and level == look:
                look = int(look * _NEXT_LOOK)
                if self._extrapolate():
                    ready = self._next()
            ready = self._advance(ready)

    def is_proved(self) -> bool:
        """Return whether all start when the last that they wait for ends: what does so is the longest path."""
        ends = self.start + self.spent
        due = np.zeros(len(ends))
        np.maximum.at(due, self.graph.successors, ends[self._sources()])
        return bool(self.finished.all() and np.abs(due - self.start).max() <= _SAME * ends.max())

    def _advance(self, ready: _Indices) -> _Indices:
        """Finish a level; return the next."""
        self.finished[ready] = True
        n_edges = self._n_edges[ready]
        ends = n_edges.cumsum()
        # The edges of all ready operations, one after the other.
        place = (self.graph.first_successor[ready] - ends + n_edges).repeat(n_edges) + self._numbers[: ends[-1]]
        targets = self.graph.successors[place]
        np.maximum.at(self.start, targets, (self.start[ready] + self.spent[ready]).repeat(n_edges))
        np.subtract.at(self._waiting, targets, 1)
        found = targets[self._waiting[targets] == 0]
        mark, numbers = self._mark, self._numbers[: len(found)]
        mark[found] = numbers  # of an operation that is there twice, the last stays
        chosen: _Indices = found[mark[found] == numbers]
        return chosen

    def _extrapolate(self) -> bool:
        """Finish as many operations of each row under way as none of them lacks, if all rows have found one period."""
        rows = zip(self._first.tolist(), self._length.tolist(), strict=True)
        done = np.array([np.count_nonzero(self.finished[first : first + length]) for first, length in rows])
        under_way = (done > 0) & (done < self._length)
        if not under_way.any() or done[under_way].min() <= _ALIKE:
            return False
        count = int((self._length - done)[under_way].min())
        last = (self._first + done)[under_way, None] - 1
        shift = self._shift(int(last[0, 0]), int(done[under_way].min()))
        if count < _WORTH or not shift:
            return False
        recent = last - np.arange(_ALIKE)
        apart_s = self.start[recent] - self.start[recent - shift]
        period_s = float(np.median(apart_s))
        if np.abs(apart_s - period_s).max() > _SAME * self.start[last].max():
            return False
        window = self.start[last - np.arange(shift)[::-1]]
        periods = np.arange(1, -(-count // shift) + 1)
        guess = (window[:, None, :] + period_s * periods[:, None]).reshape(len(window), -1)
        for place, start in zip((last[:, 0] + 1).tolist(), guess, strict=True):
            self.start[place : place + count] = start[:count]
            self.finished[place : place + count] = True
        self.extrapolations += 1
        return True

    def _shift(self, last: int, done: int) -> int:
        """Return after how many places, of those `done`, the row up to `last` repeats, 0 if it does not."""
        shifts = np.arange(1, done - _ALIKE + 1)
        recent = last - np.arange(_ALIKE)
        apart_s = self.start[recent] - self.start[recent - shifts[:, None]]
        repeats = np.ptp(apart_s, axis=1) <= _SAME * self.start[last]
        return int(shifts[repeats][0]) if repeats.any() else 0

    def _next(self) -> _Indices:
        """Return the level that is next after what is finished, and count again for how many the rest waits."""
        source, successors, finished = self._sources(), self.graph.successors, self.finished
        over = finished[source]
        self._waiting = self.graph.indegree - np.bincount(successors[over], minlength=len(finished))
        self.start[~finished] = 0.0
        edge = np.flatnonzero(over & ~finished[successors])
        np.maximum.at(self.start, successors[edge], self.start[source[edge]] + self.spent[source[edge]])
        return np.flatnonzero(~finished & (self._waiting == 0))

    def _sources(self) -> _Indices:
        return np.repeat(np.arange(len(self.graph)), self._n_edges)
