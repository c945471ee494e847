"""Evaluates the steps of runs as they become complete. No I/O; `clock` measures durations."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from coordinator.decide import events as ev
from coordinator.decide.saved_run import DetectionProgress
from coordinator.detect.scope import in_scope
from coordinator.run_isolation import DETECT

if TYPE_CHECKING:
    from coordinator.intake.presence import NodePresence
    from coordinator.intake.timeline import StepRow
    from coordinator.run import Orders, Run
    from coordinator.run_isolation import RunIsolation


class StepDetection:
    """Evaluates steps and counts them.

    `seconds` is time spent in detectors, `last_unix_s` None before the first step.
    """

    def __init__(self, presence: "NodePresence", isolation: "RunIsolation", clock: Callable[[], float]) -> None:
        self._presence, self._isolation, self._clock = presence, isolation, clock
        self.records_evaluated = 0
        self.steps = 0
        self.seconds = 0.0
        self.last_unix_s: float | None = None

    def evaluate_ready(self, run: "Run", now_s: float) -> "Orders":
        """Evaluate the steps of a run whose records have arrived or have had time to."""
        orders: Orders = []
        if run.generation != run.timeline.generation:
            run.generation, run.detector = run.timeline.generation, None
            run.remembered, run.evaluated = None, DetectionProgress(records=run.evaluated.records)
            run.expectation.begin_attempt()
            run.membership.begin_attempt()
            orders += run.feed(ev.RestartedEvent(unix_s=now_s, cause_id=f"attempt:{run.generation}"))
        if _waits_for_nodes(run, now_s):
            return orders
        for row in run.timeline.ready(now_s, lambda rank: self.may_deliver(run, now_s, rank)):
            work = partial(self._evaluate, run, row, now_s)
            orders += self._isolation.run(DETECT, run.name, now_s, work, records=int(row.present.sum()))
        return orders

    def may_deliver(self, run: "Run", now_s: float, rank: int) -> bool:
        """Whether the node of a rank may be about to deliver spooled records."""
        policy, node = run.policy.timeline, run.membership.nodes.get(rank, "")
        return self._presence.may_deliver(
            node, now_s, grace_seconds=policy.grace_seconds, rejoin_seconds=policy.rejoin_seconds
        )

    def _evaluate(self, run: "Run", row: "StepRow", now_s: float) -> "Orders":
        if run.topology is None or not run.is_new(row):
            return []
        begin = self._clock()
        if run.detector is None:
            run.begin_detector()
        assert run.detector is not None
        step_result = in_scope(run.detector.evaluate(row), run.policy, run.name)
        self.seconds += self._clock() - begin
        self.steps += 1
        self.last_unix_s = now_s
        run.histogram.observe(step_result.step_seconds)
        run.series.observe(row, step_result.step_seconds, run.peaks.mean_flops_per_second)
        before = run.evaluated.records
        run.note_result(row, step_result)
        self.records_evaluated += run.evaluated.records - before
        event = ev.StepEvaluatedEvent(unix_s=now_s, cause_id=f"step:{row.step}", step_result=step_result)
        due = run.expectation.see(row, step_result, run.topology, event.cause_id)
        orders = run.feed(event)
        due += run.repairs(event.cause_id)
        return [*orders, (run.name, due)] if due else orders


def _waits_for_nodes(run: "Run", now_s: float) -> bool:
    """Whether a run that is new to this coordinator still waits for nodes to announce it."""
    return not run.membership.is_complete and now_s - run.begun_s < run.policy.timeline.rejoin_seconds
