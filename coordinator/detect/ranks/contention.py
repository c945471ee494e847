# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Stages that look longer only because their ranks wait for one of them.

Pure. A rank that waits finds its caches cold, its clock lower, or its core shared with ranks that spin, so its own work
looks longer by a share of the wait. If ranks of one stage are held up in turn, as by unsynchronised collections, the
stage's reference is longer in each of these steps, and no single rank is long enough to be suspected.

Shapes: R ranks, P stages.
"""

from typing import TYPE_CHECKING

from coordinator.detect.ranks.noise import FAR_SIGMAS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coordinator.detect.ranks.groups import Groups

    Figures = NDArray[np.floating]

CONTENTION_SHARE = 0.4
"""Share of one rank's excess by which the own work of ranks that wait for it looks longer: at most 0.3 measured."""


def waiting_stages(
    deviation_P: "Figures", rest_R: "Figures", stages: "Groups", sigma_P: "Figures"
) -> "NDArray[np.bool_]":
    """Return which stages are longer by no more than waiting for one of their ranks explains, array of shape (P,).

    Parameters
    ----------
    deviation_P
        Deviation of each stage's reference from its past, ratio.
    rest_R
        Deviation of each rank from that reference, ratio.
    stages
        The ranks of each stage.
    sigma_P
        Noise of single steps of ranks, ratio; while it is NaN (unknown), nothing is explained.
    """
    held_P = -stages.least(-rest_R)
    is_held_P = held_P > FAR_SIGMAS * sigma_P
    explained_P = CONTENTION_SHARE * (held_P + deviation_P)
    waits_P: NDArray[np.bool_] = is_held_P & (deviation_P > 0) & (deviation_P <= explained_P)
    return waits_P
