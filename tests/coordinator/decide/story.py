"""A machine of one run with its clock, as tests drive it: events in, instructions out."""

from coordinator.decide import events as ev
from coordinator.decide.state import RunMachine
from coordinator.decide.transitions import State
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.finding import Advice
from lockstep.contracts.messages import TraceSummary
from tests.coordinator.conftest import anomaly, evaluated

T = 1_000_000.0
POLICY = Policy()
ADVICE = (Advice(suggestion="fix it", how="so", predicted_gain_ratio=0.3, source="a table"),)


def summary(rank, request, error=""):
    return TraceSummary(
        run="job",
        node="n0",
        rank=rank,
        request_id=request,
        window_ns=1,
        steps=3,
        trace_bytes=1,
        event_count=1,
        tree=[],
        error=error,
    )


class Story:
    """A machine, its clock and what it asked for; checks the state's invariant after every event."""

    def __init__(self, policy=POLICY, memory=None):
        self.machine = RunMachine("job", policy, memory)
        self.now = T
        self.log = []
        self.feed(ev.AnnounceEvent, topology=from_degrees({"dp": 4}, 4), ranks=(0, 1, 2, 3), is_finished=False)

    def feed(self, form, **values):
        self.now += 1.0
        given = self.machine.handle(form(unix_s=self.now, cause_id=form.__name__, **values))
        assert all(instruction.cause_id == form.__name__ for instruction in given)
        busy = self.machine.captures.current is not None or self.machine.flow.diagnoses.pending
        assert self.machine.state is not State.PROFILING or busy
        self.log += [type(instruction).__name__ for instruction in given]
        return given

    def evaluate(self, step, *anomalies, **more):
        return self.feed(ev.StepEvaluatedEvent, step_result=evaluated(step, *anomalies, **more))

    def diagnosed(self, incident_id, function="train.py(10): forward"):
        return self.feed(
            ev.DiagnosedEvent,
            incident_id=incident_id,
            function=function,
            operator="aten::mm",
            evidence=("it stays there",),
            advice=ADVICE,
            confidence="high",
        )

    @property
    def state(self):
        return str(self.machine.state)

    @property
    def incident(self):
        return next(iter(self.machine.tracker.incidents.values()))


def found(policy=POLICY, **more):
    """Return a story up to its first incident, at step 62."""
    story = Story(policy)
    for step in (60, 61):
        story.evaluate(step, step_seconds=0.1)
    story.evaluate(62, anomaly(**more), step_seconds=0.1)
    return story
