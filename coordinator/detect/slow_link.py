# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""Which communication domain transfers more slowly than it used to.

Pure. Who arrives last waits for nobody: the least wait among a domain's members is its transfer. It is compared per
byte with the domain's own past. A step in which a member is missing says nothing of its domain, for the missing one may
have been the last. Pipelines give count x shortest operation instead (`StepRow.transfers`), their waits hold bubbles.

Shapes: R ranks, G domains of one kind, M members of the largest.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.excess import ExcessTest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.policy import ExcessPolicy, LinkPolicy
    from coordinator.timeline import StepRow
    from lockstep.contracts.domains import Domain

_COST_MIN = 1e-30  # seconds per byte: below any link; keeps a past of 0 from dividing


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A domain in alarm; seconds are per step."""

    domain: "Domain"
    excess_ratio: float
    excess_seconds: float
    transfer_seconds: float
    onset_step: int


class _Kind:
    """Layout of the domains of one kind: which columns are members of each."""

    def __init__(self, kind: str, domains: "Sequence[Domain]", ranks: "NDArray[np.int64]") -> None:
        self.kind = kind
        self.count = len(domains)
        widest = max(len(domain.ranks) for domain in domains)
        # Two columns beyond the ranks: one holds NaN for members nobody announced, one +inf to fill up short rows.
        # Members stand in columns: a minimum along the first axis is several times faster.
        self._members_MG = np.full((widest, len(domains)), len(ranks) + 1, dtype=np.intp)
        for row, domain in enumerate(domains):
            place = np.minimum(np.searchsorted(ranks, domain.ranks), len(ranks) - 1)
            self._members_MG[: len(place), row] = np.where(ranks[place] == domain.ranks, place, len(ranks))

    def least(self, values: "dict[str, NDArray[np.float64]]") -> "NDArray[np.float64]":
        """Return each domain's least value, NaN where a member has none, array of shape (G,)."""
        values_R = values.get(self.kind)
        if values_R is None:
            return np.full(self.count, np.nan)
        least: NDArray[np.float64] = np.append(values_R, (np.nan, np.inf))[self._members_MG].min(axis=0)
        return least


class SlowLinkTest:
    """Memory of all domains of a run; members that are not in `ranks` (ascending) are always missing."""

    def __init__(
        self, domains: "Sequence[Domain]", ranks: "NDArray[np.int64]", policy: "LinkPolicy", excess: "ExcessPolicy"
    ) -> None:
        self._policy = policy
        names = list(dict.fromkeys(domain.kind for domain in domains))
        self._domains = [domain for name in names for domain in domains if domain.kind == name]
        self._kinds = [_Kind(name, [d for d in domains if d.kind == name], ranks) for name in names]
        pools_G = np.repeat(np.arange(len(names)), [kind.count for kind in self._kinds])
        self._past_G = np.full(len(pools_G), np.nan)
        self._test = ExcessTest(pools_G.astype(np.intp), excess, floor_ratio=policy.effect_ratio)
        self._bytes_G = np.ones(len(pools_G))

    def step(self, row: "StepRow", step: int) -> None:
        """Judge one undisturbed step."""
        if not self._kinds:
            return
        moved_G = np.concatenate([kind.least(row.moved) for kind in self._kinds])
        self._bytes_G = np.where(moved_G > 0, moved_G, 1.0)
        cost_G = np.concatenate([kind.least(row.transfers) for kind in self._kinds]) / self._bytes_G
        self._past_G = np.where(np.isnan(self._past_G), cost_G, self._past_G)
        ratio_G = cost_G / np.maximum(self._past_G, _COST_MIN)
        self._test.step(ratio_G - 1, step)
        rate = max(self._policy.baseline_rate, 1 / self._test.judged)
        moved_by_G = rate * (np.clip(ratio_G, 0.5, 2.0) - 1)
        learn_G = ~np.isnan(cost_G) & ~self._test.suspicious_N
        self._past_G = np.where(learn_G, self._past_G * (1 + moved_by_G), self._past_G)

    def found(self, step_seconds: float) -> list[SlowLink]:
        """Return the domains in alarm whose excess is worth speaking of in a step of `step_seconds`."""
        found = []
        for index in np.flatnonzero(self._test.alarm_N).tolist():
            past_seconds = float(self._past_G[index] * self._bytes_G[index])
            ratio = float(self._test.level_N[index])
            if ratio * past_seconds > self._policy.step_share * step_seconds:
                found.append(
                    SlowLink(
                        domain=self._domains[index],
                        excess_ratio=ratio,
                        excess_seconds=ratio * past_seconds,
                        transfer_seconds=(1 + ratio) * past_seconds,
                        onset_step=int(self._test.onset_N[index]),
                    )
                )
        return found
