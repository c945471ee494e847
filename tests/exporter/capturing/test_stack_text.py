"""What faulthandler writes, of several Python versions, and what a hostile process writes in its place."""

from collections import Counter
from random import Random

import pytest

from benchmarks.fuzz.mutate import changed_bytes
from exporter.capturing.stack_text import parse_stacks, thread_stacks
from lockstep.contracts.codec import encode
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import STACKS_MAX_BYTES
from lockstep.contracts.messages import RankStacks

DUMP = b"""\
Thread 0x00007f00deadbeef (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/srv/my "quoted" folder/loader.py", line 12 in <lambda>

Current thread 0x00007f0000000001 [MainThread] (most recent call first):
  File "/srv/train.py", line 88 in stuck_in_download
  File ???, line ??? in ???
  ...

Thread 0x00007f0000000002 (most recent call first):
  <no Python frame>
"""


def test_threads_and_frames_are_read():
    """With and without a name, quotes in a path, a frame that faulthandler could not read, a thread without frames."""
    threads = parse_stacks(DUMP, where="test")
    assert [(thread.ident, thread.frames) for thread in threads] == [
        (
            0x7F00DEADBEEF,
            (
                ("/usr/lib/python3.11/threading.py", 320, "wait"),
                ('/srv/my "quoted" folder/loader.py', 12, "<lambda>"),
            ),
        ),
        (0x7F0000000001, (("/srv/train.py", 88, "stuck_in_download"), ("", 0, "???"))),
        (0x7F0000000002, ()),
    ]


def test_a_last_line_that_is_cut_is_left_out():
    """The pipe may be full in the middle of a line."""
    assert parse_stacks(DUMP[:-5], where="test")[:2] == parse_stacks(DUMP, where="test")[:2]


def test_the_training_thread_comes_first():
    """By its id; where that is not known the oldest thread is taken for it, which comes last."""
    threads = parse_stacks(DUMP, where="test")
    stacks, omitted = thread_stacks(threads, 0x7F0000000001)
    assert [(stack.is_training, stack.frames[0][2]) for stack in stacks] == [
        (True, "stuck_in_download"),
        (False, "wait"),
    ]
    assert omitted == 0
    assert thread_stacks(threads, 0)[0][0].frames == []
    assert thread_stacks([], 0) == ([], 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe\n",
        b'Thread 0x1 (most recent call first):\n  File "\x1b[31m", line 1 in f\n',
        b'  File "train.py", line 1 in load\n',
        b"Thread 0x1 (most recent call first):\nFatal Python error: Segmentation fault\n",
        b"Thread 0x11111111111111111 (most recent call first):\n",
        b'Thread 0x1 (most recent call first):\n  File "a", line 99999999999 in f\n',
        b"Thread 0x1 (most recent call first):\n" * 101,
        b"Thread 0x1 (most recent call first):\n" + b'  File "a", line 1 in f\n' * 101,
    ],
)
def test_what_faulthandler_does_not_write_is_refused(data):
    """Other bytes, frames of no thread, other lines, numbers out of range, more threads or frames than it writes."""
    with pytest.raises(MalformedError, match="test"):
        parse_stacks(data, where="test")


def test_mutated_dumps_are_read_or_refused():
    """Whatever bytes change: what is read can be sent, and all else is refused by name."""
    random = Random(1)
    outcomes = Counter()
    for _ in range(3000):
        data = changed_bytes(random, DUMP, random.choice((1, 1, 4, 16)))
        try:
            stacks, omitted = thread_stacks(parse_stacks(data, where="test"), random.choice((0, 0x7F0000000001)))
        except MalformedError:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        encode(RankStacks(run="r", node="n", rank=0, request_id=1, unix_ns=1, threads=stacks, omitted_frames=omitted))
    assert min(outcomes["refused"], outcomes["read"]) > 300


def test_stacks_fit_into_their_message_whatever_they_hold():
    """The most threads of the most frames with the longest names: the innermost frames of the training thread stay."""
    frame = b'  File "/%s", line 2147483648 in %s\n' % (b"d" * 500, b"f" * 500)
    threads = parse_stacks((b"Thread 0x2 (most recent call first):\n" + frame * 100) * 100, where="test")
    stacks, omitted = thread_stacks(threads, 2)
    kept = sum(len(stack.frames) for stack in stacks)
    assert kept + omitted == 10_000
    assert kept > 30
    data = encode(
        RankStacks(
            run="r" * 128,
            node="n" * 128,
            rank=(1 << 20) - 1,
            request_id=1 << 53,
            unix_ns=1 << 62,
            threads=stacks,
            omitted_frames=omitted,
        )
    )
    assert len(data) <= STACKS_MAX_BYTES
