# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""All detectors of one run behind one call per step.

Pure: a row in, a judgement out. Rank tests run on every undisturbed step, never after a step-time trigger: a rank that
computes 5 % longer lengthens the step by 3 to 4 %, which a trigger misses.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.columns import COMPONENTS
from coordinator.detect.components import SELF, WAIT, Explanation, explain, explain_run, medians, middling, parts_of
from coordinator.detect.fluctuation import FluctuationTest
from coordinator.detect.groups import Groups
from coordinator.detect.slow_link import SlowLinkTest
from coordinator.detect.slow_rank import SlowRankTest
from coordinator.findings import FLUCTUATION, LINK, SLOW_LINK, SLOW_RANK, Finding, Judgement
from coordinator.topology import replicas_of
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.slow_link import SlowLink
    from coordinator.policy import Policy
    from coordinator.timeline import StepRow
    from lockstep.contracts.domains import Domain, Topology

_API_STEPS = 10
_TELLING_SHARE = 0.1  # of the component that grew most; smaller ones only distract


class Judge:
    """Memory of one generation of one run over the ranks `ranks` (ascending; rows must have the same columns).

    `hosts` names the node of each of them; without it no node can be named.
    """

    def __init__(
        self, ranks: "NDArray[np.int64]", topology: "Topology", policy: "Policy", *, hosts: "Sequence[str]" = ()
    ) -> None:
        replicas = replicas_of(topology)
        self._policy = policy
        self._topology = topology
        self._hosts = tuple(hosts)
        self.ranks = ranks
        self._stages = Groups([topology.stages[rank] for rank in ranks])
        self._slow_rank = SlowRankTest(
            [topology.stages[rank] for rank in ranks], [replicas[rank] for rank in ranks], policy.excess
        )
        self._domains_of: dict[int, list[Domain]] = {}
        for domain in topology.domains:
            for rank in domain.ranks:
                self._domains_of.setdefault(rank, []).append(domain)
        self._links = SlowLinkTest(topology.domains, ranks, policy.link, policy.excess)
        self._fluctuation = FluctuationTest(policy.fluctuation, policy.excess)
        self._flag_share_R = np.zeros(len(ranks))
        self._after_capture = False
        self._findings: tuple[Finding, ...] = ()
        self._typical: dict[str, NDArray[np.float64]] = {}
        self.recent_rows: deque[StepRow] = deque(maxlen=_API_STEPS)
        """The last undisturbed steps, the youngest last."""

    def judge(self, row: "StepRow") -> Judgement:
        """Judge one completed step; rows must come in ascending order."""
        step_seconds = float(np.nanmedian(row.duration))
        disturbed = self._is_disturbed(row)
        if not disturbed:
            self.recent_rows.append(row)
            self._slow_rank.step(row.self_seconds, row.step)
            self._links.step(row, row.step)
            self._fluctuation.step(step_seconds, row.step)
            if self._slow_rank.ranks.judged % self._policy.cause.typical_every == 1:
                self._learn_typical(row)
            self._findings = self._find(step_seconds)
        return Judgement(
            step=row.step,
            unix_s=row.end_unix_s,
            step_seconds=step_seconds,
            is_disturbed=disturbed,
            is_warm=self._slow_rank.ranks.judged >= self._policy.excess.warm_up_steps,
            findings=self._findings,
            fluctuating=self._fluctuation.fluctuating,
            recent_step_seconds=self._fluctuation.recent_seconds,
            baseline_step_seconds=self._fluctuation.baseline_seconds,
            mean_over_best_ratio=self._fluctuation.mean_over_best_ratio,
            ranks_reporting=int(row.present.sum()),
            ranks_blind=int((row.present & np.isnan(row.self_seconds)).sum()),
        )

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what has been learnt, arrays by name: what a restart of the coordinator must not lose."""
        return {}

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave; arrays that do not fit this shape are left alone."""

    def _is_disturbed(self, row: "StepRow") -> bool:
        """Whether a flag of any rank excuses this step; a rank that flags most of its steps excuses nobody."""
        policy = self._policy.timeline
        flagged_R = row.flags != 0
        trusted_R = self._flag_share_R <= policy.flag_share_max
        warm_up_R = (row.flags & Flag.WARM_UP) != 0  # a run of warm-up flags is how every attempt begins
        learn_R = flagged_R & ~warm_up_R
        self._flag_share_R += policy.flag_share_rate * (learn_R - self._flag_share_R)
        excused_R = flagged_R & trusted_R
        capture = bool((excused_R & ((row.flags & Flag.PROFILED) != 0)).any())
        disturbed = bool(excused_R.any()) or self._after_capture
        self._after_capture = capture
        return disturbed

    def _learn_typical(self, row: "StepRow") -> None:
        """Remember what steps consist of while nothing is wrong, rank by rank."""
        if self._fluctuation.fluctuating:
            return
        rate = self._policy.cause.typical_rate
        healthy_R = ~self._slow_rank.ranks.suspicious_N
        for name, value_R in parts_of(row).items():
            before_R = self._typical.get(name, value_R)
            moved_R = np.where(healthy_R, before_R + rate * (value_R - before_R), before_R)
            self._typical[name] = np.where(np.isnan(moved_R), np.where(np.isnan(before_R), value_R, before_R), moved_R)

    def _find(self, step_seconds: float) -> tuple[Finding, ...]:
        found = self._slow_ranks()
        found += [_slow_link(slow) for slow in self._links.found(step_seconds)]
        if self._fluctuation.fluctuating:
            found.append(self._slow_run())
        return tuple(found)

    def _slow_ranks(self) -> list[Finding]:
        slow_R = self._slow_rank.slow_R
        if not slow_R.any():
            return []
        rows = list(self.recent_rows)[-self._policy.cause.steps :]
        waits = self._mean_waits()
        found = []
        for column, explanation in explain(rows, slow_R, self._stages, self._typical, self._policy.cause).items():
            rank = int(self.ranks[column])
            ratio, onset = self._slow_rank.level_of(column)
            # It holds back the domain whose kind is waited in most.
            domain = max(self._domains_of.get(rank, ()), key=lambda d: waits.get(d.kind, 0.0), default=None)
            evidence = _evidence(rank, explanation)
            found.append(
                Finding(
                    kind=SLOW_RANK,
                    cause=explanation.cause,
                    scope="rank",
                    ranks=(rank,),
                    domain=None if domain is None else (domain.kind, domain.name),
                    onset_step=onset,
                    excess_ratio=ratio,
                    excess_seconds=_excess_seconds(explanation, ratio * float(self._slow_rank.scale_R[column])),
                    evidence=tuple(evidence),
                    numbers={
                        "excess_ratio": ratio,
                        **{f"{name}_seconds": value for name, value in explanation.own.items()},
                        **{f"peers_{name}_seconds": value for name, value in explanation.peers.items()},
                    },
                )
            )
        return found

    def _mean_waits(self) -> dict[str, float]:
        """Return the mean wait of the last step by domain kind, seconds."""
        waits = {kind: value[~np.isnan(value)] for kind, value in self.recent_rows[-1].waits.items()}
        return {kind: float(value.mean()) for kind, value in waits.items() if len(value)}

    def _slow_run(self) -> Finding:
        """Describe a slower run by the part of the step that grew most since the oldest steps remembered."""
        ratio = self._fluctuation.level_ratio
        baseline = self._fluctuation.baseline_seconds or 0.0
        onset = self._fluctuation.onset_step
        rows = list(self.recent_rows)[-self._policy.cause.steps :]
        now, usual = middling(medians(rows)), middling(self._typical)
        return Finding(
            kind=FLUCTUATION,
            cause=explain_run(usual, now, self._policy.cause),
            scope="job",
            ranks=(),
            domain=None,
            onset_step=onset,
            excess_ratio=ratio,
            excess_seconds=ratio * baseline,
            evidence=(
                f"steps take {_ms(baseline * (1 + ratio))}, {ratio:+.0%} over the run's own {_ms(baseline)}",
                f"began at step {onset}",
            ),
            numbers={
                "baseline_step_seconds": baseline,
                "excess_ratio": ratio,
                **{f"{name}_seconds": value for name, value in now.items()},
                **{f"usual_{name}_seconds": value for name, value in usual.items()},
            },
        )


def _slow_link(slow: "SlowLink") -> Finding:
    domain = slow.domain
    what = f"transfers of {domain.kind} domain {domain.name}"
    return Finding(
        kind=SLOW_LINK,
        cause=LINK,
        scope="group",
        ranks=domain.ranks,
        domain=(domain.kind, domain.name),
        onset_step=slow.onset_step,
        excess_ratio=slow.excess_ratio,
        excess_seconds=slow.excess_seconds,
        evidence=(f"{what} take {_ms(slow.transfer_seconds)} a step, {slow.excess_ratio:+.0%} over their own past",),
        numbers={"transfer_seconds": slow.transfer_seconds, "excess_ratio": slow.excess_ratio},
    )


def _excess_seconds(explanation: Explanation, otherwise: float) -> float:
    """Return what the rank works longer than its peers, as the evidence has it: a median over steps.

    The scale of a single step would do only in a quiet job: right after a capture it can be four times the usual.
    """
    own, peers = explanation.own, explanation.peers
    return max(own[SELF] - peers[SELF], 0.0) if SELF in own and SELF in peers else otherwise


def _evidence(rank: int, explanation: Explanation) -> list[str]:
    own, peers = explanation.own, explanation.peers
    lines = []
    if SELF in own:
        lines.append(f"rank {rank} works {_ms(own[SELF])} a step by itself, its peers {_ms(peers[SELF])}")
    if WAIT in own:
        lines.append(f"it waits {_ms(own[WAIT])} a step for others, its peers {_ms(peers[WAIT])}")
    grown = {name: own[name] - peers[name] for name in COMPONENTS if name in own}
    telling = [name for name, seconds in grown.items() if seconds > _TELLING_SHARE * max(grown.values())]
    lines += [
        f"{name}: {_ms(own[name])} a step, peers {_ms(peers[name])}"
        for name in sorted(telling, key=lambda name: -grown[name])
    ]
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
