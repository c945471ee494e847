"""A process with a rank's ring whose agent has taken the signal of stacks; prints "ready" and does what its argument asks.

sleep: sleeps in a named function. native: waits in C with the interpreter lock held. without_lock: waits in C without it.
fork: sleeps after a child has been forked, which prints whether it still handles the signal. handler: the training's own handler for the signal, registered before.
"""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from lockstep.agent.ring import RingWriter
from lockstep.agent.shared_directory import trusted_uids
from lockstep.agent.stack_dumps import StackDumps
from lockstep.contracts.ring import RingHeader
from tests.support.users import GROUP, become

UID_VARIABLE = "STACK_JOB_UID"


def stuck_in_download():
    os.write(1, b"ready\n")
    time.sleep(600)


def stuck_in_native():
    block = ctypes.PyDLL(None).read  # holds the interpreter lock: no Python handler could run
    reading, buffer = os.pipe()[0], ctypes.create_string_buffer(1)
    os.write(1, b"ready\n")
    block(reading, buffer, 1)


def stuck_without_lock():
    block = ctypes.CDLL(None).read
    reading, buffer = os.pipe()[0], ctypes.create_string_buffer(1)
    os.write(1, b"ready\n")
    block(reading, buffer, 1)


def helper(began):
    began.set()
    threading.Event().wait()


def handle(_number, _frame):
    os.write(1, b"handled\n")


def main(directory, what):
    if UID_VARIABLE in os.environ:  # after the interpreter has found its modules
        become(int(os.environ[UID_VARIABLE]), gid=GROUP)
    if what == "handler":
        signal.signal(signal.SIGURG, handle)
    header = RingHeader(
        rank=0,
        local_rank=0,
        world_size=1,
        pid=os.getpid(),
        attempt=1,
        clock_offset_ns=0,
        hostname="host-1",
        block_count=8,
    )
    ring = RingWriter(Path(directory), header)
    stacks = StackDumps()
    stacks.begin(Path(directory), 0, trusted_uids(os.environ))
    ring.set_thread(threading.get_ident())
    os.write(1, f"{stacks.fact}\n".encode())
    began = threading.Event()
    threading.Thread(target=helper, args=(began,), daemon=True).start()
    began.wait()
    if what == "handler":
        os.write(1, b"ready\n")
        signal.pause()
        return
    if what == "fork":
        child = os.fork()
        if child == 0:
            stacks.forget()
            caught = re.search(r"SigCgt:\s*(\w+)", Path("/proc/self/status").read_text())[1]
            os.write(1, f"forked {int(caught, 16) >> (signal.SIGURG - 1) & 1}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
    {"native": stuck_in_native, "without_lock": stuck_without_lock}.get(what, stuck_in_download)()


if __name__ == "__main__":
    main(*sys.argv[1:])
