"""The agent behind the C++ kernels, in this process and in ranks of its own: attempts, groups, forks, broken peers."""

import os
import signal
import subprocess
import sys
from threading import Thread

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

from lockstep.agent.agent import Agent
from lockstep.agent.hooks import collectives
from lockstep.contracts.marks import KIND_MASK, MARK_STRUCT, MarkKind, unpack_issue
from tests.agent.hooks import native_builds
from tests.agent.safety.processes import TIMEOUT_S, environment, watched_environment

pytestmark = pytest.mark.torch


@pytest.fixture
def kernels(monkeypatch, rank_environment):
    """Have the agent that is installed next load the C++ kernels."""
    for name, value in native_builds.kernels_environment("C++").items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def recording(kernels, watched):
    """Hand out an agent that records in a process group of one rank."""
    assert watched.agent.attempt_facts.kernels == ("C++", "")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield watched
    if dist.is_initialized():
        dist.destroy_process_group()


def issues(watched):
    """Return the issues in the ring, unpacked."""
    marks = [mark for block in watched.ring().blocks for mark in MARK_STRUCT.iter_unpack(block.marks)]
    return [
        unpack_issue(detail, argument) for _, kind, detail, _, argument in marks if kind & KIND_MASK == MarkKind.ISSUE
    ]


def reduce(group=None):
    dist.all_reduce(torch.ones(3), group=group)


def test_the_first_collective_begins_the_recording(recording):
    """As behind the kernels in Python, and it is in the ring itself."""
    assert not recording.directory.exists()
    reduce()
    (issue,) = issues(recording)
    assert (issue.operator, issue.synchronous, issue.group_size, issue.payload_bytes) == (0, True, 1, 12)
    assert recording.ring().issues[issue.slot][0] == 1


def test_groups_have_slots_of_their_own_and_give_them_back(recording):
    """A group that ends is forgotten in C++ as well, whatever takes its address and its slot."""
    for _ in range(200):  # more than there are slots
        group = dist.new_group([0])
        reduce(group)
        dist.destroy_process_group(group)
        del group
    slots = {issue.slot for issue in issues(recording)}
    assert len(slots) < 5
    assert recording.agent.boundary.failures == 0


def test_a_new_process_group_is_met_again(recording):
    """After destroy and init, an elastic restart inside the process, the same names are other groups."""
    reduce()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    reduce()
    assert len(issues(recording)) == 2
    assert recording.agent.boundary.failures == 0


def test_a_thread_that_does_not_train_is_not_recorded(recording):
    """One that saves a checkpoint, for instance."""
    reduce()
    thread = Thread(target=reduce)
    thread.start()
    thread.join()
    assert len(issues(recording)) == 1


def test_a_failing_answer_stops_the_agent_and_not_the_training(recording, monkeypatch, capfd):
    """The collective is carried out, the failure is reported once, and C++ asks no more."""
    calls = []

    def fail(_group):
        calls.append(1)
        raise KeyError("ours")

    monkeypatch.setattr(recording.agent.groups, "of", fail)
    value = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(value)
    assert value.tolist() == [1, 1, 1]
    assert (len(calls), recording.agent.boundary.failures, recording.agent.alive) == (1, 1, False)
    assert "KeyError" in capfd.readouterr().err
    recording.agent.boundary.failures = 0


def test_what_a_signal_handler_raises_reaches_the_training(recording, monkeypatch):
    """Python runs handlers inside our answers too: the exception is the training's."""

    class Stopped(BaseException):
        pass

    def stop(_group):
        raise Stopped

    monkeypatch.setattr(recording.agent.groups, "of", stop)
    with pytest.raises(Stopped):
        reduce()
    monkeypatch.undo()
    reduce()
    assert len(issues(recording)) == 1


def test_a_forked_child_is_inert(recording):
    """Its collectives (of a group without threads, which a fork leaves behind) do not change its parent's ring."""
    group = dist.new_group([0], backend="fake")
    reduce(group)
    recording.agent.marks.flush()
    before = (recording.directory / "0.ring").read_bytes()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(30)
            reduce(group)
            status = int(recording.agent.marks.thread != 0)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert (recording.directory / "0.ring").read_bytes() == before
    reduce(group)
    assert len(issues(recording)) == 2


def test_kernels_are_taken_off_and_put_on_again(kernels, rank_environment):
    """An agent that is removed leaves nothing in the dispatcher; the next one finds its place free."""
    for _ in range(2):
        agent = Agent([collectives.install])
        assert agent.attempt_facts.kernels == ("C++", "")
        assert torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")
        agent.remove()
        assert not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")


BROKEN = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
weight = torch.ones(2, requires_grad=True)
weight.sum().backward()
dist.all_reduce(torch.ones(3))
if rank:
    os._exit(0)
work = None
try:
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
except RuntimeError as error:
    print(type(error).__name__, flush=True)
try:
    dist.all_reduce(torch.ones(3))
except RuntimeError as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


def ranks_of(script, root, make_environment):
    """Run two ranks and return the exit status of each, and what it printed."""
    root.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, root / "store"],
            env=make_environment(root, RANK=str(rank), WORLD_SIZE="2", **native_builds.kernels_environment("C++")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [
        (rank.returncode, *ended) for ended, rank in [(rank.communicate(timeout=TIMEOUT_S), rank) for rank in ranks]
    ]


def test_a_peer_that_is_gone_fails_the_collective_as_without_the_agent(tmp_path):
    """Asynchronous and synchronous: the same exceptions, and the rank lives on."""
    bare = ranks_of(BROKEN, tmp_path / "bare", environment)
    watched = ranks_of(BROKEN, tmp_path / "watched", watched_environment)
    assert [(status, out) for status, out, _ in watched] == [(status, out) for status, out, _ in bare]
    assert bare[0][0] == 0
    assert bare[0][1].count("Error") == 2
    assert (tmp_path / "watched" / "job" / "0.ring").exists()


LATE = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
store = dist.distributed_c10d._get_default_store()
weight = torch.ones(2, requires_grad=True)
weight.sum().backward()
dist.all_reduce(torch.ones(3))
if rank:
    store.wait(["issued"])
    dist.all_reduce(torch.ones(1 << 20))
    dist.all_reduce(torch.ones(3))
else:
    works = [dist.all_reduce(torch.ones(1 << 20), async_op=True), dist.all_reduce(torch.ones(3), async_op=True)]
    store.set("issued", "1")
    del works
"""


def test_a_process_ends_well_with_collectives_in_flight(tmp_path):
    """They end while the interpreter goes: no callback needs it."""
    for attempt in range(3):
        ended = ranks_of(LATE, tmp_path / f"watched{attempt}", watched_environment)
        assert [(status, errors) for status, _, errors in ended] == [(0, ""), (0, "")]
