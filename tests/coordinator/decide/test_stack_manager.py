"""The stacks of a hang in the run's machine: asked once, taken as they come, kept over what the issues go on to show."""

from dataclasses import replace
from itertools import pairwise

from coordinator.decide import events as ev
from coordinator.decide.incidents import from_json, to_json
from coordinator.decide.stack_manager import STACK_RANKS_MAX, STACK_SECONDS, StackManager, sample
from coordinator.settings.policy import Policy
from exporter.capturing.stack_text import Thread, thread_stacks
from lockstep.contracts.codec import encode
from lockstep.contracts.limits import STACKS_MAX_BYTES
from lockstep.contracts.messages import RankStacks, ThreadStack
from tests.coordinator.decide.test_stall import LINK, stepping

WAITS = ("/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2501, "all_reduce")
LOADS = ("/srv/train.py", 88, "load")


def stacks(order, rank, frame=WAITS, reason=""):
    threads = [] if reason else [ThreadStack(is_training=True, frames=[frame])]
    return RankStacks(
        run="job", node="n0", rank=rank, request_id=order.request_id, unix_ns=1, threads=threads, reason=reason
    )


def hung(policy=Policy()):  # noqa: B008  (frozen)
    """Return a story whose hang has just opened, and the request for stacks that came with it."""
    story = stepping(policy)
    given = story.wait(6)
    assert isinstance(given[0], ev.OpenIncident)
    return story, story.asked


def take(story, message):
    return story.feed(ev.StacksEvent, stacks=message)


def test_stacks_are_asked_for_when_a_hang_opens():
    """Of all ranks, once; when the last one has come the incident states where its late rank stands."""
    story, (order,) = hung()
    assert order.ranks == (0, 1, 2, 3)
    for rank in (0, 1, 3):
        assert take(story, stacks(order, rank)) == []
    (told,) = take(story, stacks(order, 2, LOADS))
    assert isinstance(told, ev.UpdateIncident)
    assert (told.incident.function, told.incident.cause) == ("train.py(88): load", "compute")
    assert told.incident.profile_evidence == ("rank 2 stands in train.py(88): load, the 3 others wait in all_reduce",)
    story.wait(60)
    assert story.asked == [order]
    assert (story.incident.function, story.incident.cause) == ("train.py(88): load", "compute")
    assert from_json(to_json(story.incident), where="test") == story.incident


def test_what_came_is_read_when_the_time_is_over_and_amended_later():
    """One node is slow: after a few seconds its ranks are done without, and still change the incident."""
    story, (order,) = hung()
    take(story, stacks(order, 2, LOADS))
    story.wait(STACK_SECONDS + 1)
    assert story.incident.profile_evidence == ("rank 2 stands in train.py(88): load",)
    take(story, stacks(order, 0))
    assert story.incident.profile_evidence == ("rank 2 stands in train.py(88): load, rank 0 waits in all_reduce",)


def test_a_request_that_brought_no_stack_is_repeated_twice():
    """The broker lost it, or no process could be reached: three requests, each with an id of its own."""
    story, (order,) = hung()
    take(story, stacks(order, 2, reason="the process is stopped by a signal"))
    story.wait(120)
    assert len({each.request_id for each in story.asked}) == len(story.asked) == 3
    assert story.incident.profile_evidence == ("rank 2 has no stack: the process is stopped by a signal",)
    assert story.incident.cause == "unknown"


def test_stacks_that_nobody_asked_for_change_nothing():
    """Of another request, of a rank that was not asked, of a run that does not hang."""
    story, (order,) = hung()
    take(story, replace(stacks(order, 2, LOADS), request_id=order.request_id + 1))
    take(story, stacks(order, 7, LOADS))
    story.wait(STACK_SECONDS + 1)
    assert story.incident.stacks == ()
    going = stepping()
    assert take(going, stacks(order, 2, LOADS)) == []


def test_another_verdict_reads_the_same_stacks_again():
    """The issues name the link later: its cause is that, and no rank stands anywhere."""
    story, (order,) = hung()
    for rank, frame in enumerate((WAITS, WAITS, LOADS, WAITS)):
        take(story, stacks(order, rank, frame))
    story.hang = LINK
    story.wait(2)
    assert (story.incident.cause, story.incident.function) == ("link", "")


def test_the_policy_switches_it_off():
    """No request is made."""
    policy = Policy()
    assert hung(replace(policy, run=replace(policy.run, hang_stacks=False)))[1] == []


def test_of_many_ranks_the_late_ones_and_others_evenly_are_asked():
    """10,240 ranks: 1,024 of them, all that are late among them."""
    ranks = range(10_240)
    chosen = sample((17, 9_999), ranks)
    assert len(chosen) == len(set(chosen)) == STACK_RANKS_MAX
    assert {17, 9_999} <= set(chosen)
    assert max(high - low for low, high in pairwise(chosen)) <= 12
    assert len(sample(tuple(range(5_000)), ranks)) == STACK_RANKS_MAX
    assert sample((1,), (3, 1, 2)) == (1, 2, 3)


def test_ten_thousand_ranks_are_a_thousand_messages_and_a_few_lines():
    """One leaf holds thousands: they are sampled, and the incident states of how many; the late rank is among them."""
    desk, world_size, late = StackManager(), 10_240, 9_999
    story = stepping()
    story.wait(6)
    incident = replace(story.incident, ranks=(late,))
    assert desk.ask(incident, range(world_size), 0.0)
    assert len(desk.ranks) == STACK_RANKS_MAX
    assert late in desk.ranks
    frames = [("/srv/" + "x" * 150, number, "f" * 90) for number in range(99)]
    threads = [Thread(1, tuple(frames))] * 3
    for rank in desk.ranks:
        sent, omitted = thread_stacks(threads, 1)
        sent[0].frames.append(LOADS if rank == late else WAITS)
        message = replace(stacks(desk, rank), threads=sent, omitted_frames=omitted)
        desk.take(message)
    assert len(encode(message)) <= STACKS_MAX_BYTES + 200  # the frame that was added here
    assert desk.ranks[-1] < world_size
    amended = desk.amended(incident, "unknown", 1.0)
    assert amended.profile_evidence[-1] == "stacks are of 1,024 of 10,240 ranks"
    assert len(amended.stacks) <= 3
    assert amended.stacks[1].startswith(f"  rank {late}: ")
