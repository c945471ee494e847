"""Runs that make no steps, as event lists: what is reported of them, when, and what is not."""

from dataclasses import replace

import pytest

from coordinator.decide import events as ev
from coordinator.decide.incident_tracker import SavedRun
from coordinator.decide.losses import Losses
from coordinator.decide.state import RunMachine
from coordinator.detect.hangs.hang import Hang
from coordinator.settings.policy import Policy
from lockstep.contracts.domains import from_degrees
from tests.coordinator.conftest import anomaly, evaluated

T = 1_000_000.0
POLICY = Policy()
RUN = POLICY.run
LATE = Hang(cause="unknown", scope="rank", ranks=(2,), domain=("dp", "dp0"), evidence=("rank 2 is late",))
NOBODY = Hang(cause="unknown", scope="job", ranks=(), domain=None, evidence=("all stand still",))
LINK = Hang(cause="link", scope="group", ranks=(0, 1), domain=("dp", "dp0"), evidence=("the link",))
SHAPE = {"topology": from_degrees({"dp": 4}, 4), "ranks": (0, 1, 2, 3)}


class Story:
    """A machine that is asked at each tick, as runs do, and given `hang` when it wants to know."""

    def __init__(self, policy=POLICY, memory=None):
        self.machine = RunMachine("job", policy, memory)
        self.now = T
        self.hang = LATE
        self.told = []
        self.asked = []  # requests for stacks
        self.feed(ev.AnnounceEvent, **SHAPE, is_finished=False)

    def feed(self, form, **values):
        given = self.machine.handle(form(unix_s=self.now, cause_id=form.__name__, **values))
        self.asked += [each for each in given if isinstance(each, ev.RequestStacks)]
        given = [each for each in given if not isinstance(each, ev.RequestStacks)]
        self.told += [(type(i).__name__, self.now - T) for i in given]
        return given

    def evaluate(self, step, *anomalies, after=1.0, **more):
        self.now += after
        return self.feed(
            ev.StepEvaluatedEvent, step_result=evaluated(step, *anomalies, **({"step_seconds": 1.0} | more))
        )

    def wait(self, seconds):
        """Let whole seconds pass."""
        given = []
        for _ in range(round(seconds)):
            self.now += 1.0
            if self.machine.is_blocked(self.now):
                given += self.feed(ev.StallEvent, hang=self.hang)
            given += self.feed(ev.TickEvent)
        return given

    @property
    def state(self):
        return str(self.machine.state)

    @property
    def incident(self):
        return self.machine.stall.incident


def stepping(policy=POLICY, steps=10, **more):
    """Return a warm run of steps of 1 s; the last one ends at T + steps."""
    story = Story(policy)
    for step in range(60, 60 + steps):
        story.evaluate(step, **more)
    return story


def test_from_silence_to_the_late_rank_and_back():
    """Five usual steps of silence open one incident, which grows, is lost but not closed, and ends with the steps."""
    story = stepping()
    assert story.wait(5) == []
    (opened,) = story.wait(1)
    assert story.state == "hung"
    incident = opened.incident
    assert (incident.kind, incident.cause, incident.scope, incident.ranks) == ("hang", "unknown", "rank", (2,))
    assert (incident.domain, incident.onset_step, incident.detected_step) == (("dp", "dp0"), 70, 70)
    assert incident.lost_device_seconds == 4 * 6
    assert incident.slowdown_ratio == 6.0
    assert incident.evidence == ("rank 2 is late", "no step since 13:46:50 UTC; a step usually takes 1 s")
    assert incident.numbers["silence_seconds"] == 6.0
    story.wait(60)
    assert story.state == "lost"
    closed = story.evaluate(70)
    assert [type(i).__name__ for i in closed] == ["CloseIncident"]
    assert (closed[0].incident.closed_step, closed[0].incident.state) == (70, "closed")
    assert closed[0].incident.lost_device_seconds == 4 * 66
    assert story.state == "healthy"
    updates = [("UpdateIncident", 16.0 + 10 * n) for n in range(1, 7)]
    assert story.told == [("OpenIncident", 16.0), *updates, ("CloseIncident", 77.0)]
    assert story.machine.tracker.lost_device_seconds == 4 * 66


@pytest.mark.parametrize(("step_seconds", "after"), [(0.1, 5.0), (2.0, 10.0)])
def test_the_wait_is_five_steps_and_some_seconds_at_least(step_seconds, after):
    """Short steps are given the seconds that records need to travel."""
    story = stepping(step_seconds=step_seconds)
    assert story.wait(after) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]


def test_pauses_seen_before_are_no_hang():
    """After a checkpoint of 20 s, flagged or not, silence counts from one and a half times that."""
    story = stepping()
    story.evaluate(70, after=20.0, step_seconds=20.0, disturbed=True)
    story.evaluate(71)
    assert story.wait(30) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]


def test_a_hang_is_no_pause_to_get_used_to():
    """After ten minutes of hanging, the next hang is reported when a run may be lost, not after fifteen minutes."""
    story = stepping()
    story.wait(600)
    story.evaluate(70, step_seconds=600.0)
    story.evaluate(71)
    assert story.told[-1][0] == "CloseIncident"
    assert story.wait(RUN.hang_pause_factor * RUN.lost_seconds) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]


def test_ranks_that_say_they_save_have_more_time():
    """Who is late because it writes a checkpoint is reported only when a run would be lost."""
    story = stepping()
    story.hang = replace(LATE, is_pause=True)
    assert story.wait(RUN.lost_seconds) == []
    opened = story.wait(1)
    assert [type(i).__name__ for i in opened] == ["OpenIncident"]


def test_a_verdict_that_names_nobody_waits_for_a_better_one():
    """Without any news the run is lost and no more; when all are busy with something of their own, a minute is given."""
    story = stepping()
    story.hang = None
    assert story.wait(70) == []
    assert story.state == "lost"
    story.hang = LATE
    assert story.wait(1)[0].incident.ranks == (2,)
    story = stepping()
    story.hang = NOBODY
    assert story.wait(RUN.lost_seconds) == []
    assert story.wait(1)[0].incident.scope == "job"
    story.hang = LINK
    (updated,) = story.wait(1)
    assert (updated.incident.cause, updated.incident.evidence[0]) == ("link", "the link")
    story.hang = NOBODY  # the nodes show nothing any more: what was known is not forgotten
    assert story.wait(5) == []
    assert story.incident.ranks == (0, 1)


def test_a_run_that_has_not_stepped_yet_has_a_minute_and_needs_a_name():
    """Loading and compiling are silent: without a step only ranks that wait for others show a hang."""
    story = Story()
    story.hang = NOBODY
    assert story.wait(600) == []
    story = Story()
    assert story.wait(RUN.lost_seconds) == []
    (opened,) = story.wait(1)
    assert (opened.incident.onset_step, opened.incident.evidence[-1]) == (None, "no step since 13:46:40 UTC")


@pytest.mark.parametrize(("steps", "lost_records", "is_told"), [(3000, 0, True), (3000, 1, False), (100, 0, False)])
def test_a_record_that_lacks_names_nobody_where_records_are_lost(steps, lost_records, is_told):
    """By steps alone a late rank looks like a lost record: it is believed in runs that have long lost none."""
    story = stepping(steps=steps)
    for step in range(3060, 3060 + lost_records):
        story.evaluate(step, reporting=3)
    story.evaluate(3070)
    story.hang = replace(LATE, is_measured=False)
    assert story.wait(10) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"] * is_told


def test_a_run_that_restarts_often_needs_more_evidence_each_time():
    """A last record may be lost in each attempt: 3,000 steps without a loss are enough in one, not in ten of 300."""
    story = Story()
    for _ in range(10):
        for step in range(300):
            story.evaluate(step)
        story.feed(ev.RestartedEvent)
    for step in range(60):
        story.evaluate(step)
    story.hang = replace(LATE, is_measured=False)
    assert story.wait(12) == []


def test_records_that_still_come_in_are_no_hang():
    """While the verdict by lacking records changes, ranks are only behind; five seconds after its last change it stands."""
    story = stepping(steps=3000)
    for lacking in range(20, 0, -1):
        story.hang = replace(LATE, is_measured=False, numbers={"lacking_records": float(lacking)})
        assert story.wait(1) == []
    assert story.wait(4) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]


def test_what_a_log_says_of_its_losses_is_believed():
    """After 100 steps two lacking records are no chance in a log without any loss; onset is the first of them."""
    hang = replace(LATE, is_measured=False, behind_host_steps=2, onset_step=158)
    for lost, is_told in ((0, True), (50, False)):
        story = stepping(steps=100)
        story.feed(ev.LossesEvent, losses=Losses(lost=lost, records=400, most_ranks=1))
        story.hang = hang
        assert [type(i).__name__ for i in story.wait(11)] == ["OpenIncident"] * is_told
        assert not is_told or (story.incident.onset_step, story.incident.detected_step) == (158, 160)


def test_a_rank_that_a_log_shows_beyond_the_step_does_not_hang_there():
    """However seldom records get lost: its record of that step, or of a later one, comes after the silence."""
    (rank,) = LATE.ranks
    for begin_s, is_past in ((0.0, True), (1e12, False)):
        story = stepping(steps=3000)
        story.feed(ev.LossesEvent, losses=Losses(lost=0, records=12_000, past_s={rank: ((begin_s, 2e12),)}))
        story.hang = replace(LATE, is_measured=False)
        assert bool(story.wait(20)) is not is_past


def test_a_run_that_warms_up_has_a_minute():
    """Graphs are compiled in the first steps; the longest of them is no measure later."""
    story = Story()
    story.evaluate(0, step_seconds=50.0, warm=False)
    assert story.wait(75) == []
    story.evaluate(1, warm=False)
    story.evaluate(2)
    assert story.wait(5) == []
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]


def test_a_step_that_lacks_the_late_rank_is_no_sign_of_life():
    """The others' records of the step are evaluated without it after the grace time; the hang goes on. The next one ends it."""
    story = stepping()
    assert story.wait(4) == []
    story.evaluate(70, reporting=3)
    assert [type(i).__name__ for i in story.wait(1)] == ["OpenIncident"]
    assert story.incident.onset_step == 70
    story.evaluate(70, reporting=3, after=0.0)
    assert story.incident is None
    assert story.state == "healthy"


def test_a_rank_without_an_agent_does_not_make_a_hang():
    """Once steps lack a rank for good they are steps like others."""
    story = stepping()
    for step in range(70, 120):
        story.evaluate(step, reporting=3)
    assert story.told == []


def test_the_end_of_a_run_and_a_new_attempt_close_it():
    """Neither of them leaves a hang open, and a run that ended well never counts as hanging."""
    story = stepping()
    story.wait(6)
    story.feed(ev.RestartedEvent)
    assert (story.told[-1][0], story.incident, story.state) == ("CloseIncident", None, "warming")
    story = stepping()
    story.wait(6)
    story.feed(ev.AnnounceEvent, **SHAPE, is_finished=True)
    assert (story.told[-1][0], story.incident, story.state) == ("CloseIncident", None, "finished")
    assert story.wait(100) == []


def test_a_run_that_is_forgotten_leaves_nothing_open():
    """A lost run keeps its incident until no one expects it back."""
    story = stepping()
    story.wait(RUN.lost_keep_seconds)
    assert story.incident is not None
    assert [type(i).__name__ for i in story.wait(1)] == ["CloseIncident", "ForgetRun"]


def test_a_hang_ends_a_capture_and_keeps_the_other_incidents():
    """The steps that were to be captured do not come; the slow rank's incident stays open during the hang."""
    story = Story()
    story.evaluate(60)
    story.evaluate(62, anomaly())
    assert story.state == "profiling"
    story.wait(6)
    assert (story.state, story.machine.captures.current) == ("hung", None)
    assert sorted(i.kind for i in story.machine.tracker.incidents.values()) == ["hang", "slow_rank"]
    story.evaluate(63, anomaly())
    assert [i.kind for i in story.machine.tracker.incidents.values()] == ["slow_rank"]


def test_a_restart_of_the_coordinator_goes_on_with_the_hang():
    """The incident is kept, grows from its own beginning, is not reported again, and closes with the next step."""
    before = stepping()
    before.wait(20)
    memory = before.machine.memory()
    story = Story(memory=SavedRun(**{name: getattr(memory, name) for name in memory.__dataclass_fields__}))
    story.now = before.now
    story.wait(10)
    assert {name for name, _ in story.told} == {"UpdateIncident"}
    assert (story.state, story.incident.id) == ("hung", before.incident.id)
    assert story.incident.lost_device_seconds == 4 * 30
    story.evaluate(70)
    assert story.told[-1][0] == "CloseIncident"


def test_a_verdict_that_nobody_asked_for_is_ignored():
    """A run that steps does not hang, whatever is reported of it."""
    story = stepping()
    assert story.feed(ev.StallEvent, hang=LATE) == []
    assert story.state == "healthy"


def test_same_events_give_the_same_instructions():
    """No clock and no chance."""

    def tell():
        story = stepping()
        given = story.wait(30)
        return given, story.evaluate(70), story.machine.memory()

    assert tell() == tell()


HELD = anomaly(2, kind="hang", cause="host", onset=70, seconds=179.0, ratio=179.0)


def held(story, *, after=180.0, **more):
    """Let a step of `after` seconds end that rank 2 held, and return what is reported of it."""
    return story.evaluate(70, after=after, **({"step_seconds": after, "held": HELD} | more))


def test_a_step_of_minutes_is_one_incident_that_is_over():
    """It names who held the step and what all ranks lost, and the run goes on as healthy as before."""
    story = stepping()
    opened, closed = held(story)
    assert (type(opened), type(closed)) == (ev.OpenIncident, ev.CloseIncident)
    assert opened.incident.id == closed.incident.id
    incident = closed.incident
    assert (incident.kind, incident.ranks, incident.cause, incident.state) == ("hang", (2,), "host", "closed")
    assert incident.lost_device_seconds == 4 * 179.0
    assert story.machine.tracker.lost_device_seconds == 4 * 179.0
    assert story.state == "healthy"
    assert story.evaluate(71) == []


def test_a_step_as_long_as_one_before_is_a_pause():
    """A rank that writes its checkpoint for minutes is reported once."""
    story = stepping()
    assert len(held(story)) == 2
    assert held(story, after=200.0) == []
    assert len(held(story, after=600.0)) == 2


def test_a_hang_that_named_its_rank_is_not_reported_again():
    """The incident that was open while the step lasted closes with it; another one would be the same fault twice."""
    story = stepping()
    story.wait(30)
    (closed,) = held(story)
    assert (type(closed), closed.incident.ranks) == (ev.CloseIncident, (2,))
    assert closed.incident.cause == "unknown"


def test_a_hang_that_named_no_rank_is_named_by_the_step_that_ends_it():
    """Agents without collectives know nothing while it lasts; the record of the step shows who was waited for."""
    story = stepping()
    story.hang = NOBODY
    story.wait(90)
    assert story.incident.ranks == ()
    (closed,) = held(story)
    assert (closed.incident.scope, closed.incident.ranks, closed.incident.cause) == ("rank", (2,), "host")


@pytest.mark.parametrize("more", [{"warm": False}, {"reporting": 3}])
def test_a_step_of_minutes_before_noise_is_known_or_without_all_ranks(more):
    """A compilation in the first steps is none; a step that lacks another rank's record still names its rank."""
    story = Story()
    for step in range(60, 70):
        story.evaluate(step, warm=more.get("warm", True))
    assert len(held(story, **more)) == (0 if "warm" in more else 2)


def test_a_hang_before_the_first_step_has_none():
    """Its first collective never ends: no step is known, which is not step 0."""
    story = Story()
    story.wait(400)
    incident = story.incident
    assert (incident.kind, incident.onset_step, incident.detected_step) == ("hang", None, None)
    closed = story.evaluate(7)[-1].incident
    assert (closed.onset_step, closed.detected_step, closed.closed_step) == (None, None, 7)


def test_a_run_whose_processes_live_stays_hung():
    """Without exporters it is lost, and hangs again once they are back: the page of a hang leads to a run that hangs."""
    story = stepping()
    story.wait(6)
    for _ in range(600):
        story.now += 1.0
        story.feed(ev.TickEvent, is_alive=True)
    assert story.state == "hung"
    story.wait(1)
    assert story.state == "lost"
    story.feed(ev.TickEvent, is_alive=True)
    assert story.state == "hung"
