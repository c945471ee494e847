"""Which state a rank's process is in: real processes that hold real rings, and end in every way."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exporter.counts import ExporterCounters
from exporter.reading.rank_states import FINISHING_S
from exporter.reading.ring_file import RingFile
from exporter.reading.rings import Rings
from lockstep.contracts.messages import (
    EXCEPTION,
    EXIT_CODE,
    FAILED,
    FINISHED,
    GONE,
    RUNNING,
    SIGNAL,
    UNWATCHED,
    VANISHED,
)

NOW_NS = 10**15
S = 10**9
RANK = """
import os, signal, sys, time
from pathlib import Path
from lockstep.agent.ending import describe_ending
from lockstep.agent.ring import RingWriter
from lockstep.contracts import ring as layout
header = layout.RingHeader(
    rank=0, local_rank=0, world_size=1, pid=os.getpid(), attempt=1, clock_offset_ns=time.time_ns() - time.monotonic_ns(),
    hostname="h", block_count=4,
)
ring = RingWriter(Path(sys.argv[1]), header)
print(flush=True)
def raised():
    try:
        raise KeyError("secret")
    except KeyError as error:
        ring.write_ending(describe_ending(error))
        ring.set_state(layout.STATE_RAISED)
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


class Rank:
    """A process with a ring that does what it is given, line by line, and the exporter's view of it."""

    def __init__(self, root):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(root / "run-a")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "\n"
        self.rings = Rings(root, ExporterCounters(), {})
        self.now_ns = NOW_NS

    def does(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()  # empty where that was its end

    def look(self, after_s=0.0):
        self.now_ns += int(after_s * S)
        self.rings.scan(self.now_ns)
        self.rings.read()
        (info,) = self.rings.runs["run-a"].announced()
        return info.state, info.ending

    def until_over(self):
        deadline = time.monotonic() + 60
        while self.look()[0] == RUNNING:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.look()

    def end(self):
        self.rings.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def rank(root: Path):
    rank = Rank(root)
    yield rank
    rank.end()


WORDS = {
    "pass": (RUNNING, None),
    "ring.set_state(layout.STATE_FAILED, 1)": (UNWATCHED, None),
    "raised()": (FAILED, (EXCEPTION, 0)),
}
ENDS = {
    "os._exit(0)": (FINISHED, None),
    "ring.set_state(layout.STATE_FINISHED); os._exit(0)": (FINISHED, None),
    "ring.set_state(layout.STATE_FINISHED); os._exit(3)": (FAILED, (EXIT_CODE, 3)),
    "os._exit(3)": (FAILED, (EXIT_CODE, 3)),
    "os.kill(os.getpid(), signal.SIGKILL)": (GONE, (SIGNAL, 9)),
    "os.kill(os.getpid(), signal.SIGTERM)": (GONE, (SIGNAL, 15)),
    "raised(); os._exit(1)": (FAILED, (EXCEPTION, 0)),
}


def short(state):
    name, ending = state
    return name, None if ending is None else (ending.kind, ending.code)


@pytest.mark.parametrize(("line", "expected"), WORDS.items(), ids=WORDS)
def test_a_process_that_lives_is_what_its_agent_reports(rank, line, expected):
    """Whether it holds its ring is all that is seen from outside."""
    rank.does(line)
    assert short(rank.look()) == expected


@pytest.mark.parametrize(("line", "expected"), ENDS.items(), ids=ENDS)
def test_a_process_that_has_ended(rank, line, expected):
    """Its exit code or signal; an exception that the agent has seen shows more."""
    before_ns = time.time_ns()
    assert rank.look()[0] == RUNNING
    rank.does(line)
    state = rank.until_over()
    assert short(state) == expected
    assert state[1] is None or before_ns <= state[1].unix_ns <= time.time_ns()


def test_the_exception_is_named_with_its_place_and_without_its_message(rank):
    """Type and frame; its message may be data."""
    rank.does("raised()")
    _, ending = rank.look()
    assert (ending.exception, ending.frame) == ("KeyError", "<string>(15): raised")
    assert "secret" not in json.dumps(str(ending))


def test_a_word_of_finishing_waits_for_the_exit_code(rank):
    """`sys.exit(1)` runs the agent's last function as a good end does; who lingers is believed after a while."""
    assert rank.look()[0] == RUNNING
    rank.does("ring.set_state(layout.STATE_FINISHED)")
    assert rank.look()[0] == RUNNING
    assert rank.look(FINISHING_S - 0.1)[0] == RUNNING
    assert rank.look(0.2)[0] == FINISHED


def test_an_exporter_that_starts_later_finds_the_process_gone(rank):
    """How it ended no one knows any more; when is its last sign of life."""
    rank.does("os._exit(3)")
    rank.process.wait()
    state, ending = rank.look()
    assert (state, ending.kind) == (GONE, VANISHED)
    assert ending.unix_ns <= time.time_ns()


def test_an_ending_is_announced_once_and_stays(rank):
    """A rank that has ended has one ending, however often it is read."""
    rank.look()
    rank.does("os._exit(3)")
    first = rank.until_over()
    revision = rank.rings.runs["run-a"].revision
    assert rank.look(3600) == first
    assert rank.rings.runs["run-a"].revision == revision


@pytest.mark.parametrize(
    ("line", "is_orderly"),
    [
        ("ring.set_state(layout.STATE_FINISHED); os._exit(3)", True),
        ("os._exit(3)", False),
        ("raised(); os._exit(1)", False),
    ],
)
def test_an_exit_code_is_orderly_where_exit_functions_ran(rank, line, is_orderly):
    """The agent's last word comes from Python's exit functions, which `os._exit` and kills leave out."""
    rank.look()
    rank.does(line)
    assert rank.until_over()[1].is_orderly is is_orderly


def ends_during(rank, monkeypatch, name, line):
    """Let the process end by `line` while the exporter's call of this method of its ring returns."""
    original = getattr(RingFile, name)

    def call(ring):
        found = original(ring)
        monkeypatch.setattr(RingFile, name, original)
        rank.does(line)
        os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOWAIT)
        return found

    monkeypatch.setattr(RingFile, name, call)


@pytest.mark.parametrize("name", ["holder", "read"])
@pytest.mark.parametrize(("line", "expected"), ENDS.items(), ids=ENDS)
def test_a_process_that_ends_while_its_ring_is_read(rank, monkeypatch, name, line, expected):
    """The exporter may lose the processor between any two of its looks: what it sees first must not be older."""
    assert rank.look()[0] == RUNNING
    ends_during(rank, monkeypatch, name, line)
    rank.look()
    assert short(rank.until_over()) == expected


def test_a_process_that_finishes_and_ends_while_its_lock_is_queried(rank, monkeypatch):
    """It was alive by its lock and has ended by its pidfd: then its exit code is known."""
    rank.look()
    rank.does("ring.set_state(layout.STATE_FINISHED)")
    ends_during(rank, monkeypatch, "holder", "os._exit(3)")
    rank.look()
    assert short(rank.until_over()) == (FAILED, (EXIT_CODE, 3))
