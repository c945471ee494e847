"""What ranks are reported when a group cannot go on. Ranks are threads here: each has its sockets and memory of its own."""

import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from benchmarks.intracard_collectives import Group, GroupClosedError, MismatchError, PeerLostError, PeerSilentError
from benchmarks.intracard_collectives.rendezvous import MAGIC, VERSION
from lockstep.contracts.errors import ConfigError, ContractVersionError, LockstepError, MalformedError
from tests.support.servers import WAIT_S

PAGE = 4096
HELLO = struct.Struct("<8sIIIIQ")


@pytest.fixture
def job(tmp_path):
    """Run `play(group)` on every rank of a job; return what each returned or raised. No descriptor is left open."""

    def run(play, *, ranks=3, timeout_s=20.0, slot_bytes=PAGE):
        def rank_thread(rank):
            try:
                with Group.join(
                    "job", rank, ranks, directory=tmp_path, slot_bytes=slot_bytes, timeout_s=timeout_s
                ) as group:
                    return play(group)
            except LockstepError as error:
                return error.with_traceback(None)  # whose frames hold memory of the group

        with ThreadPoolExecutor(ranks) as pool:
            return list(pool.map(rank_thread, range(ranks)))

    before = len(list(Path("/proc/self/fd").iterdir()))
    yield run
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_one_needs_no_one(job):
    """One rank gets its own bytes and its own values."""
    values = np.arange(10_000.0)

    def play(group):
        return group.all_gather(values)[0].view(float).sum(), group.reduce_scatter(values).sum()

    assert job(play, ranks=1) == [(values.sum(), values.sum())]


def test_a_rank_may_leave_after_its_part(job):
    """The end of a rank that has done the last call is no error for those who are later."""

    def play(group):
        gathered = group.all_gather(np.full(3, group.rank, np.uint8))
        group.close()
        return b"".join(gathered)

    assert job(play, ranks=4) == [bytes([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])] * 4


def test_who_left_is_named_and_the_group_is_closed(job):
    """A rank that leaves early is an error for all others at once, and no later call is begun."""

    def play(group):
        if group.rank == 1:
            return None
        with pytest.raises(PeerLostError) as lost:
            group.synchronise()
        with pytest.raises(GroupClosedError, match="rank"):
            group.synchronise()
        return lost.value

    first, none, third = job(play)
    assert none is None
    assert first.lost == third.lost == (1,)
    assert "synchronise" in str(first)


def test_who_is_silent_is_named_when_time_is_over(job):
    """A rank that is there but does not come is named by those who waited as long as they had to."""
    gave_up = threading.Semaphore(0)

    def play(group):
        if group.rank == 2:
            assert all(gave_up.acquire(timeout=WAIT_S) for _ in range(2))
            return None
        try:
            return group.synchronise()
        finally:
            gave_up.release()

    *waited, _ = job(play, timeout_s=0.3)
    silent = [error for error in waited if isinstance(error, PeerSilentError)]
    lost = [error for error in waited if isinstance(error, PeerLostError)]  # reported by the first to give up
    assert silent
    assert all(error.silent == (2,) and error.timeout_s == 0.3 for error in silent)
    assert [error.lost for error in lost] == [(2,)] * (2 - len(silent))


@pytest.mark.parametrize(
    "calls",
    [
        [lambda g: g.synchronise(), lambda g: g.all_gather(np.zeros(4))],
        [lambda g: g.all_gather(np.zeros(4)), lambda g: g.all_gather(np.zeros(4), algorithm="ring")],
        [lambda g: g.reduce_scatter(np.zeros(4)), lambda g: g.reduce_scatter(np.zeros(5))],
        [lambda g: g.reduce_scatter(np.zeros(4, "f4")), lambda g: g.reduce_scatter(np.zeros(4, "i4"))],
        [
            lambda g: g.reduce_scatter(np.zeros(4, "u2")),
            lambda g: g.reduce_scatter(np.zeros(4, "u2"), bfloat16=True),
        ],
    ],
)
def test_different_calls_are_refused_by_all(job, calls):
    """Ranks that do not do the same thing learn it instead of mixing their bytes."""
    errors = job(lambda group: calls[group.rank](group), ranks=2)
    assert [type(error) for error in errors] == [MismatchError, MismatchError]
    assert "rank 1" in str(errors[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.all_gather(np.array([None])), "Python objects"),
        (lambda g: g.all_gather(np.zeros(4), out=np.zeros(4)), "uint8"),
        (lambda g: g.all_gather(np.zeros(4), out=np.zeros(4, "u1")), "expected 32"),
        (lambda g: g.all_gather(np.zeros(4), algorithm="star"), "'star'"),
        (lambda g: g.reduce_scatter(np.zeros((2, 2))), "one dimension"),
        (lambda g: g.reduce_scatter(np.zeros(4, bool)), "dtype"),
        (lambda g: g.reduce_scatter(np.zeros(4, ">f4")), "dtype"),
        (lambda g: g.reduce_scatter(np.zeros(4, "i2"), bfloat16=True), "bfloat16"),
        (lambda g: g.reduce_scatter(np.zeros(4), out=np.zeros(3)), "out"),
    ],
)
def test_arguments_that_cannot_be_are_named(job, call, message):
    """Each wrong argument is an error that names it."""
    (error,) = job(call, ranks=1)
    assert isinstance(error, ConfigError)
    assert message in str(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job": "../x"}, "job name"),
        ({"rank": 2}, "rank"),
        ({"ranks": 65}, "ranks"),
        ({"slot_bytes": 1000}, "slot_bytes"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"directory": Path("/tmp") / ("d" * 100)}, "socket name"),
    ],
)
def test_seats_that_cannot_be_are_named(tmp_path, changes, message):
    """A rank that could never meet its peers is refused before it waits."""
    arguments = {"job": "job", "rank": 0, "ranks": 2, "slot_bytes": PAGE, "timeout_s": 1.0, "directory": tmp_path}
    arguments |= changes
    with pytest.raises(ConfigError, match=message):
        Group.join(arguments.pop("job"), arguments.pop("rank"), arguments.pop("ranks"), **arguments)


@pytest.mark.parametrize(("rank", "silent"), [(0, (1, 2)), (1, (0,)), (2, (0, 1))])
def test_who_never_came_is_named(tmp_path, rank, silent):
    """A rank that waits alone names whom it missed, and leaves no name behind."""
    with pytest.raises(PeerSilentError) as error:
        Group.join("job", rank, 3, directory=tmp_path, slot_bytes=PAGE, timeout_s=0.05)
    assert error.value.silent == silent
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_differ_in_their_slots_do_not_meet(tmp_path):
    """Slots of another size are refused by name before any is mapped."""

    def join(rank):
        with pytest.raises(LockstepError) as error:
            Group.join("job", rank, 2, directory=tmp_path, slot_bytes=PAGE * (1 + rank), timeout_s=WAIT_S)
        return error.value

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    assert isinstance(first, MalformedError)
    assert "slot_bytes of rank 1" in str(first)
    assert isinstance(second, PeerLostError)


def sealed_memory(size):
    """Return the descriptor of sealed memory of `size` bytes."""
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, size)
    return descriptor


@pytest.mark.parametrize(
    ("hello", "size", "error", "message"),
    [
        (b"short", 2 * PAGE, MalformedError, "5 bytes"),
        (HELLO.pack(b"LKSTRING", VERSION, 1, 2, 0, PAGE), 2 * PAGE, ContractVersionError, "LKSTRING"),
        (HELLO.pack(MAGIC, VERSION + 1, 1, 2, 0, PAGE), 2 * PAGE, ContractVersionError, "hello"),
        (HELLO.pack(MAGIC, VERSION, 0, 2, 0, PAGE), 2 * PAGE, MalformedError, "rank"),
        (HELLO.pack(MAGIC, VERSION, 1, 3, 0, PAGE), 2 * PAGE, MalformedError, "ranks"),
        (HELLO.pack(MAGIC, VERSION, 1, 2, 0, PAGE), PAGE, MalformedError, "size of shared memory"),
        (HELLO.pack(MAGIC, VERSION, 1, 2, 0, PAGE), 2 * PAGE, MalformedError, "seals"),
        (HELLO.pack(MAGIC, VERSION, 1, 2, 0, PAGE), None, MalformedError, "no memory"),
    ],
)
def test_a_stranger_is_refused_by_name(tmp_path, hello, size, error, message):
    """What is no rank of this job and this version is never mapped."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(
            lambda: Group.join("job", 0, 2, directory=tmp_path, slot_bytes=PAGE, timeout_s=WAIT_S).close()
        )
        memory = [] if size is None else [sealed_memory(size)]
        for descriptor in memory:
            stack.callback(os.close, descriptor)
        stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        while stranger.connect_ex(str(tmp_path / "job.0.meet")) != 0:
            assert not waiting.done()
        socket.send_fds(stranger, [hello], memory)
        with pytest.raises(error, match=message):
            waiting.result()


def test_a_rank_that_waits_already_is_not_replaced(tmp_path):
    """The second one of a rank is refused, and the first still meets its peer."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Group.join, "job", 0, 2, directory=tmp_path, slot_bytes=PAGE, timeout_s=WAIT_S)
        while not (tmp_path / "job.0.meet").exists() or socket_refuses(tmp_path / "job.0.meet"):
            assert not first.done()
        with pytest.raises(ConfigError, match="rank 0 of job job"):
            Group.join("job", 0, 2, directory=tmp_path, slot_bytes=PAGE, timeout_s=WAIT_S)
        with Group.join("job", 1, 2, directory=tmp_path, slot_bytes=PAGE, timeout_s=WAIT_S) as second:
            assert second.ranks == 2
            first.result().close()


def socket_refuses(path):
    """Whether no one listens at `path`; one who listens drops a caller that shows nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        return caller.connect_ex(str(path)) != 0
