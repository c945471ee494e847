# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Which communication groups transfer more slowly than they should, and whether a node or the network is the reason.

Pure. A group's transfer (`transfers.py`) is compared per byte with the group's own past. A group that is slow from the
first step has no such past: once enough steps are known it is held against the groups of its kind that cross as many
nodes, and takes theirs. `tomography.py` finds what groups in alarm have in common.

Shapes: G groups, in the order of `Transfers.domains`; V groups of a verdict.
"""

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.links.link_evidence import Figures, SlowLink, describe
from coordinator.detect.links.tomography import GROUP, LinkVerdict, Tomography
from coordinator.detect.links.transfers import Transfers, TransferTimes
from coordinator.detect.ranks.cusum_test import CusumTest
from coordinator.detect.ranks.groups import Groups, has_nan, median_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import ExcessPolicy, LinkPolicy
    from lockstep.contracts.domains import Domain

    Floats = NDArray[np.float32]

_COST_MIN = 1e-30  # seconds per byte: below any link; keeps a past of 0 from dividing
_STEP_RATE = 1 / 4  # memory of how long a step takes, in looks ...
_STEP_EVERY = 8  # ... of one in so many steps
_SMALL_FACTOR = 4  # the embedding's stage reduces 2.2 times the bytes of the others and is still like them
_SAMPLE_RANKS = 1024  # all ranks of a synchronous job end a step together: so many show how long it took


class SlowLinkTest:
    """State of all groups of a run; members that are not in `ranks` (ascending) are always missing.

    `hosts[i]` names the node of `ranks[i]`; without it no node can be named.
    """

    def __init__(
        self,
        domains: "Sequence[Domain]",
        ranks: "NDArray[np.int64]",
        policy: "LinkPolicy",
        excess_policy: "ExcessPolicy",
        hosts: "Sequence[str]" = (),
    ) -> None:
        self.policy = policy
        self._transfers = Transfers(domains, ranks)
        self._tomography = Tomography(self._transfers.domains, self._transfers.kind_G, ranks, hosts)
        count = len(self._transfers.domains)
        # A group is compared with its own past: nothing in it is static.
        self._test = CusumTest(
            [self._transfers.kind_G],
            excess_policy,
            floor_ratio=policy.effect_ratio,
            fleet_views=lambda _: (),
            test="links",
        )
        self._past_G = np.full(count, np.nan, dtype=np.float32)
        self._bytes_G: NDArray[np.floating] = self._transfers.bytes_G
        self._is_from_peers_G = np.zeros(count, dtype=bool)
        self._step_seconds = np.full(1, np.nan)
        self._first_step = np.full(1, -1, dtype=np.int64)
        self._layout = zlib.crc32(repr([(d.kind, d.ranks[0], d.ranks[-1]) for d in self._transfers.domains]).encode())
        self._dear: set[int] = set()  # groups beyond the effect when last seen
        self._reported: set[int] = set()
        self._verdicts: list[LinkVerdict] = []
        self._held_steps = 0

    def adopt(self, policy: "LinkPolicy", excess_policy: "ExcessPolicy") -> None:
        """Apply other thresholds from the next step on."""
        before_G = self._scale_G()
        self.policy = policy
        self._test.adopt(excess_policy, floor_ratio=policy.effect_ratio)
        self._test.rescale(np.nan_to_num(before_G / self._scale_G(), nan=1.0))

    def step(self, row: "StepRow", step: int, *, is_new_work: bool = False) -> None:
        """Evaluate one undisturbed step; `is_new_work`: the run has lately begun to do another amount of work."""
        if not self._transfers.domains:
            return
        self._learn_step(row, step)
        if is_new_work:
            self._forget_past()
        taken = self._transfers.take(row, hidden_share=self.policy.hidden_share)
        extra_G, deviation_G = self._compare(taken)
        highest = float(np.fmax.reduce(deviation_G, initial=0))
        is_dear = highest > self.policy.effect_ratio
        if is_dear and self._transfers.take_bytes(row):  # more seconds for more bytes?
            extra_G, deviation_G = self._compare(replace(taken, bytes_G=self._transfers.bytes_G))
            highest = float(np.fmax.reduce(deviation_G, initial=0))
        self._test.step(deviation_G, step)
        self._learn(extra_G, deviation_G, highest)
        if self._test.evaluated_steps == self._test.policy.warm_up_steps:
            self._compare_with_peers()
        if is_dear or self._dear:
            unseen = {group for group in self._dear if np.isnan(deviation_G[group])}
            self._dear = unseen.union(np.flatnonzero(deviation_G > self.policy.effect_ratio).tolist())
        self._explain()

    def _forget_past(self) -> None:
        """Begin the past of groups whose bytes no one reports again, but for those in alarm.

        Activations grow with the batch and gradients do not: without bytes no one knows what a larger batch explains.
        """
        is_past_G = self._bytes_G == 1
        is_past_G[self._test.alarms.series_A] = False
        self._past_G[is_past_G] = np.nan
        self._test.forget(is_past_G.nonzero()[0])

    def _compare(self, taken: TransferTimes) -> "tuple[Floats, Floats]":
        """Return what each group takes beyond its past, seconds per byte, and as a ratio; NaN where unknown."""
        if taken.bytes_G is not self._bytes_G:
            self._past_G[(self._bytes_G == 1) & (taken.bytes_G != 1)] = np.nan  # it was per group, not per byte
            self._bytes_G = taken.bytes_G
        cost_G: Floats = (taken.seconds_G / taken.bytes_G).astype(np.float32, copy=False)
        if has_nan(self._past_G):
            np.copyto(self._past_G, cost_G, where=np.isnan(self._past_G))
        extra_G: Floats = cost_G - self._past_G
        deviation_G = self._scale_G()
        np.divide(extra_G, deviation_G, out=deviation_G)
        if taken.is_bound_G is not None:  # a low bound shows that all is well, a high one nothing
            deviation_G[taken.is_bound_G & (deviation_G > 0)] = np.nan
        return extra_G, deviation_G

    def _learn_step(self, row: "StepRow", step: int) -> None:
        """Follow how long a step takes; it changes slowly, and a look costs as much as a small job's test."""
        held = self._step_seconds
        if self._test.evaluated_steps % _STEP_EVERY and not np.isnan(held[0]):
            return
        sample = row.duration[:: 1 + len(row.duration) // _SAMPLE_RANKS]
        known = sample[~np.isnan(sample)]
        if not len(known):
            return
        seconds = median_of(known)
        if np.isnan(held[0]):
            held[0], self._first_step[0] = seconds, step
        held += _STEP_RATE * (np.clip(seconds, held / 2, held * 2) - held)

    def _scale_G(self) -> "Floats":
        """Return what a ratio of 1 stands for, seconds per byte.

        That is the group's past, but no less than makes the smallest effect matter to a step: hidden transfers, of
        which a fraction shows now and then, would be infinitely slower.
        """
        least_seconds = self.policy.step_share * self._step_seconds[0] / self.policy.effect_ratio
        scale_G: Floats = np.maximum(self._past_G, (least_seconds / self._bytes_G).astype(np.float32))
        np.maximum(scale_G, np.float32(_COST_MIN), out=scale_G)
        return scale_G

    def _learn(self, extra_G: "Floats", deviation_G: "Floats", highest: float) -> None:
        """Let each group's past follow what is healthy; no known deviation is beyond `highest`."""
        test, policy = self._test, self.policy
        is_young = test.evaluated_steps < test.policy.warm_up_steps
        rate = max(1 / test.evaluated_steps, policy.warm_up_rate) if is_young else policy.baseline_rate
        change_G = self._past_G * np.float32(-0.5)
        np.maximum(extra_G, change_G, out=change_G)
        np.minimum(change_G, self._past_G, out=change_G)
        change_G[test.suspicious] = 0
        if not highest <= policy.effect_ratio and not is_young:
            change_G[deviation_G > policy.effect_ratio] = 0
        if has_nan(deviation_G):
            change_G[np.isnan(deviation_G)] = 0
        change_G *= np.float32(rate)
        self._past_G += change_G

    def _compare_with_peers(self) -> None:
        """Give groups that were slow from the first step on the past of their peers."""
        transfers, policy = self._transfers, self.policy
        # Without bytes the first stage, which reduces the embedding too, is not like the others.
        has_bytes_G = self._bytes_G > 1
        stage_G = np.full(len(has_bytes_G), -1) if has_bytes_G.all() else np.where(has_bytes_G, -1, transfers.stages())
        alike_G = np.zeros(len(stage_G), dtype=np.int64)
        for figure_G in (transfers.kind_G, transfers.sizes_G, self._tomography.spans_G, stage_G):
            alike_G = alike_G * (int(figure_G.max()) + 2) + figure_G.astype(np.int64) + 1
        peers = Groups(alike_G.tolist())
        past_G = np.where(self._past_G > 0, self._past_G, np.nan)  # a group that claims never to wait is no measure
        is_evaluated_G = peers.known(past_G)[peers.group_R] >= policy.peers_min
        usual_G = peers.reference(past_G)[peers.group_R]
        slow_G = is_evaluated_G & (self._past_G > (1 + policy.peers_ratio) * usual_G)
        # A small message takes long for its bytes wherever it goes: far fewer must be slow in seconds too.
        is_small_G = self._bytes_G * _SMALL_FACTOR < peers.median(self._bytes_G)[peers.group_R]
        seconds_G = past_G * self._bytes_G.astype(np.float64)
        usual_seconds_G = peers.reference(seconds_G)[peers.group_R]
        slow_G &= ~is_small_G | (seconds_G > (1 + policy.peers_ratio) * usual_seconds_G)
        self._past_G[slow_G] = usual_G[slow_G]
        self._is_from_peers_G |= slow_G

    def _explain(self) -> None:
        """Find what alarms have in common whenever there are new ones, once those about to follow are there too."""
        alarms = set(self._test.alarms.series_A.tolist())
        if not self._reported <= alarms:
            self._reported &= alarms
            self._verdicts = [still for verdict in self._verdicts if (still := verdict.within(alarms)).groups]
        if alarms == self._reported:
            return
        pending = self._dear - alarms
        verdicts = self._tomography.explain(alarms | pending, self._verdicts, self.policy)
        if not all(_expects(verdict, alarms, pending) for verdict in verdicts):
            if self._held_steps < self.policy.hold_steps:
                self._held_steps += 1
                return
            verdicts = self._tomography.explain(alarms, self._verdicts, self.policy)
        self._verdicts = [sure for verdict in verdicts if (sure := verdict.within(alarms)).groups]
        self._reported, self._held_steps = alarms, 0

    def suspected_seconds(self) -> float:
        """Return the largest deviation of a group that may soon be named, in transfers of its own."""
        suspects, deviation = self._test.suspected()
        held = sorted(set(self._test.alarms.series_A.tolist()) - self._reported)
        deviation = np.concatenate((deviation, [self._test.alarms.of(group)[0] for group in held]))
        groups = np.concatenate((suspects, np.array(held, dtype=np.intp)))
        return float(np.max(deviation * (self._scale_G() * self._bytes_G)[groups], initial=0))

    @property
    def mirrored_alarms(self) -> int:
        """How many groups alarmed in the last step for being too fast."""
        return len(self._test.mirrored.raised)

    def found(self, step_seconds: float) -> list[SlowLink]:
        """Return what is in alarm and worth speaking of in a step of `step_seconds`."""
        found = [self._describe(verdict) for verdict in self._verdicts]
        # A checkpoint makes a step long, and no link better.
        worth_seconds = self.policy.step_share * min(float(self._step_seconds[0]), step_seconds)
        return [
            slow
            for slow in found
            if slow.excess_seconds > worth_seconds and slow.excess_ratio > self.policy.effect_ratio
        ]

    def _describe(self, verdict: LinkVerdict) -> SlowLink:
        groups = np.array(verdict.groups)
        bytes_V = self._bytes_G[groups].astype(np.float64)
        past_seconds = np.maximum(self._past_G[groups], _COST_MIN) * bytes_V
        states = [self._test.alarms.of(group) for group in verdict.groups]
        level = np.array([level for level, _ in states], dtype=np.float32)
        onset = np.array([onset for _, onset in states], dtype=np.int64)
        onset[self._is_from_peers_G[groups]] = self._first_step[0]
        figures = Figures(
            past_seconds=past_seconds,
            extra_seconds=level * self._scale_G()[groups] * bytes_V,
            onset_step=onset,
            is_from_peers=self._is_from_peers_G[groups],
            sigma_ratio=self._test.limits.scale_P[self._transfers.kind_G[groups]],
            threshold_ratio=self.policy.effect_ratio,
        )
        return describe(verdict, figures, self._transfers.domains, self._tomography, self._transfers.kind_G)

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt and what is in alarm, arrays by name."""
        test = {f"test.{name}": value for name, value in self._test.state_dict().items()}
        return self._own() | {"layout": np.array([self._layout])} | test

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore what `state_dict` returned; nothing is taken of groups that are not these."""
        own, prefix = self._own(), "test."
        is_ours = "layout" in state and state["layout"].shape == (1,) and state["layout"][0] == self._layout
        fits = all(name in state and state[name].shape == value.shape for name, value in own.items())
        test = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if is_ours and fits and self._test.load_state_dict(test):
            for name, value in own.items():
                np.copyto(value, state[name].astype(value.dtype))

    def _own(self) -> "dict[str, NDArray[np.generic]]":
        return {
            "past": self._past_G,
            "bytes": self._bytes_G,
            "from_peers": self._is_from_peers_G,
            "step_seconds": self._step_seconds,
            "first_step": self._first_step,
        }


def _expects(verdict: LinkVerdict, alarms: set[int], pending: set[int]) -> bool:
    """Whether groups about to alarm will not change a verdict: none are in it, or a node or job explains them."""
    waiting = len(pending.intersection(verdict.groups))
    is_common = verdict.scope != GROUP and verdict.rank is None
    return waiting == 0 or (is_common and waiting <= len(alarms.intersection(verdict.groups)))
