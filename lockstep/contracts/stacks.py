"""The pipe to which a rank's process writes its threads' stacks, and the signal that triggers it.

Agent and exporter share this definition. The agent registers a handler of `faulthandler` for the signal. The handler is
C, takes no lock and allocates no memory, and writes to a named pipe next to the ring: the kernel bounds a pipe's
content, and a full one accepts no more. The agent also has the pipe open for reading, so that a write never ends the
process, and never blocks.

SIGURG was chosen because a process without a handler ignores it: if the process has become a different program, the
signal changes nothing. Training jobs use others (SIGUSR1 and SIGUSR2 of schedulers, SIGTERM, SIGINT, SIGHUP of
launchers). Programs that handle SIGURG (those written in Go) expect it at any time.
"""

import re
import signal
from pathlib import Path

STACK_SIGNAL = signal.SIGURG
STACKS_PIPE_BYTES = 256 << 10
"""As much as 40 threads of 60 frames; a training process has 5 to 20 threads."""

_OWN = re.compile(r"(?:^|/)lockstep/(?:agent|contracts|accounting)/")


def stacks_path(directory: Path, rank: int) -> Path:
    """Return the pipe for the stacks of `rank`."""
    return directory / f"{rank}.stacks"


def is_own_file(file: str) -> bool:
    """Whether a source file belongs to the code that Lockstep runs in a training process."""
    return _OWN.search(file) is not None
