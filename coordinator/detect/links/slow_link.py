# ruff: noqa: N802, N803, N806  (names of arrays end in their shape, see the legend below)
"""Which communication groups transfer more slowly than they should, and whether a node or the network is the reason.

Pure. The time of a group's transfers (`transfers.py`) is compared per byte with the group's own past. A group that is
slow from the first step has no healthy past. Once enough steps are known, it is compared with the groups of its kind
that cross as many nodes, and their past replaces its own. `tomography.py` finds what groups in alarm have in common.

Shapes: G groups, in the order of `Transfers.domains`; V groups of a verdict.
"""

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.links.link_evidence import Figures, SlowLink, describe
from coordinator.detect.links.tomography import GROUP, LinkVerdict, Tomography
from coordinator.detect.links.transfers import Transfers, TransferTimes
from coordinator.detect.ranks.groups import Groups, has_nan, median_of
from coordinator.detect.ranks.series_cusum import CusumTest
from coordinator.detect.state_dict import nested, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import ExcessPolicy, LinkPolicy
    from lockstep.contracts.domains import Domain

    Floats = NDArray[np.float32]

_HIDDEN_SHARE = 0.1  # of the seconds that a ratio of 1 stands for in a test: less in the past was hidden
_COST_MIN = 1e-30  # seconds per byte, below any link; avoids a division by a past of 0
_STEP_RATE = 1 / 4  # smoothing of the step time, per sample ...
_STEP_EVERY = 8  # ... which is one step in this many
_SMALL_FACTOR = 4  # the stage with the embedding reduces 2.2 times the bytes of the others and is still comparable
_SAMPLE_RANKS = 1024  # enough to measure a step: all ranks of a synchronous job end it together


class SlowLinkTest:
    """State of all groups of a run; members that are not in `ranks` (ascending) always count as missing.

    `hosts[i]` is the node of `ranks[i]`; without it no node can be named.
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
        # A group is compared with its own past, so it needs no static differences.
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
        self._dear: set[int] = set()  # groups above the smallest effect when last seen
        self._reported: set[int] = set()
        self._verdicts: list[LinkVerdict] = []
        self._held_steps = 0

    def set_policy(self, policy: "LinkPolicy", excess_policy: "ExcessPolicy") -> None:
        """Apply other thresholds from the next step on."""
        before_G = self._scale_G()
        self.policy = policy
        self._test.set_policy(excess_policy, floor_ratio=policy.effect_ratio)
        self._test.rescale(np.nan_to_num(before_G / self._scale_G(), nan=1.0))

    def step(self, row: "StepRow", step: int, *, is_new_work: bool = False) -> None:
        """Evaluate one undisturbed step; `is_new_work`: the amount of work per step changed recently."""
        if not self._transfers.domains:
            return
        self._learn_step(row, step)
        if is_new_work:
            self._forget_past()
        taken = self._transfers.read(row, hidden_share=self.policy.hidden_share)
        extra_G, deviation_G = self._compare(taken)
        highest = float(np.fmax.reduce(deviation_G, initial=0))
        is_dear = highest > self.policy.effect_ratio
        if is_dear and self._transfers.read_bytes(row):  # more seconds for more bytes?
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
        """Reset the past of groups without current byte counts, except those in alarm.

        Activations grow with the batch and gradients do not: without byte counts, the effect of a larger batch is
        unknown.
        """
        is_past_G = self._bytes_G == 1
        is_past_G[self._test.alarms.series_A] = False
        self._past_G[is_past_G] = np.nan
        self._test.forget(is_past_G.nonzero()[0])

    def _compare(self, taken: TransferTimes) -> "tuple[Floats, Floats]":
        """Return each group's deviation from its past, in seconds per byte and as a ratio; NaN if unknown."""
        if taken.bytes_G is not self._bytes_G:
            self._past_G[(self._bytes_G == 1) & (taken.bytes_G != 1)] = np.nan  # that past was per group, not per byte
            self._bytes_G = taken.bytes_G
        cost_G: Floats = (taken.seconds_G / taken.bytes_G).astype(np.float32, copy=False)
        if has_nan(self._past_G):
            np.copyto(self._past_G, cost_G, where=np.isnan(self._past_G))
        extra_G: Floats = cost_G - self._past_G
        deviation_G = self._scale_G()
        np.divide(extra_G, deviation_G, out=deviation_G)
        if taken.is_bound_G is not None:  # a low upper bound proves a fast transfer, a high one proves nothing
            deviation_G[taken.is_bound_G & (deviation_G > 0)] = np.nan
        return extra_G, deviation_G

    def _learn_step(self, row: "StepRow", step: int) -> None:
        """Sample the step time every `_STEP_EVERY` steps: it changes slowly, and a sample costs as much as a test."""
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
        """Return the seconds per byte that a ratio of 1 stands for.

        This is the group's past, but at least as much as makes the smallest effect matter to a step: the ratio of
        hidden transfers, which are rarely exposed, would otherwise be almost infinite.
        """
        least_seconds = self.policy.step_share * self._step_seconds[0] / self.policy.effect_ratio
        scale_G: Floats = np.maximum(self._past_G, (least_seconds / self._bytes_G).astype(np.float32))
        np.maximum(scale_G, np.float32(_COST_MIN), out=scale_G)
        return scale_G

    def _learn(self, extra_G: "Floats", deviation_G: "Floats", highest: float) -> None:
        """Update each group's past from healthy values; no known deviation exceeds `highest`."""
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
        """Replace the past of groups that were slow from the first step by that of their peers."""
        transfers, policy = self._transfers, self.policy
        # Without byte counts the first stage, which also reduces the embedding, is not comparable with the others.
        has_bytes_G = self._bytes_G > 1
        stage_G = np.full(len(has_bytes_G), -1) if has_bytes_G.all() else np.where(has_bytes_G, -1, transfers.stages())
        alike_G = np.zeros(len(stage_G), dtype=np.int64)
        for figure_G in (transfers.kind_G, transfers.sizes_G, self._tomography.spans_G, stage_G):
            alike_G = alike_G * (int(figure_G.max()) + 2) + figure_G.astype(np.int64) + 1
        peers = Groups(alike_G.tolist())
        past_G = np.where(self._past_G > 0, self._past_G, np.nan)  # a group that reports no waiting is no reference
        is_evaluated_G = peers.known(past_G)[peers.group_R] >= policy.peers_min
        usual_G = peers.reference(past_G)[peers.group_R]
        slow_G = is_evaluated_G & (self._past_G > (1 + policy.peers_ratio) * usual_G)
        # A small message costs much per byte on any link, so a group with far fewer bytes must be slow in seconds too.
        is_small_G = self._bytes_G * _SMALL_FACTOR < peers.median(self._bytes_G)[peers.group_R]
        seconds_G = past_G * self._bytes_G.astype(np.float64)
        usual_seconds_G = peers.reference(seconds_G)[peers.group_R]
        slow_G &= ~is_small_G | (seconds_G > (1 + policy.peers_ratio) * usual_seconds_G)
        self._past_G[slow_G] = usual_G[slow_G]
        self._is_from_peers_G |= slow_G

    def _explain(self) -> None:
        """Find what alarms have in common whenever one is new, and wait for groups about to alarm."""
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
        """Return the largest deviation of a group that may soon be named, seconds per step."""
        suspects, deviation = self._test.suspected()
        held = sorted(set(self._test.alarms.series_A.tolist()) - self._reported)
        deviation = np.concatenate((deviation, [self._test.alarms.of(group)[0] for group in held]))
        groups = np.concatenate((suspects, np.array(held, dtype=np.intp)))
        return float(np.max(deviation * (self._scale_G() * self._bytes_G)[groups], initial=0))

    @property
    def mirrored_alarms(self) -> int:
        """Number of groups that alarmed in the last step for being too fast."""
        return len(self._test.mirrored.raised)

    def found(self, step_seconds: float) -> list[SlowLink]:
        """Return the slow links that matter in a step of `step_seconds`."""
        found = [self._describe(verdict) for verdict in self._verdicts]
        # A checkpoint lengthens a step but does not make a link faster.
        worth_seconds = self.policy.step_share * min(float(self._step_seconds[0]), step_seconds)
        return [
            slow
            for slow in found
            if slow.excess_seconds > worth_seconds and slow.excess_ratio > self.policy.effect_ratio
        ]

    def _describe(self, verdict: LinkVerdict) -> SlowLink:
        groups = np.array(verdict.groups)
        bytes_V = self._bytes_G[groups].astype(np.float64)
        scale_seconds = self._scale_G()[groups] * bytes_V
        states = [self._test.alarms.of(group) for group in verdict.groups]
        level = np.array([level for level, _ in states], dtype=np.float32)
        onset = np.array([onset for _, onset in states], dtype=np.int64)
        onset[self._is_from_peers_G[groups]] = self._first_step[0]
        figures = Figures(
            past_seconds=self._past_G[groups] * bytes_V,
            hidden_seconds=_HIDDEN_SHARE * scale_seconds,
            extra_seconds=level * scale_seconds,
            onset_step=onset,
            is_from_peers=self._is_from_peers_G[groups],
            sigma_ratio=self._test.limits.scale_P[self._transfers.kind_G[groups]],
            threshold_ratio=self.policy.effect_ratio,
        )
        return describe(verdict, figures, self._transfers.domains, self._tomography, self._transfers.kind_G)

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return what was learnt and what is in alarm, arrays by name."""
        return self._own() | {"layout": np.array([self._layout])} | nested({"test": self._test.state_dict()})

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; if the groups differ, nothing is restored."""
        own = self._own()
        is_ours = "layout" in state and state["layout"].shape == (1,) and state["layout"][0] == self._layout
        fits = all(name in state and state[name].shape == value.shape for name, value in own.items())
        if is_ours and fits and self._test.load_state_dict(part_of(state, "test")):
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
    """Whether pending alarms cannot change a verdict: none is among its groups, or a node or job explains them."""
    waiting = len(pending.intersection(verdict.groups))
    is_common = verdict.scope != GROUP and verdict.rank is None
    return waiting == 0 or (is_common and waiting <= len(alarms.intersection(verdict.groups)))
