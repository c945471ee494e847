"""Descriptors of the agent: their numbers, and reading and writing without letting go of the interpreter."""

import ctypes
import errno
import fcntl
import os
import resource
import subprocess
import sys
import textwrap
import threading

import pytest

from lockstep.agent.descriptors import HIGH_DESCRIPTOR, move_high, pread, pwrite


@pytest.fixture
def low(tmp_path):
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def test_descriptor_moves_high(low):
    """The duplicate is the same file, is closed by exec, and the former number is free."""
    inode = os.fstat(low).st_ino
    high = move_high(low)
    assert high >= HIGH_DESCRIPTOR
    assert os.fstat(high).st_ino == inode
    assert fcntl.fcntl(high, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(low)
    os.close(high)


FEW = """
    import os, resource, sys
    from lockstep.agent.descriptors import move_high
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    inode = os.fstat(file := os.open(sys.argv[1], os.O_RDONLY)).st_ino
    high = move_high(file)
    print(high < 100, os.fstat(high).st_ino == inode)
"""


def test_process_that_may_have_few_descriptors_gets_a_low_one(tmp_path):
    """A limit below the high numbers is no reason to go without."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-c", textwrap.dedent(FEW), tmp_path / "file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_what_is_written_is_read(low):
    """At offsets, from and to memory, with the count that the C functions return."""
    assert pwrite(low, b"0123456789", 10, 5) == 10
    seen = ctypes.c_uint64()
    assert pread(low, ctypes.byref(seen), 8, 7) == 8
    assert seen.value == int.from_bytes(b"23456789", "little")
    assert pread(low, ctypes.byref(seen), 8, 12) == 3
    assert pread(-1, ctypes.byref(seen), 8, 0) == -1
    assert pwrite(-1, b"x", 1, 0) == -1
    os.close(low)


def test_file_size_limit_is_a_failure_and_no_signal(low):
    """Python ignores SIGXFSZ, so that the call fails as any other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        assert pwrite(low, b"0123456789", 10, 5) == -1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    os.close(low)


def test_the_interpreter_is_not_released(low):
    """A thread that waits for the interpreter gets it at a call of `os`, and at none of thousands of these.

    With a switch interval of an hour, a thread gets the interpreter only from one that releases it.
    """
    go, ran = threading.Event(), []
    thread = threading.Thread(target=lambda: (go.wait(), ran.append(True)))
    thread.start()
    former = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        go.set()
        seen = ctypes.create_string_buffer(8)
        for _ in range(20_000):
            pwrite(low, b"0123456789", 10, 5)
            pread(low, seen, 8, 0)
        assert not ran
        while not ran:
            os.pwrite(low, b"0", 0)
    finally:
        sys.setswitchinterval(former)
        thread.join()
        os.close(low)
