# ruff: noqa: N806  (names of arrays end in their shape, see the legend below)
"""All detectors of one run behind one call per step.

Pure: takes a row, returns a step result. Rank tests run on every undisturbed step and do not wait for a step-time
trigger: a rank that computes 5 % longer lengthens the step by 3 to 4 %, which a trigger misses.
"""

from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from coordinator.detect.anomalies import SLOW_LINK, SLOW_RANK, UNSYNCHRONISED_GC, Anomaly, StepResult
from coordinator.detect.error_budget import ATTEMPT_STEPS
from coordinator.detect.hangs.held_step import held_step
from coordinator.detect.links.slow_link import SlowLinkTest
from coordinator.detect.ranks.components import single_parts
from coordinator.detect.ranks.groups import has_nan, mean_of, median_of
from coordinator.detect.ranks.imbalance import Imbalance
from coordinator.detect.ranks.intermittent_anomalies import IntermittentAnomalies
from coordinator.detect.ranks.rank_anomalies import RankAnomalies
from coordinator.detect.ranks.slow_rank import SlowRankTest
from coordinator.detect.run_anomalies import slow_link, slower_run, unsynchronised_gc, without_unsynchronised_gc
from coordinator.detect.runs.fluctuation import FluctuationTest, RunSample
from coordinator.detect.runs.unsynchronised_gc import UnsynchronisedGcTest
from coordinator.detect.state_dict import nested, part_of
from coordinator.detect.work_figure import WorkFigure
from coordinator.intake.replicas import places_of, replicas_of
from lockstep.contracts.metrics import MIRRORED_UNITS
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.runs.run_outliers import Outliers
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import Policy
    from lockstep.contracts.domains import Topology

_ROWS_MIN, _ROWS_MAX = 5, 32  # rows kept to find causes, which needs 3, and to explain
_CELLS_MAX = 1 << 18  # rows x ranks: 55 MB
_RESIZED_RATIO = 0.25  # of the ranks that join or leave between two steps; more than one node's lost records
_SHARE_FORGOTTEN = 1e-3  # of flagged steps; a rank below counts as one that never flags
_SUSPECT_STEPS = 2  # that a slower run waits for a rank or link about to alarm that explains it
_SUSPECT_SHARE = 0.75  # of the slowdown that one rank or link must explain; the rest is jitter over ranks
_SAMPLE_RANKS = 1024  # enough to measure a step: all ranks of a synchronous job end it together


class _Restorable(Protocol):
    """A part whose state outlives a restart of the coordinator."""

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state."""

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the learnt state."""


class Detector:
    """State of one generation of one run over the ranks `ranks` (ascending; rows must have the same columns).

    `hosts` gives the node of each rank; without it no node can be named. `outliers` are the long steps learnt in
    earlier generations of the run: a restart changes the ranks' hosts and speed, but not how often they stall.
    `attempt_steps` is the expected number of steps of the run's attempts.
    """

    def __init__(
        self,
        ranks: "NDArray[np.int64]",
        topology: "Topology",
        policy: "Policy",
        *,
        hosts: "Sequence[str]" = (),
        outliers: "Outliers | None" = None,
        attempt_steps: float = ATTEMPT_STEPS,
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
            place_R=places_of(topology, ranks),
            hosts=self._hosts,
            attempt_steps=attempt_steps,
        )
        self._rank_anomalies = RankAnomalies(topology, ranks, self._slow_rank, self._hosts)
        self._intermittent = IntermittentAnomalies(len(ranks), self._rank_anomalies, policy.excess)
        self._links = SlowLinkTest(topology.domains, ranks, policy.link, policy.excess, hosts=self._hosts)
        self._fluctuation = FluctuationTest(policy.fluctuation, outliers=outliers)
        self._unsynchronised_gc = UnsynchronisedGcTest(len(ranks), policy.gc)
        self._imbalance = Imbalance()
        self._work_figure = WorkFigure()
        self._ranks_of_node = dict(Counter(self._hosts))
        self._flag_share_R: NDArray[np.float32] | None = None  # of all ranks, while any flags steps
        self._after_capture = False
        self._present: int | None = None
        self._anomalies: tuple[Anomaly, ...] = ()
        self._suspect_steps = 0  # since the run has been slower
        self.recent_rows: deque[StepRow] = deque(
            maxlen=max(_ROWS_MIN, min(_ROWS_MAX, _CELLS_MAX // max(len(ranks), 1)))
        )
        """The last undisturbed steps, the newest last."""

    def evaluate(self, row: "StepRow") -> StepResult:
        """Evaluate one completed step; rows must come in ascending order."""
        step_seconds = median_of(_known(row.duration[:: 1 + len(row.duration) // _SAMPLE_RANKS]))
        present = int(np.count_nonzero(row.present))
        self._watch_size(present)
        disturbed = self._is_disturbed(row)
        held: Anomaly | None = None
        if not disturbed:
            held = held_step(row, step_seconds, self._fluctuation.recent_seconds or step_seconds, self._policy)
            self.recent_rows.append(row)
            compute_R, parts = row.components["compute"], partial(single_parts, row)
            work_R = self._work_figure.of_step(row)
            self._slow_rank.step(row.self_seconds, row.step, compute_R=compute_R, work_R=work_R, parts=parts)
            self._fluctuation.step(self._sample(work_R, step_seconds), row.step)
            self._links.step(row, row.step, is_new_work=self._fluctuation.has_new_work)
            self._unsynchronised_gc.step(row.components["gc"], step_seconds, row.step, full_R=row.full_collections)
            self._learn(row, step_seconds)
            self._anomalies = self._find(row, step_seconds)
        return StepResult(
            step=row.step,
            unix_s=row.end_unix_s,
            step_seconds=step_seconds,
            is_disturbed=disturbed,
            is_warm=self._slow_rank.is_warm,
            anomalies=self._anomalies,
            fluctuating=self._fluctuation.fluctuating,
            recent_step_seconds=self._fluctuation.recent_seconds,
            baseline_step_seconds=self._fluctuation.baseline_seconds,
            mean_over_best_ratio=self._fluctuation.mean_over_best_ratio,
            ranks_reporting=present,
            ranks_blind=_blind(row),
            ranks_of_node=self._ranks_of_node,
            imbalance_ratios=dict(self._imbalance.ratios),
            held=held,
            mirrored_alarms={} if disturbed else self._mirrored_alarms(),
        )

    def _mirrored_alarms(self) -> dict[str, int]:
        """Return how many units alarmed in this step for being too fast."""
        counts = (*self._slow_rank.mirrored_alarms, self._links.mirrored_alarms)
        return {unit: count for unit, count in zip(MIRRORED_UNITS, counts, strict=True) if count}

    def _watch_size(self, present: int) -> None:
        """Treat a job that lost or gained many ranks at once as restarted; elastic jobs do this."""
        before = present if self._present is None else self._present
        if abs(present - before) > _RESIZED_RATIO * len(self.ranks):
            self._fluctuation.begin_attempt()
        self._present = present

    def _learn(self, row: "StepRow", step_seconds: float) -> None:
        """Learn what usual steps consist of; unflagged pauses and short evaluations are left out."""
        policy, recent = self._policy, self._fluctuation.recent_seconds or step_seconds
        self._rank_anomalies.set_pace(self._fluctuation.pace)
        if self._slow_rank.is_paused or self._fluctuation.is_of_other_pace:
            return
        if step_seconds > (1 + policy.rank.pause_ratio) * recent:
            return
        self._imbalance.step(self._slow_rank, step_seconds)
        if (
            self._slow_rank.ranks.evaluated_steps % policy.cause.typical_every == 1
            and not self._fluctuation.fluctuating
        ):
            self._rank_anomalies.learn(row, policy.cause)

    def _sample(self, work_R: "NDArray[np.floating]", step_seconds: float) -> RunSample:  # noqa: N803
        """Return what the run's own history is compared with: the step time, and the part that only work explains."""
        test = self._slow_rank
        tokens = 0.0 if test.shift_R is None else float(np.maximum.reduce(test.shift_R))
        return RunSample(
            step_seconds=step_seconds,
            imbalance_seconds=test.imbalance_seconds + max(tokens, 0.0),
            work=mean_of(work_R[:: 1 + len(work_R) // _SAMPLE_RANKS]),
            is_held_back=any(each.acts and each.kind in (SLOW_RANK, SLOW_LINK) for each in self._anomalies),
            is_explained=any(each.kind in (SLOW_RANK, SLOW_LINK, UNSYNCHRONISED_GC) for each in self._anomalies),
        )

    def set_policy(self, policy: "Policy") -> None:
        """Apply other thresholds from the next step on; the learnt state is kept."""
        self._policy = policy
        self._slow_rank.set_policy(policy.excess, policy.rank, policy.work)
        self._intermittent.test.policy = policy.excess
        self._links.set_policy(policy.link, policy.excess)
        self._fluctuation.policy, self._unsynchronised_gc.policy = policy.fluctuation, policy.gc

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name, which a restart of the coordinator must not lose."""
        own: dict[str, NDArray[np.generic]] = {"flag_share": self._shares()}
        own["after_capture"] = np.array([self._after_capture])
        return own | nested({name: part.state_dict() for name, part in self._parts().items()})

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays of another shape are ignored."""
        for name, part in self._parts().items():
            part.load_state_dict(part_of(state, name))
        share_R = state.get("flag_share")
        if share_R is not None and share_R.shape == self.ranks.shape:
            self._flag_share_R = share_R.astype(np.float32) if share_R.any() else None
            self._after_capture = bool(state.get("after_capture", np.zeros(1)).any())

    def _parts(self) -> "dict[str, _Restorable]":
        return {
            "slow_rank": self._slow_rank,
            "rank_anomalies": self._rank_anomalies,
            "intermittent": self._intermittent,
            "links": self._links,
            "fluctuation": self._fluctuation,
            "unsynchronised_gc": self._unsynchronised_gc,
            "imbalance": self._imbalance,
            "work_figure": self._work_figure,
        }

    def _is_disturbed(self, row: "StepRow") -> bool:
        """Whether a flag of any rank excuses this step; a rank that flags most of its steps excuses none."""
        policy = self._policy.timeline
        if self._flag_share_R is None and not np.bitwise_or.reduce(row.flags):
            disturbed, self._after_capture = self._after_capture, False
            return disturbed
        share_R = self._shares()
        flagged_R = row.flags != 0
        trusted_R = share_R <= policy.flag_share_max
        warm_up_R = (row.flags & Flag.WARM_UP) != 0  # every attempt begins with a run of warm-up flags
        if warm_up_R.any():
            self._fluctuation.begin_attempt()
        learn_R = flagged_R & ~warm_up_R
        share_R += np.float32(policy.flag_share_rate) * (learn_R - share_R)
        share_R[share_R < _SHARE_FORGOTTEN] = 0
        self._flag_share_R = share_R if share_R.any() else None
        excused_R = flagged_R & trusted_R
        capture = bool((excused_R & ((row.flags & Flag.PROFILED) != 0)).any())
        disturbed = bool(excused_R.any()) or self._after_capture
        self._after_capture = capture
        return disturbed

    def _shares(self) -> "NDArray[np.float32]":
        """Return the share of recent steps that each rank flagged, array of shape (R,)."""
        return np.zeros(len(self.ranks), dtype=np.float32) if self._flag_share_R is None else self._flag_share_R

    def _find(self, row: "StepRow", step_seconds: float) -> tuple[Anomaly, ...]:
        policy = self._policy.cause
        found = self._rank_anomalies.find(self.recent_rows, policy)
        found += self._intermittent.find(self._slow_rank.far, row, found, policy)
        if self._unsynchronised_gc.found is not None:
            collecting = [int(self.ranks[column]) for column in self._unsynchronised_gc.found.ranks]
            found = [*without_unsynchronised_gc(found), unsynchronised_gc(self._unsynchronised_gc.found, collecting)]
        found += [slow_link(slow) for slow in self._links.found(step_seconds)]
        if self._fluctuation.fluctuating:
            rows = self._slower_rows()[-policy.steps :]
            before, now = self._rank_anomalies.before_and_now(rows)
            longest = self._rank_anomalies.longest_growth(rows)
            slower = slower_run(self._fluctuation, before, now, found, policy, longest_growth=longest)
            found.append(replace(slower, is_sure=slower.is_sure and not self._has_suspect(slower)))
        else:
            self._suspect_steps = 0
        return tuple(found)

    def _slower_rows(self) -> "list[StepRow]":
        """Return the recent rows that show why the run is slower: of one with single long steps, only these."""
        rows, test = list(self.recent_rows), self._fluctuation
        long = test.long_steps.onsets if test.is_intermittent else set()
        return [row for row in rows if row.step in long] or rows

    def _has_suspect(self, slower: Anomaly) -> bool:
        """Whether a rank or link about to alarm explains a slower run, which holds its report for a few steps."""
        suspected = max(self._slow_rank.suspected_seconds(), self._links.suspected_seconds())
        self._suspect_steps += 1
        return self._suspect_steps <= _SUSPECT_STEPS and suspected > _SUSPECT_SHARE * slower.excess_seconds


def _known(values: "NDArray[np.floating]") -> "NDArray[np.floating]":
    return values[~np.isnan(values)] if has_nan(values) else values


def _blind(row: "StepRow") -> int:
    """Return how many ranks report records without a measure of their own work."""
    if not has_nan(row.self_seconds):
        return 0
    return int(np.count_nonzero(row.present & np.isnan(row.self_seconds)))
