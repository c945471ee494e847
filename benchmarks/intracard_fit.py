"""Fits SW-IntraCC's equations 3 and 4 to measured collectives, to predict sizes that were not fitted.

    ring   (n - 1) (t_L + t_S + t_O + c V/n B)        c = 1 as published: what a round reads
    CSC    t_L + t_S + (n - 1) t_O + c V/B (n - 1)/n

t_S, the synchronisation, is measured by itself. t_L, t_O and 1/B come from least squares of relative errors, none below
zero. With two ranks both equations are one, so t_L and t_O cannot be distinguished: t_O is then 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from benchmarks.intracard_collectives import CSC, RING
from lockstep.simulator.hardware.collectives import Link
from lockstep.simulator.hardware.intracard import csc_bandwidth, ring_bandwidth

BANDWIDTH = {CSC: csc_bandwidth, RING: ring_bandwidth}


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective of `volume_bytes` among `ranks`; `copies` are the V/n that a rank moves, or None.

    None: as published, the n - 1 that it reads.
    """

    method: str
    ranks: int
    volume_bytes: int
    seconds: float
    copies: int | None = None

    @property
    def effective_bytes(self) -> float:
        """V, stretched so that the published equations count `copies` and not n - 1."""
        return self.volume_bytes if self.copies is None else self.volume_bytes * self.copies / (self.ranks - 1)


def fit(points: Sequence[Point], sync_s: float) -> Link:
    """Return the link whose equations 3 and 4 are nearest to `points`."""
    rows, rest = [], []
    for point in points:
        rounds = point.ranks - 1
        launches = rounds if point.method == RING else 1
        moved = rounds / point.ranks * point.effective_bytes
        rows.append(np.array([launches, 0 if point.ranks == 2 else rounds, moved]) / point.seconds)
        rest.append(1 - launches * sync_s / point.seconds)
    launch_s, step_s, seconds_per_byte = _least_squares(np.array(rows), np.array(rest))
    return Link(bytes_per_second=1 / seconds_per_byte, launch_s=launch_s, sync_s=sync_s, step_s=step_s)


def _least_squares(rows: np.ndarray, rest: np.ndarray) -> list[float]:
    """Return the best solution without a negative value; three unknowns, so every set of zeros is tried."""
    best, least = [0.0, 0.0, 1e-12], np.inf
    for count in (3, 2, 1):
        for chosen in map(list, combinations(range(3), count)):
            solved, *_ = np.linalg.lstsq(rows[:, chosen], rest, rcond=None)
            error = float(np.sum((rows[:, chosen] @ solved - rest) ** 2))
            if 2 in chosen and (solved >= 0).all() and solved[-1] > 0 and error < least - 1e-12:
                best, least = [0.0] * 3, error
                for place, value in zip(chosen, solved.tolist(), strict=True):
                    best[place] = value
    return best


def predict_s(point: Point, link: Link) -> float:
    """Return how long `point` takes by the equations."""
    volume = point.effective_bytes
    return volume / BANDWIDTH[point.method](volume, link=link, entities=point.ranks)


def error_ratio(point: Point, link: Link) -> float:
    """Return how far the prediction is above what was measured."""
    return predict_s(point, link) / point.seconds - 1
