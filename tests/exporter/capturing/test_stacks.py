"""Requests for stacks at a node: decided once, by term and pace, and answered for every rank that they name."""

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from exporter.capturing.captures import Captures
from exporter.capturing.stacks import MIN_INTERVAL_NS, StackRequests
from exporter.counts import ExporterCounters
from exporter.reading.rings import Rings
from lockstep.contracts.facts import RankFacts
from lockstep.contracts.messages import StackRequest
from lockstep.contracts.stacks import stacks_path
from lockstep.serving.fault_isolation import FaultIsolation
from tests.exporter.capturing.test_flight_dumps import Monitor, entry
from tests.exporter.capturing.test_stack_dumps import job
from tests.exporter.conftest import until

UNIX_S = 1_800_000_000.0
TERM = 1_800_000_000


class Node:
    """A node whose rings are read once; `sent` has its messages."""

    def __init__(self, root):
        self.counts = ExporterCounters()
        self.rings = Rings(root, self.counts, {})
        self.captures = Captures()
        self.sent = []
        self.requests = StackRequests(
            "node-1",
            counts=self.counts,
            isolation=FaultIsolation(("message",)),
            check_term=lambda term: self.captures.adopt_term(term, UNIX_S),
            run_of=self.rings.runs.get,
            on_stacks=self.sent.append,
        )

    def submit(self, *, ranks=(0,), request_id=1, term=TERM, run="run", now_ns=0):
        request = StackRequest(run=run, node="node-1", request_id=request_id, ranks=list(ranks), term=term)
        self.requests.submit(request, now_ns)

    async def work(self, count):
        """Work requests off until so many messages have been sent."""
        task = asyncio.create_task(self.requests.run())
        await until(lambda: len(self.sent) >= count, seconds=60)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.rings.close()


async def test_every_rank_of_a_request_is_answered(node, tmp_path):
    """One with its stacks, the training thread first; one that is not here with the reason."""
    with job(tmp_path / "run", "sleep"):
        node.rings.scan(1)
        node.submit(ranks=(0, 5))
        await node.work(2)
        here, missing = node.sent
    assert (here.run, here.node, here.rank, here.request_id, here.reason) == ("run", "node-1", 0, 1, "")
    assert here.threads[0].is_training
    file, _, function = here.threads[0].frames[0]
    assert (Path(file).name, function) == ("stack_job.py", "stuck_in_download")
    assert missing.threads == []
    assert missing.reason == "rank in run run: got none, expected rank 5, running here"


async def test_a_dump_of_the_flight_recorder_is_requested_with_the_stacks(node, tmp_path):
    """What the process has issued comes in the same message as where it stands."""
    monitor = Monitor(tmp_path, rank=0)
    with job(tmp_path / "run", "sleep"):
        node.rings.scan(1)
        prefixes = {"flight_recorder": str(tmp_path / "rank_"), "flight_recorder_pipe": str(tmp_path / "pipe_")}
        node.rings.runs["run"].ranks[0].facts = RankFacts(**prefixes)
        node.submit()
        await asyncio.gather(node.work(1), until(lambda: monitor.look([entry(0, 7)]), seconds=60))
    monitor.close()
    assert node.sent[0].threads[0].is_training
    assert [each.sequence for each in node.sent[0].collectives] == [7]


async def test_a_rank_whose_training_has_the_signal_reports_it(node, tmp_path):
    """Its agent made no pipe: nothing is sent to it."""
    with job(tmp_path / "run", "handler"):
        node.rings.scan(1)
        node.submit()
        await node.work(1)
    assert "expected a pipe that its agent made" in node.sent[0].reason


async def test_what_a_process_writes_is_refused_unless_it_is_a_dump(node, tmp_path):
    """Another process of the same user writes into the pipe at the same time: the answer states that, and it is counted."""
    with job(tmp_path / "run", "sleep") as process:
        node.rings.scan(1)
        process.send_signal(signal.SIGSTOP)  # nothing but the line below is in the pipe
        node.submit()
        with stacks_path(tmp_path / "run", 0).open("wb", buffering=0) as pipe:

            def write():
                pipe.write(b"<script>\n")
                return node.sent

            await asyncio.gather(node.work(1), until(write, seconds=60))
    assert "got <script>, expected a line of faulthandler" in node.sent[0].reason
    assert node.counts.rejected["ring"] == 1


def test_requests_are_fenced_and_paced(node):
    """The same again is decided already; another term, another content or too soon is refused for each of its ranks."""
    node.submit()
    node.submit()
    node.submit(term=TERM + 5)
    assert node.sent == []
    node.submit(ranks=(0, 1))
    assert [stacks.rank for stacks in node.sent] == [0, 1]
    assert node.sent[0].reason == "request 1 of run 'run' had different content"
    node.submit(request_id=2, term=TERM - 1, now_ns=MIN_INTERVAL_NS)
    assert node.sent[-1].reason == f"term {TERM - 1} is over, term {TERM} is in force"
    node.submit(request_id=3, now_ns=MIN_INTERVAL_NS - 1)
    assert node.sent[-1].reason == "the last request was less than 3 s ago"
    node.submit(request_id=3, term=TERM + 10**6, now_ns=MIN_INTERVAL_NS)
    assert "is not a leader's" in node.sent[-1].reason
    for number in range(5):
        node.submit(request_id=10 + number, run=f"run-{number}", now_ns=MIN_INTERVAL_NS)
    assert node.sent[-1].reason == "too many requests wait"
    assert node.counts.rejected["request"] == 6


async def test_an_unknown_run_is_answered(node):
    """The node that is asked may have lost it."""
    node.submit(run="other")
    await node.work(1)
    assert node.sent[0].reason == "run 'other' is unknown on node 'node-1'"
