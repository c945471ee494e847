"""Both writers of marks, under a clock of the test's own, over a ring in a file."""

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from lockstep.agent import mark_buffer
from lockstep.contracts.marks import BLOCK_BYTES, MARK_STRUCT, MarkKind, unpack_block
from lockstep.contracts.ring import ISSUES_BYTES

ROOT = Path(__file__).resolve().parents[2]
WRITERS = ("C", "Python")


SOURCES = (ROOT / "setup.py", *sorted((ROOT / "lockstep").rglob("*.[ch]")))
BUILDS = ROOT / "build" / "extension"


@cache
def extension():
    """Return the C extension, built from this checkout as an installation builds it, once for all processes."""
    python = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}".encode()
    digest = hashlib.sha256(b"\0".join((python, *(path.read_bytes() for path in SOURCES)))).hexdigest()[:16]
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = next((BUILDS / digest).glob("lockstep/agent/_marks*.so"), None) or _build(BUILDS / digest)
    spec = importlib.util.spec_from_file_location("lockstep.agent._marks", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(target):
    """Build the extensions into a folder, which appears when they are whole; return the path of the agent's."""
    with TemporaryDirectory(dir=BUILDS) as directory:
        output = ["--build-lib", f"{directory}/lib", "--build-temp", directory]
        command = [sys.executable, "setup.py", "-q", "build_ext", *output]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        if not any(Path(directory).glob("lib/lockstep/agent/_marks*.so")):  # an installation goes on without it
            pytest.skip(f"the C extension cannot be built here: {done.stderr[-300:]}")
        Path(directory, "lib").rename(target)
    return next(target.glob("lockstep/agent/_marks*.so"))


def writer(name):
    return extension().MarkBuffer if name == "C" else mark_buffer.MarkBuffer


class Ring:
    """A buffer named "C" or "Python", its clock, and what lies in its file."""

    def __init__(self, directory, name, *, block_count=8, claim_thread=None, real_clock=False, start_ns=1000):
        self.name = name
        self.block_count = block_count
        self.path = Path(directory) / f"{name}.marks"
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.size = block_count * BLOCK_BYTES + ISSUES_BYTES
        os.ftruncate(self.file, self.size)
        self.now = start_ns
        self.reads = []
        clocks = {} if real_clock else {"clock": self._clock, "cpu_clock": self._cpu_clock}
        self.buffer = writer(name)(
            self.file, 0, block_count, issues_offset=block_count * BLOCK_BYTES, claim_thread=claim_thread, **clocks
        )

    def call(self, method, *arguments):
        """Call a method of the buffer; one behind "elsewhere" on another thread."""
        if method == "elsewhere":
            return self._call_elsewhere(*arguments)
        return getattr(self.buffer, method)(*arguments)

    def _call_elsewhere(self, method, *arguments):
        own = self.buffer.thread
        if own:
            self.buffer.thread = own + 1  # the calling thread is another one for a moment
        result = getattr(self.buffer, method)(*arguments)
        if own:
            self.buffer.thread = own
        return result

    def _clock(self):
        self.reads.append("clock")
        return self.now

    def _cpu_clock(self):
        self.reads.append("cpu")
        return self.now // 2

    def bytes(self):
        return os.pread(self.file, self.size, 0)

    def blocks(self):
        """Return the blocks in their order."""
        data = self.bytes()
        slots = [data[at : at + BLOCK_BYTES] for at in range(0, self.block_count * BLOCK_BYTES, BLOCK_BYTES)]
        return sorted(filter(None, map(unpack_block, slots)), key=lambda block: block.sequence)

    def marks(self):
        """Return the marks of all blocks."""
        return [
            SimpleNamespace(time_ns=time, kind=kind, detail=detail, subject=subject, argument=argument)
            for block in self.blocks()
            for time, kind, detail, subject, argument in MARK_STRUCT.iter_unpack(block.marks)
        ]

    def kinds(self):
        return [MarkKind(mark.kind) for mark in self.marks()]

    def close(self):
        os.close(self.file)
