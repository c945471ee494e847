"""One fault is one incident: endings of the attempt before, and ranks that their node no longer announces."""

from dataclasses import replace

from coordinator.decide import events as ev
from coordinator.decide.transitions import OVER, State
from tests.coordinator.conftest import announce
from tests.coordinator.decide.test_endings import HEALTHY, KILL, NOW, TERM, Job, announced, killed, running

RESTARTED_S = NOW + 30
NEXT_ATTEMPT = int(RESTARTED_S * 1e9)


def restarted(announcement, *ranks, state="running", ending=None):
    """Return an announcement with `ranks` in their next attempt."""
    infos = [
        replace(info, attempt=NEXT_ATTEMPT, state=state, ending=ending) if info.rank in ranks else info
        for info in announcement.ranks
    ]
    return replace(announcement, ranks=infos)


def crashed():
    """Return a job that has crashed, and how its node announced that."""
    job, end = Job(), announced([killed(TERM, 0.1)] * 3 + [killed(KILL)])
    job.take(end, NOW + 1)
    assert job.machine.state is State.CRASHED
    return job, end


def test_a_rank_that_is_slow_to_start_again_ends_nothing():
    """Its node still announces how its process of the attempt before ended: for minutes, where it pulls an image."""
    job, end = crashed()
    most = restarted(end, 0, 1, 2)
    job.take(most, RESTARTED_S)
    for second in range(1, 120):
        job.tick(RESTARTED_S + second)
    assert job.machine.state not in OVER
    job.take(restarted(most, 3), RESTARTED_S + 120)
    for step in range(3):
        job.take(HEALTHY.batch(step, step + 1, start_s=RESTARTED_S + 121), RESTARTED_S + 122 + step)
    assert [each.kind for each in job.incidents(ev.OpenIncident)] == ["crash"]
    assert [each.kind for each in job.incidents(ev.CloseIncident)] == ["crash"]


def test_a_rank_that_fails_as_soon_as_it_starts_again_ends_the_new_attempt():
    """Another crash is another incident, also before all ranks are back."""
    job, end = crashed()
    job.take(restarted(restarted(end, 0, 1), 2, state="gone", ending=killed(KILL, 31)), RESTARTED_S + 2)
    for second in range(3, 120):
        job.tick(RESTARTED_S + second)
    assert job.machine.state is State.CRASHED
    assert [each.ranks for each in job.incidents(ev.OpenIncident)] == [(3,), (2,)]


def test_the_same_rank_may_fail_again():
    """Its next process has an ending of its own."""
    job, end = crashed()
    job.take(restarted(end, 0, 1, 2), RESTARTED_S)
    again = restarted(restarted(end, 0, 1, 2), 3, state="gone", ending=killed(KILL, 40))
    job.take(again, RESTARTED_S + 11)
    for second in range(12, 60):
        job.tick(RESTARTED_S + second)
    assert [each.ranks for each in job.incidents(ev.OpenIncident)] == [(3,), (3,)]


def test_a_run_whose_rings_are_removed_while_its_last_ranks_die_is_cancelled():
    """`kill -9` of all, and a clean-up: a rank that was still exiting then is announced no more, nor is its end."""
    job = Job()
    end = announced([killed(KILL), killed(KILL), None, None])
    seen = replace(end, ranks=end.ranks[:2])
    job.take(running(end, 2, 3), NOW + 1)
    job.take(seen, NOW + 2)
    for second in range(2, 120):
        job.tick(NOW + second)
    assert job.machine.state is State.CANCELLED
    assert job.incidents(ev.OpenIncident) == []


def test_a_rank_that_is_announced_and_runs_is_waited_for_in_vain():
    """The others are killed, and it hangs: that is no clean-up."""
    job = Job()
    end = announced([killed(KILL), killed(KILL), None, None])
    job.take(running(replace(end, ranks=end.ranks[:3]), 2), NOW + 2)
    for second in range(3, 120):
        job.tick(NOW + second)
    assert job.machine.state is State.CRASHED


def test_a_node_that_comes_back_late_with_old_endings_ends_nothing():
    """Announcements are retained: they state the same again at each connection."""
    job, end = crashed()
    job.take(restarted(end, 0, 1, 2), RESTARTED_S)
    job.take(restarted(end, 0, 1, 2, 3), RESTARTED_S + 5)
    job.take(announce(0, 1, 2, 3, attempt=NEXT_ATTEMPT, heartbeat_s=RESTARTED_S + 6), RESTARTED_S + 6)
    for second in range(6, 60):
        job.tick(RESTARTED_S + second)
    assert len(job.incidents(ev.OpenIncident)) == 1
