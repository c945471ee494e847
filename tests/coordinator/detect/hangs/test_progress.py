"""From announcements of silent nodes to the incident, through the door of all runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.detect.hangs.progress import ProgressBook, is_going_on
from coordinator.intake.timeline import StepTimeline
from coordinator.intake.topology import Membership
from coordinator.record.journal import Entry, JournalWriter, read_entry
from coordinator.runs import Runs
from coordinator.settings.config import CoordinatorConfig
from coordinator.settings.policy import Policy
from coordinator.settings.run_policy import DetectorPolicy, ScopePolicy
from lockstep.contracts.domains import from_degrees
from lockstep.contracts.messages import GroupInfo, IssueCount, RankProgress
from tests.coordinator.conftest import START_UNIX_S, announce
from tests.coordinator.scenarios import Scenario, generate

GROUPS = [GroupInfo(kind="dp", name="dp0", ranks=[[0, 4, 1]])]
HEALTHY = generate(Scenario(degrees="dp=4", steps=60))
NOW = START_UNIX_S + 10
S = 10**9


def silent(*ranks, issued=10, at=50.0, heard=None, node="n0", groups=GROUPS, state="running", alive=True):
    """Return the report of a node whose ranks have issued so many collectives in their group, the last one at `at`."""
    last_ns = int(START_UNIX_S * S) + round(at * S)
    counts = [IssueCount(group=0, operation="collective", peer=-1, issued=issued, last_unix_ns=last_ns)]
    progress = RankProgress(last_step=39, flags=0, issues=counts, is_alive=alive)
    told = announce(
        *ranks, node=node, groups=groups, state=state, heartbeat_s=START_UNIX_S + (at if heard is None else heard)
    )
    return replace(told, ranks=[replace(info, progress=progress) for info in told.ranks])


class Book:
    """A run's membership and what its ranks report, fed as `Runs` does."""

    def __init__(self, *announcements):
        self.membership, self.progress = Membership(), ProgressBook()
        for announcement in announcements:
            self.apply(announcement)

    def apply(self, announcement):
        self.membership.apply_announcement(announcement, NOW)
        self.progress.apply_announcement(announcement, self.membership)


def located(*announcements):
    book = Book(*announcements)
    timeline = StepTimeline(Policy().timeline)
    timeline.know([0, 1, 2, 3])
    return book.progress.locate(from_degrees({"dp": 4}, 4), timeline)


def test_nodes_are_put_together():
    """The late rank is on another node than those that wait for it."""
    hang = located(silent(0, 1, issued=11), silent(2, heard=55, node="n1"), silent(3, issued=11, node="n2"))
    assert (hang.ranks, hang.domain) == ((2,), ("dp", "dp0"))


def test_a_group_is_known_by_what_it_is_not_by_its_place():
    """Nodes list their groups in orders of their own, and kinds of a later version are left out."""
    other = GroupInfo(kind="zz", name="new", ranks=[[0, 4, 1]])
    unknown = silent(2, heard=55, node="n1", groups=[other])
    hang = located(silent(0, 1, 3, issued=11), unknown)
    assert hang.ranks == (2,)  # known, and it has issued nothing in the group
    assert "has issued 0 operations" in hang.evidence[1]


def test_ranks_without_an_agent_are_not_known():
    """A rank whose agent took itself out counts no more: its old counts are no evidence against it."""
    failed = silent(2, issued=3, node="n1", state="unwatched")
    hang = located(silent(0, 1, 3, issued=11), failed)
    assert "nothing is known of rank 2" in hang.evidence[1]


def test_a_killed_job_is_no_hang():
    """All processes are gone, wherever the counts stopped."""
    assert located(silent(0, 1, issued=11, alive=False), silent(2, 3, node="n1", alive=False)) is None
    assert located(silent(0, 1, 3, issued=11), silent(2, node="n1", alive=False)).ranks == (2,)


def test_a_node_whose_ranks_step_again_is_forgotten():
    """With its next announcement the verdict is another one; without news it is the very same object."""
    book = Book(silent(0, 1, 3, issued=11), silent(2, heard=55, node="n1"))
    timeline = StepTimeline(Policy().timeline)
    timeline.know([0, 1, 2, 3])
    shape = from_degrees({"dp": 4}, 4)
    first = book.progress.locate(shape, timeline)
    assert book.progress.locate(shape, timeline) is first
    book.apply(announce(2, node="n1"))
    assert book.progress.locate(shape, timeline) is not first
    book.apply(announce(0, 1, 3))
    assert book.progress.gathered(4) is None


def test_what_another_node_reports_of_a_rank_is_no_evidence():
    """A node that claims an innocent rank, and reports it behind, changes nothing."""
    honest = [silent(0, 1, issued=11), silent(2, heard=55, node="n1"), silent(3, issued=11, node="n2")]
    liar = silent(0, issued=3, heard=60, node="liar")
    assert located(*honest, liar).ranks == located(*honest).ranks == (2,)


def test_issues_in_groups_outside_of_the_world_are_left_out():
    """Their ranks are not unpacked, and the other issues keep their groups."""
    wide = GroupInfo(kind="tp", name="wide", ranks=[[0, 1 << 20, 1]])
    told = silent(0, 1, 2, 3, groups=[wide, *GROUPS])
    counts = [replace(told.ranks[0].progress.issues[0], group=group) for group in (0, 1)]
    ranks = [replace(i, world_size=1 << 20, progress=replace(i.progress, issues=counts)) for i in told.ranks]
    progress = Book(replace(told, ranks=ranks)).progress.gathered(4)
    assert [domain.name for domain in progress.domains] == ["dp0"]
    assert progress.issues[:, 1].tolist() == [0] * 4


def test_issues_in_a_group_that_is_announced_no_more_are_left_out():
    """A node's report stays until its next one; a group of another node's may be gone by then."""
    book = Book(silent(0, 1), silent(2, 3, node="n1"))
    assert len(book.progress.gathered(4).issues) == 4
    other = [GroupInfo(kind="dp", name="new", ranks=[[0, 4, 1]])]
    book.apply(silent(0, 1, groups=other))
    book.membership.apply_announcement(silent(2, 3, node="n1", groups=other), NOW)
    progress = book.progress.gathered(4)
    assert [domain.name for domain in progress.domains] == ["new"]
    assert progress.issues[:, 0].tolist() == [0, 1]


def stepping(policy):
    watch = Runs(CoordinatorConfig(), policy, {}, lambda: 0.0)
    watch.take(announce(0, 1, 2, 3), NOW)
    for step in range(40):
        watch.take(HEALTHY.batch(step, step + 1), NOW + step)
    return watch


def kinds(orders):
    return [type(instruction).__name__ for _, instructions in orders for instruction in instructions]


def test_the_incident_is_opened_by_the_tick_and_closed_by_the_next_step():
    """Announcements of progress, five seconds of silence, one incident; the steps that follow end it."""
    watch = stepping(Policy())
    watch.take(silent(0, 1, 3, issued=11), NOW + 44)
    watch.take(silent(2, heard=55, node="n1"), NOW + 44)
    assert kinds(watch.tick(NOW + 44)) == []
    orders = watch.tick(NOW + 45)
    assert kinds(orders)[0] == "OpenIncident"
    (incident,) = watch.by_name["job"].machine.tracker.incidents.values()
    assert (incident.kind, incident.ranks, incident.domain) == ("hang", (2,), ("dp", "dp0"))
    assert incident.explanation["rule"]
    assert watch.snapshot_of(watch.by_name["job"]).state == "hung"
    step = [HEALTHY.batch(40, 41, ranks=(0, 1, 3)), HEALTHY.batch(40, 41, ranks=(2,), node="n1")]
    assert "CloseIncident" in kinds(watch.take_batches(step, NOW + 60))


@pytest.mark.parametrize(
    "policy",
    [replace(Policy(), detectors=DetectorPolicy(hang=False)), replace(Policy(), scope=ScopePolicy(runs=("other",)))],
)
def test_a_detector_that_is_off_says_nothing(policy):
    """Switched off, or for a run that no one watches: the run is lost in time, without an incident."""
    watch = stepping(policy)
    watch.take(silent(0, 1, 3, issued=11), NOW + 44)
    watch.take(silent(2, heard=55, node="n1"), NOW + 44)
    assert kinds(watch.tick(NOW + 50)) == []
    watch.tick(NOW + 120)
    assert str(watch.by_name["job"].machine.state) == "lost"


def test_ranks_that_record_further_steps_do_not_hang():
    """One rank whose records do not come holds the evaluating up, not the run."""
    watch = stepping(Policy())
    watch.take(HEALTHY.batch(40, 50, ranks=(0, 1, 3)), NOW + 42)
    run = watch.by_name["job"]
    assert is_going_on(run.timeline, run.machine.step_result.step)
    assert kinds(watch.tick(NOW + 46)) == []
    liar = stepping(Policy())
    liar.take(HEALTHY.batch(40, 50, ranks=(2,)), NOW + 40)
    assert not is_going_on(liar.by_name["job"].timeline, 39)


def test_progress_is_kept_in_a_recording():
    """What a silent node reported comes back from a journal as it was."""
    told = silent(0, 1)
    row = JournalWriter().write(Entry(1, 5, told))
    assert read_entry(row, where="x").what == told


def test_progress_of_many_nodes_is_put_together_quickly():
    """1,024 nodes of 8 ranks: the arrays are joined, no rank is walked."""
    groups = [GroupInfo(kind="dp", name="dp0", ranks=[[0, 8192, 1]])]
    book = Book()
    for node in range(1024):
        ranks = range(8 * node, 8 * node + 8)
        issued = 9 if node == 77 else 10
        told = silent(*ranks, issued=issued, node=f"n{node}", groups=groups)
        book.apply(replace(told, ranks=[replace(info, world_size=8192) for info in told.ranks]))
    timeline = StepTimeline(Policy().timeline)
    timeline.know(list(range(8192)))
    assert book.progress.locate(from_degrees({"dp": 8192}, 8192), timeline).ranks == tuple(range(616, 624))
    assert np.array_equal(np.sort(book.progress.gathered(8192).rank), np.arange(8192))


@pytest.mark.parametrize(
    ("last_steps", "ranks", "steps"),
    [
        ((40, 40, 38, 40), (2,), 2),
        ((40, 40, 40, 38), (3,), 2),
        ((38, 40, 40, 40), (0,), 0),
        ((5, 38, 40, 40), (1,), 0),
        ((40, 40, 39, 37), (3,), 2),
    ],
    ids=["of two", "the other", "alone", "next to one that counts no steps", "next to one that lacks most of it too"],
)
def test_a_verdict_by_steps_counts_the_steps_that_another_rank_of_the_host_has_ended(last_steps, ranks, steps):
    """Records of one host come in one batch; a rank that has not moved for long is no other rank of it."""
    hosts = ((0,), (1,), (2, 3)) if last_steps[0] > 5 else ((0, 1), (2, 3))
    book = Book(*(announce(*own, node=f"n{host}") for host, own in enumerate(hosts)))
    timeline = SimpleNamespace(ranks=np.arange(4), last_steps=np.array(last_steps))
    hang = book.progress.locate(from_degrees({"dp": 4}, 4), timeline)
    assert (hang.ranks, hang.behind_host_steps, hang.onset_step) == (ranks, steps, last_steps[ranks[0]] + 1)
