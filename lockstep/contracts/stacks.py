"""Where a rank's process writes the stacks of its threads, and the signal that makes it: agent and exporter agree here.

The agent registers a handler of `faulthandler` for the signal. The handler is C, takes no lock and no memory, and
writes into a named pipe next to the ring: the kernel bounds what a pipe holds, and a full one takes no more. The agent
has the pipe open for reading too, so that a write never ends the process; it never waits.

A process without a handler ignores SIGURG, which is why it is the signal: one that comes to a process that has become
another program changes nothing. Trainings use others (SIGUSR1 and SIGUSR2 of schedulers, SIGTERM, SIGINT, SIGHUP of
launchers); programs that handle it (those written in Go) expect it at any time.
"""

import re
import signal
from pathlib import Path

STACK_SIGNAL = signal.SIGURG
STACKS_PIPE_BYTES = 256 << 10
"""As much as 40 threads of 60 frames; a training process has 5 to 20 threads."""

_OWN = re.compile(r"(?:^|/)lockstep/(?:agent|contracts|accounting)/")


def stacks_path(directory: Path, rank: int) -> Path:
    """Return the pipe of the stacks of `rank`."""
    return directory / f"{rank}.stacks"


def is_own_file(file: str) -> bool:
    """Whether a source file is of what Lockstep runs in a training process."""
    return _OWN.search(file) is not None
