# ruff: noqa: N803, N806, N815  (names of arrays end in their shape, see the legend below)
"""Transfer times of every communication group in a step.

Pure. The last rank to arrive waits for no one, so the shortest wait among a group's members is its transfer time.
Pipelines use count x shortest operation instead (`StepRow.transfers`), because their waits contain bubbles. For the
other kinds that bound is not used: it is no less than the last arriver's wait if ranks wait in each operation, and it
does not show bandwidth if the shortest operation is small.

Without the record of the last arriver, a group's shortest wait contains waiting and is only an upper bound. If a few of
many records are missing, they seldom include the last arriver's, and not three times in a row unless the same ranks are
missing again.

Shapes: R ranks (columns), G groups, M members, H hidden (missing) ranks; O x M x I the grid of ranks of a regular kind.
"""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import has_nan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from lockstep.contracts.domains import Domain

    Floats = NDArray[np.floating]
    Marks = NDArray[np.bool_]
    Places = NDArray[np.intp]

_LONG_ROW = 256  # members; from here on, a minimum per group is faster
_BYTES_EVERY = 16  # steps between two reads of all groups' bytes, ...
_BYTES_SAMPLE = 64  # ... and the least number of groups per kind sampled in each step between
_RECENT_STEPS = 2


_NO_RANK = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Arrays of shape (G,): seconds, NaN if no member has a value; whether they are only an upper bound; bytes.

    `is_bound_G` is None if all are exact; `bytes_G` is 1 if bytes were never reported.
    """

    seconds_G: "Floats"
    is_bound_G: "Marks | None"
    bytes_G: "Floats"


class Transfers:
    """Layout of all groups of a run, ordered by kind and size as in `domains`.

    `ranks` (ascending) are the columns of the rows; members that are not among them always count as missing.
    """

    def __init__(self, domains: "Sequence[Domain]", ranks: "NDArray[np.int64]") -> None:
        blocks: dict[tuple[str, int], list[Domain]] = {}
        for domain in domains:
            blocks.setdefault((domain.kind, len(domain.ranks)), []).append(domain)
        self.kinds = list(dict.fromkeys(domain.kind for domain in domains))
        self.domains: list[Domain] = []
        self.kind_G = np.zeros(len(domains), dtype=np.uint8)
        self._blocks: list[tuple[str, slice, _Grid | _Listed]] = []
        for place, kind in enumerate(self.kinds):
            for key in sorted(key for key in blocks if key[0] == kind):
                members = sorted(blocks[key], key=lambda domain: domain.ranks)
                span = slice(len(self.domains), len(self.domains) + len(members))
                self.domains += members
                self.kind_G[span] = place
                self._blocks.append((kind, span, _block(members, ranks)))
        self.sizes_G = np.array([len(domain.ranks) for domain in self.domains], dtype=np.int32)
        self.bytes_G: Floats = np.ones(len(domains), dtype=np.float32)
        self._steps = 0
        self._missed: deque[Places] = deque(maxlen=_RECENT_STEPS)

    def read(self, row: "StepRow", *, hidden_share: float) -> TransferTimes:
        """Return the transfer times of a row, an upper bound where more than `hidden_share` of a group are missing."""
        absent, again = self._absent(row)
        seconds_G = np.empty(len(self.domains), dtype=np.float32)
        seconds_G.fill(np.nan)
        is_bound_G: Marks | None = None
        for kind, span, block in self._blocks:
            values_R = row.transfers.get(kind)
            if values_R is None:
                continue
            seconds_G[span] = block.least(values_R)
            moved_R = row.moved.get(kind)
            if moved_R is not None and not moved_R[block.sample.columns].all():
                seconds_G[span][block.first(moved_R) == 0] = np.nan  # nothing to transfer, as in an evaluation
            hidden, lasting = _hidden(values_R, absent, again)
            if len(hidden) or block.is_partial:
                if is_bound_G is None:
                    is_bound_G = np.zeros(len(self.domains), dtype=bool)
                is_bound_G[span] = block.count(hidden) > hidden_share * block.members
                if len(lasting) or block.is_partial:
                    is_bound_G[span] |= block.count(lasting) > 0
        if self._steps % _BYTES_EVERY == 0 or self._has_other_bytes(row):
            self.read_bytes(row)
        self._steps += 1
        return TransferTimes(
            seconds_G, is_bound_G if is_bound_G is not None and is_bound_G.any() else None, self.bytes_G
        )

    def _absent(self, row: "StepRow") -> "tuple[Places, Places]":
        """Return the missing ranks, and those of them that were also missing in one of the steps just before."""
        absent = again = _NO_RANK
        if np.count_nonzero(row.present) < len(row.present):
            absent = np.flatnonzero(~row.present)
            is_missed_R = np.zeros(len(row.present), dtype=bool)
            for ranks in self._missed:
                is_missed_R[ranks] = True
            again = absent[is_missed_R[absent]]
        self._missed.append(absent)
        return absent, again

    def stages(self) -> "NDArray[np.int64]":
        """Return the pipeline stage of each group's first member, 0 if it has none, array of shape (G,)."""
        pipelines = (domain for domain in self.domains if domain.kind == "pp")
        stage_of = {rank: stage for domain in pipelines for stage, rank in enumerate(domain.ranks)}
        return np.array([stage_of.get(domain.ranks[0], 0) for domain in self.domains], dtype=np.int64)

    def read_bytes(self, row: "StepRow") -> bool:
        """Read the bytes of all groups; return whether any group's bytes changed."""
        changed = False
        for kind, span, block in self._blocks:
            moved_R = row.moved.get(kind)
            if moved_R is None:
                continue
            moved_G, held_G = block.first(moved_R), self.bytes_G[span]
            if (held_G == 1).any():  # not known yet: from any member
                moved_G = np.where(np.isnan(moved_G), block.least(moved_R), moved_G)
            moved_G = moved_G.astype(np.float32)
            changed_G = (moved_G != held_G) & (moved_G > 0)
            if changed_G.any():
                self.bytes_G = self.bytes_G.copy()  # callers hold the previous array
                self.bytes_G[span] = np.where(changed_G, moved_G, held_G)
                changed = True
        return changed

    def _has_other_bytes(self, row: "StepRow") -> bool:
        """Whether the bytes of some sampled groups changed; they almost never do, and reading all is expensive."""
        for kind, span, block in self._blocks:
            moved_R = row.moved.get(kind)
            if moved_R is not None:
                moved = moved_R[block.sample.columns]
                differs = moved != self.bytes_G[span][block.sample.groups]
                if np.count_nonzero(differs) and (moved[differs] > 0).any():
                    return True
        return False


def _hidden(values_R: "Floats", absent: "Places", again: "Places") -> "tuple[Places, Places]":
    """Return the ranks without a value, and those of them that had none recently either."""
    if not len(absent) and not has_nan(values_R):
        return absent, again
    hidden_R = np.isnan(values_R)
    if np.count_nonzero(hidden_R) == len(absent):
        return absent, again
    unmeasured_R = hidden_R.copy()
    unmeasured_R[absent] = False  # they report, but never this kind
    return np.flatnonzero(hidden_R), np.concatenate((again, np.flatnonzero(unmeasured_R)))


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample of a block's groups, and the columns of their first members."""

    groups: "Places"
    columns: "Places"


def _sample(first_G: "Places", ranks: int) -> _Sample:
    groups = np.arange(0, len(first_G), 1 + len(first_G) // _BYTES_SAMPLE)
    groups = groups[first_G[groups] < ranks]
    return _Sample(groups, first_G[groups])


def _block(domains: "Sequence[Domain]", ranks: "NDArray[np.int64]") -> "_Grid | _Listed":
    rank_GM = np.array([domain.ranks for domain in domains], dtype=np.int64)
    place_GM = np.minimum(np.searchsorted(ranks, rank_GM), len(ranks) - 1)
    column_GM = np.where(ranks[place_GM] == rank_GM, place_GM, len(ranks))
    members = column_GM.shape[1]
    if column_GM.size == len(ranks) and members > 1:
        inner = int(column_GM[0, 1] - column_GM[0, 0])
        grid = _Grid(len(ranks), members, inner) if inner > 0 and len(ranks) % (members * inner) == 0 else None
        if grid is not None and np.array_equal(grid.columns(), column_GM):
            return grid
    return _Listed(column_GM, len(ranks))


class _Grid:
    """All ranks, in equal groups with equal strides, as parallel degrees produce them; reductions need no index."""

    is_partial = False

    def __init__(self, ranks: int, members: int, inner: int) -> None:
        self.members = members
        self._shape = (ranks // (members * inner), members, inner)
        self._groups = ranks // members
        self.sample = _sample(self.columns()[:, 0], ranks)

    def columns(self) -> "Places":
        """Return the columns of each group's members, array of shape (G, M)."""
        ranks = self._groups * self.members
        return np.arange(ranks).reshape(self._shape).transpose(0, 2, 1).reshape(self._groups, self.members)

    def least(self, values_R: "Floats") -> "Floats":
        """Return each group's smallest known value, array of shape (G,)."""
        outer, members, inner = self._shape
        least: Floats
        if inner == 1 and members < _LONG_ROW:  # numpy reduces short rows one by one
            least = np.fmin.reduce(np.ascontiguousarray(values_R.reshape(outer, members).T), axis=0)
        elif inner == 1 or outer == 1:
            least = np.fmin.reduce(values_R.reshape(self._shape), axis=1)
        else:
            values_OMI = values_R.reshape(self._shape)
            while (members := values_OMI.shape[1]) > 1:  # contiguous memory: I values per operation
                half = members // 2
                halved_OMI = np.fmin(values_OMI[:, :half], values_OMI[:, half : 2 * half])
                if members % 2:
                    np.fmin(halved_OMI[:, :1], values_OMI[:, -1:], out=halved_OMI[:, :1])
                values_OMI = halved_OMI
            least = values_OMI
        return least.reshape(-1)

    def first(self, values_R: "Floats") -> "Floats":
        """Return the value of each group's first member, array of shape (G,)."""
        return values_R.reshape(self._shape)[:, 0].reshape(-1)

    def count(self, columns: "Places") -> "Places":
        """Return how many of `columns` belong to each group, array of shape (G,)."""
        _, members, inner = self._shape
        groups = columns // (members * inner) * inner + columns % inner
        return np.bincount(groups, minlength=self._groups)


class _Listed:
    """Groups of equal size with an index; one column beyond the ranks stands for those not announced."""

    def __init__(self, column_GM: "Places", ranks: int) -> None:
        self.members = column_GM.shape[1]
        self._ranks = ranks
        # A minimum along the first axis is several times faster.
        self._column_MG = np.ascontiguousarray(column_GM.T, dtype=np.int32)
        self.is_partial = bool((column_GM == ranks).any())
        self.sample = _sample(column_GM[:, 0], ranks)

    def least(self, values_R: "Floats") -> "Floats":
        """Return each group's smallest known value, array of shape (G,)."""
        least_G: Floats = np.fmin.reduce(np.append(values_R, np.nan).take(self._column_MG), axis=0)
        return least_G

    def first(self, values_R: "Floats") -> "Floats":
        """Return the value of each group's first member, array of shape (G,)."""
        column_G = self._column_MG[0]
        first_G: Floats = values_R[np.minimum(column_G, self._ranks - 1)]
        first_G[column_G == self._ranks] = np.nan
        return first_G

    def count(self, columns: "Places") -> "Places":
        """Return how many of `columns` belong to each group, array of shape (G,); unannounced ranks always count."""
        chosen_R = np.zeros(self._ranks + 1, dtype=bool)
        chosen_R[columns] = True
        chosen_R[-1] = True
        counts_G: Places = chosen_R[self._column_MG].sum(axis=0)
        return counts_G
