"""Other thresholds for runs that are there and for runs that come: what a recording has to receive of it."""

from coordinator.decide import events as ev
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.settings.thresholds import apply
from tests.coordinator.conftest import announce
from tests.coordinator.test_runs import NOW, play, two_nodes
from tests.coordinator.web import FAULTY

OTHER = apply(Policy(), {"excess.floor_ratio": 2.0, "detectors.fluctuation": False})


class RecordingTap(list):
    """A tap that keeps what it receives, with when and of which run."""

    def receive(self, what, now_s, run=""):
        self.append((what, now_s, run))

    @property
    def changes(self):
        return [(run, what.policy) for what, _, run in self if isinstance(what, ev.PolicyChangedEvent)]


def runs_with(tap=None):
    return Runs(CoordinatorConfig(), Policy(), {}, lambda: 0.0, tap)


def test_a_tap_receives_a_change_for_runs_that_are_there_and_for_those_that_come():
    """Each run's thresholds are reported at its beginning, and once more when they change; not with every announcement."""
    tap = RecordingTap()
    watch = runs_with(tap)
    two_nodes(watch)
    assert tap.changes == [("job", Policy())]
    watch.set_policies(lambda name: OTHER if name != "plain" else Policy(), NOW + 1)
    for run in ("late", "plain"):
        watch.take(announce(0, 1, 2, 3, run=run), NOW + 2)
        watch.take(announce(0, 1, 2, 3, run=run), NOW + 3)
    assert tap.changes == [("job", Policy()), ("job", OTHER), ("late", OTHER), ("plain", Policy())]


def test_what_was_received_gives_the_same_instructions_again():
    """Thresholds changed in the middle of a fault, for one run before it began: the second coordinator orders the same."""
    tap = RecordingTap()
    live = runs_with(tap)
    live.set_policies(lambda _: OTHER, NOW)
    two_nodes(live)
    first = play(live, FAULTY, 0, 50)
    orders = live.set_policies(lambda _: Policy(), NOW + 50)
    first += [("job", type(i).__name__) for _, instructions in orders for i in instructions]
    first += play(live, FAULTY, 50, 60)
    assert ("job", "OpenIncident") in first

    again, second = runs_with(), []
    for what, now_s, run in tap:
        if isinstance(what, ev.Event):
            instructed = again.feed(run, what)
        else:
            messages = what if isinstance(what, tuple) else (what,)
            instructed = [order for message in messages for order in again.take(message, now_s)]
        second += [(name, type(i).__name__) for name, instructions in instructed for i in instructions]
    assert second == first
    assert again.by_name["job"].machine.tracker.incidents == live.by_name["job"].machine.tracker.incidents
