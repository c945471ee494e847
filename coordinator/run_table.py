"""The table of runs by name: which begin, how many there may be, and the state of those that ended. No I/O.

A run is followed from its first announcement until long after it has ended or made its last step. The state of past
runs is bounded (`past_runs.py`).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.saved_run import DetectionProgress, SavedRun
from coordinator.decide.state import RunMachine
from coordinator.decide.transitions import OVER
from coordinator.expected.expectation import Expectation
from coordinator.expected.healthy import KeptWindow
from coordinator.intake.refusals import NODE, RUN, RUN_OF_NODE, Refusals
from coordinator.intake.timeline import StepTimeline
from coordinator.intake.topology import Membership
from coordinator.past_runs import PAST_RUN_KEPT_S, PAST_RUNS_MAX, PastRuns
from coordinator.record.attempt_history import AttemptHistory
from coordinator.record.step_series import StepSeries
from coordinator.run import Run
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import ANNOUNCE_REFRESH_SECONDS, ANNOUNCED_RANKS_MAX, NODES_MAX, RUNS_OF_NODE_MAX
from lockstep.serving.log_limit import LogLimit

if TYPE_CHECKING:
    from collections import Counter

    from coordinator.settings.config import CoordinatorConfig
    from coordinator.settings.policy import Policy
    from coordinator.settings.specs import SpecText
    from lockstep.contracts.messages import NodeAnnouncement

_log = logging.getLogger(__name__)


class RunTable:
    """The runs.

    `memories` is the state that an earlier coordinator stored, by run; `rejected` counts records by reason.

    `config`, which applies to runs that begin from now on, and `policy_of`, the policy by run, may be replaced at any
    time.
    """

    def __init__(
        self,
        config: "CoordinatorConfig",
        policy: "Policy",
        memories: Mapping[str, SavedRun],
        rejected: "Counter[str]",
    ) -> None:
        self.config = config
        self.policy_of: Callable[[str], Policy] = lambda _: policy
        self.by_name: dict[str, Run] = {}
        self.refusals = Refusals()
        self._spec_of: Callable[[str], SpecText | None] = lambda _: None
        self._windows: dict[str, KeptWindow] = {}
        self._past = PastRuns(memories)
        self._attempts = AttemptHistory()
        for name, memory in memories.items():
            self._attempts.adopt(name, memory.attempts)
        self._rejected = rejected
        self._log = LogLimit(_log)

    def expect(
        self, spec_of: "Callable[[str], SpecText | None]", windows: Mapping[str, KeptWindow] | None = None
    ) -> None:
        """Set the specifications of runs, including those under way; `windows` are their stored healthy windows."""
        self._spec_of = spec_of
        self._windows |= windows or {}
        for run in self.by_name.values():
            run.expectation.adopt(spec_of(run.name))

    def forget_ended(self, run: Run | None, announcement: "NodeAnnouncement", now_s: float) -> list[str]:
        """If a node begins more runs than allowed, drop ended runs of that node alone, the oldest first.

        Return their names.

        A node that trains for minutes at a time would otherwise reach its limit, because ended runs stay visible for a
        while.
        """
        node = announcement.node
        begins = self._is_wanted(announcement, now_s) if run is None else run.membership.ranks_of(node) is None
        if not begins or not announcement.ranks:
            return []
        own = [each for each in self.by_name.values() if each.membership.ranks_of(node) is not None]
        ended = [
            each.name
            for each in own
            if each.machine.state in OVER and not each.machine.tracker.incidents and each.membership.node_count == 1
        ]
        dropped = ended[: max(0, len(own) + 1 - RUNS_OF_NODE_MAX)]
        for name in dropped:
            self.forget(name)
        return dropped

    def has_capacity(self, run: Run | None, announcement: "NodeAnnouncement") -> bool:
        """Return whether the node may announce this run with so many ranks; if not, count the refusal."""
        node, count = announcement.node, len(announcement.ranks)
        former = None if run is None else run.membership.ranks_of(node)
        if count <= len(former or ()):
            return former is not None  # an unknown node that announces no ranks is rejected
        memberships = [run.membership for run in self.by_name.values()]
        what = f"run {announcement.run} by node {node}"
        if former is None and sum(m.ranks_of(node) is not None for m in memberships) >= RUNS_OF_NODE_MAX:
            self.refusals.add(RUN_OF_NODE, f"{what}, at most {RUNS_OF_NODE_MAX} runs of a node")
            return False
        if former is None and sum(m.node_count for m in memberships) >= NODES_MAX:
            self.refusals.add(NODE, f"{what}, at most {NODES_MAX} nodes of all runs")
            return False
        if sum(m.announced_ranks for m in memberships) + count - len(former or ()) > ANNOUNCED_RANKS_MAX:
            self.refusals.add(NODE, f"{what}, at most {ANNOUNCED_RANKS_MAX} ranks of all nodes")
            return False
        return True

    def new_run(self, announcement: "NodeAnnouncement", now_s: float) -> Run | None:
        """Return a new run for its first announcement; None if the run has ended or the limit of runs is reached.

        The run is not in the table yet. A retained announcement carries heartbeats from the time it was published, so
        it may be older by `ANNOUNCE_REFRESH_SECONDS`.
        """
        name, policy = announcement.run, self.policy_of(announcement.run)
        if not self._is_wanted(announcement, now_s):
            return None
        if len(self.by_name) >= self.config.runs_max and not self._evict():
            self.refusals.add(RUN, f"run {name} by node {announcement.node}, at most {self.config.runs_max} runs")
            return None
        memory = self._past.memory(name)
        return Run(
            name=name,
            membership=Membership(name, degrees=self.config.domains, order=self.config.order, refusals=self.refusals),
            policy=policy,
            timeline=StepTimeline(policy.timeline, self._rejected),
            begun_s=now_s,
            machine=RunMachine(name, policy, memory),
            remembered=memory.learnt if memory else None,
            evaluated=memory.evaluated if memory else DetectionProgress(),
            series=_series_of(name, memory),
            history=self._attempts,
            expectation=Expectation(self._spec_of(name), self._windows.get(name)),
        )

    def _is_wanted(self, announcement: "NodeAnnouncement", now_s: float) -> bool:
        """Whether an announcement should begin a run: its ranks were seen recently, and the run has not ended."""
        youngest_s = max((info.heartbeat_unix_ns for info in announcement.ranks), default=0) / 1e9
        kept_s = self.policy_of(announcement.run).run.lost_keep_seconds + ANNOUNCE_REFRESH_SECONDS
        return now_s - youngest_s <= kept_s and self._past.is_news(announcement)

    def _evict(self) -> bool:
        """Drop the oldest run that has neither made a step nor has an open incident; return whether there was one.

        It never was more than an announcement, and returns with the next one if there is room.
        """
        for name, run in self.by_name.items():
            if run.machine.step_result is None and not run.machine.tracker.incidents:
                run.timeline.drop_pending()
                self._past.add(name, run.memory(with_learnt=False))
                del self.by_name[name]
                return True
        return False

    def forget(self, name: str) -> None:
        """Drop a run that ended long ago but keep its budgets; its incidents stay in the store."""
        run = self.by_name.pop(name, None)
        if run is not None:
            run.timeline.drop_pending()
            run.note_attempts()
            memory = replace(run.memory(with_learnt=False), learnt=None, series=None)
            attempts = [info.attempt for info in run.membership.infos.values()]
            self._past.add(name, memory, attempt=max(attempts, default=0))
        self._windows.pop(name, None)

    def trim_past(self, now_s: float) -> list[tuple[str, list[ev.Instruction]]]:
        """Drop past runs that are too old or too many; return the orders to delete their stored state."""
        dropped = self._past.trim(now_s, self.by_name)
        for name in dropped:
            self._windows.pop(name, None)
            self._attempts.drop(name)
        if dropped:
            kept = f"at most {PAST_RUNS_MAX} are kept, for {PAST_RUN_KEPT_S / 86_400:g} days"
            self._log.warning("past runs", now_s, f"dropped the state of {len(dropped)} past runs; {kept}")
        return [(name, [ev.DropSavedRun(cause_id="tick")]) for name in dropped]


def _series_of(name: str, memory: SavedRun | None) -> StepSeries:
    """Return the stored series of a run; an empty one if it is damaged."""
    if memory is None or memory.series is None:
        return StepSeries()
    try:
        return StepSeries.from_bytes(memory.series, where=f"run {name}")
    except MalformedError as error:
        _log.warning("%s; discarded, the run's step time series starts over", error)
        return StepSeries()
