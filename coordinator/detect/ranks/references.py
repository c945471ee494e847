# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""References of a rank's own work: that of its stage, and what its replica shares.

Pure. Ranks of one stage and one replica form a cell: they have the same layers and the same batch. If batches are
uneven, the lowest ranks of a stage are those of its shortest batch, and if these are few, one slow rank would be the
reference: then the low quantile of each cell is computed first, and those of stages and replicas from the cells.

Shapes: R ranks, P stages, D replicas, C cells.
"""

from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.ranks.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]


class References:
    """Low quantiles of the `stages` and `replicas` of one job; `replicas` is None if ranks share no batch."""

    def __init__(self, stages: Groups, replicas: Groups | None) -> None:
        self._single = (stages, replicas)
        self._cells: Groups | None = None  # built on first use: even batches need none
        self._of_cells = self._single

    def _lay_out(self, stages: Groups, replicas: Groups) -> None:
        cell_R = stages.group_R * replicas.count + replicas.group_R
        _, first_C = np.unique(cell_R, return_index=True)
        self._cells = Groups(cell_R)
        self._of_cells = (Groups(stages.group_R[first_C]), Groups(replicas.group_R[first_C]))

    def split(
        self,
        own_R: "Floats",
        quantile: "Callable[[Groups, Floats], Floats]" = Groups.reference,
        *,
        by_cell: bool = True,
    ) -> "tuple[Floats, Floats | None]":
        """Return each stage's reference and each replica's excess over those, arrays of shape (P,) and (D,), seconds.

        `by_cell` compares cells rather than single ranks. NaN if no rank of a group is known; None without replicas.
        """
        stages, replicas = self._single
        if by_cell and replicas is not None:
            if self._cells is None:
                self._lay_out(stages, replicas)
            assert self._cells is not None
            own_R = quantile(self._cells, own_R)
            stages, replicas = self._of_cells
        reference_P = quantile(stages, own_R)
        if replicas is None:
            return reference_P, None
        above_R = own_R.copy()
        rest, reference = stages.broadcast(above_R, reference_P)
        rest -= reference
        return reference_P, quantile(replicas, above_R)


def static_stand_in(
    replicas: Groups,
    rest_R: "Floats",
    static: "Callable[[], Floats]",
    changed: "NDArray[np.intp]",
    whole_max: int,
) -> "Floats":
    """Return the static difference that the shared work of replicas contains, shape (D,), seconds.

    In a small replica the lowest rank is its reference. Once that rank is among the `changed`, slower than its static
    difference explains, another one becomes the reference and adds its own static difference. `rest_R` is each rank's
    deviation from its stage, `static` returns each rank's static difference, both in seconds; replicas of more than
    `whole_max` ranks have others as low. Without this, healthy partners are named in the scenarios
    `10 %, wide silicon` and `10 %, wide silicon, pairs`.
    """
    stand_in_D: Floats = np.zeros(replicas.count, dtype=np.float32)
    if not len(changed):
        return stand_in_D
    changed_D = (replicas.counts(changed) > 0) & (replicas.sizes_G <= whole_max)
    if changed_D.any():
        healthy_R = rest_R.copy()
        healthy_R[changed] = np.nan
        raised_D = replicas.reference(healthy_R) - replicas.reference(healthy_R - static())
        np.copyto(stand_in_D, raised_D, where=changed_D & (raised_D > 0), casting="same_kind")
    return stand_in_D


def expert_places(place_R: "Sequence[int] | None", replicas: Groups | None) -> Groups | None:
    """Return the expert places of replicas, else of ranks; None if each place has only one member."""
    if place_R is None:
        return None
    places = np.asarray(place_R, dtype=np.intp)
    if replicas is not None:
        place_D = np.zeros(replicas.count, dtype=np.intp)
        place_D[replicas.group_R] = places
        places = place_D
    groups = Groups(places)
    return groups if groups.count > 1 and int(groups.sizes_G.min()) > 1 else None
