# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""All detectors of one run behind one call per step.

Pure: a row in, a judgement out. Rank tests run on every undisturbed step, never after a step-time trigger: a rank that
computes 5 % longer lengthens the step by 3 to 4 %, which a trigger misses.
"""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.components import explain_run, medians, middling
from coordinator.detect.fluctuation import FluctuationTest
from coordinator.detect.rank_findings import RankFindings
from coordinator.detect.slow_link import SlowLinkTest
from coordinator.detect.slow_rank import SlowRankTest
from coordinator.findings import FLUCTUATION, LINK, SLOW_LINK, Finding, Judgement
from coordinator.topology import replicas_of
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.slow_link import SlowLink
    from coordinator.policy import Policy
    from coordinator.timeline import StepRow
    from lockstep.contracts.domains import Topology

_API_STEPS = 10
_SHARE_FORGOTTEN = 1e-3  # of flagged steps, below which a rank is as one that never flagged any
_SAMPLE_RANKS = 1024  # all ranks of a synchronous job end a step together: so many tell how long it took


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
        self._slow_rank = SlowRankTest(
            [topology.stages[rank] for rank in ranks],
            [replicas[rank] for rank in ranks],
            policy.excess,
            rank_policy=policy.rank,
            work_policy=policy.work,
        )
        self._rank_findings = RankFindings(topology, ranks, self._slow_rank)
        self._links = SlowLinkTest(topology.domains, ranks, policy.link, policy.excess)
        self._fluctuation = FluctuationTest(policy.fluctuation, policy.excess)
        self._flag_share_R = np.zeros(len(ranks), dtype=np.float32)
        self._after_capture = False
        self._findings: tuple[Finding, ...] = ()
        self.recent_rows: deque[StepRow] = deque(maxlen=_API_STEPS)
        """The last undisturbed steps, the youngest last."""

    def judge(self, row: "StepRow") -> Judgement:
        """Judge one completed step; rows must come in ascending order."""
        step_seconds = float(np.nanmedian(row.duration[:: 1 + len(row.duration) // _SAMPLE_RANKS]))
        disturbed = self._is_disturbed(row)
        if not disturbed:
            self.recent_rows.append(row)
            self._slow_rank.step(row.self_seconds, row.step, compute_R=row.components["compute"], work_R=row.work)
            self._links.step(row, row.step)
            self._fluctuation.step(step_seconds, row.step)
            judged = self._slow_rank.ranks.judged
            if judged % self._policy.cause.typical_every == 1 and not self._fluctuation.fluctuating:
                self._rank_findings.learn(row, self._policy.cause)
            self._findings = self._find(step_seconds)
        return Judgement(
            step=row.step,
            unix_s=row.end_unix_s,
            step_seconds=step_seconds,
            is_disturbed=disturbed,
            is_warm=self._slow_rank.is_warm,
            findings=self._findings,
            fluctuating=self._fluctuation.fluctuating,
            recent_step_seconds=self._fluctuation.recent_seconds,
            baseline_step_seconds=self._fluctuation.baseline_seconds,
            mean_over_best_ratio=self._fluctuation.mean_over_best_ratio,
            ranks_reporting=int(row.present.sum()),
            ranks_blind=int((row.present & np.isnan(row.self_seconds)).sum()),
        )

    def adopt(self, policy: "Policy") -> None:
        """Judge by other thresholds from the next step on; what has been learnt stays."""
        self._policy = policy
        for test in (self._slow_rank.ranks, self._slow_rank.replicas, self._slow_rank.stages):
            test.policy = policy.excess
        self._slow_rank.work.policy = policy.work

    def memory(self) -> "dict[str, NDArray[np.generic]]":
        """Return what has been learnt, arrays by name: what a restart of the coordinator must not lose."""
        return {}

    def recall(self, memory: "Mapping[str, NDArray[np.generic]]") -> None:
        """Take back what `memory` gave; arrays that do not fit this shape are left alone."""

    def _is_disturbed(self, row: "StepRow") -> bool:
        """Whether a flag of any rank excuses this step; a rank that flags most of its steps excuses nobody."""
        policy = self._policy.timeline
        if not row.flags.any() and not self._flag_share_R.any():
            disturbed, self._after_capture = self._after_capture, False
            return disturbed
        flagged_R = row.flags != 0
        trusted_R = self._flag_share_R <= policy.flag_share_max
        warm_up_R = (row.flags & Flag.WARM_UP) != 0  # a run of warm-up flags is how every attempt begins
        learn_R = flagged_R & ~warm_up_R
        self._flag_share_R += np.float32(policy.flag_share_rate) * (learn_R - self._flag_share_R)
        self._flag_share_R[self._flag_share_R < _SHARE_FORGOTTEN] = 0
        excused_R = flagged_R & trusted_R
        capture = bool((excused_R & ((row.flags & Flag.PROFILED) != 0)).any())
        disturbed = bool(excused_R.any()) or self._after_capture
        self._after_capture = capture
        return disturbed

    def _find(self, step_seconds: float) -> tuple[Finding, ...]:
        found = self._rank_findings.find(self.recent_rows, self._policy.cause)
        found += [_slow_link(slow) for slow in self._links.found(step_seconds)]
        if self._fluctuation.fluctuating:
            found.append(self._slow_run())
        return tuple(found)

    def _slow_run(self) -> Finding:
        """Describe a slower run by the part of the step that grew most since the oldest steps remembered."""
        ratio = self._fluctuation.level_ratio
        baseline = self._fluctuation.baseline_seconds or 0.0
        onset = self._fluctuation.onset_step
        rows = list(self.recent_rows)[-self._policy.cause.steps :]
        now, usual = middling(medians(rows)), middling(self._rank_findings.typical)
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


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
