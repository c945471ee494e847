"""Claims a run name for a process that trains alone, since several of them may share a node without coordination.

The ranks of a job use the same name, from their environment. A single process without a launcher uses another name if a
living process holds the ring of that name: concurrent trainings of one process each are separate runs.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from lockstep.agent.identity import Identity
from lockstep.agent.shared_directory import make_run_directory
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.launchers import gives_rank
from lockstep.contracts.limits import NAME_MAX_BYTES
from lockstep.contracts.locks import lock_holder
from lockstep.contracts.paths import ring_path

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def claim_run(identity: Identity, environ: Mapping[str, str]) -> Iterator[Identity]:
    """Yield the identity under a free run name; until the block ends no other process gets that name.

    `environ` shows whether a launcher started the process, whose run then already has its name.

    Raises
    ------
    OSError
        The run directory cannot be made.
    """
    if identity.world_size > 1 or gives_rank(environ):
        yield identity
        return
    directory = -1
    try:
        with suppress(MalformedError):  # another user's
            make_run_directory(identity.directory)
            directory = os.open(identity.directory, _READ | os.O_DIRECTORY)
        yield identity if directory != -1 and _is_free(directory, identity) else _renamed(identity)
    finally:
        if directory != -1:
            os.close(directory)


def _is_free(directory: int, identity: Identity) -> bool:
    """Whether the ring is free and no process is about to create it; the caller must hold the directory's lock."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = os.open(ring_path(identity.directory, identity.rank), _READ)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return lock_holder(file) is None
    finally:
        os.close(file)


def _renamed(identity: Identity) -> Identity:
    suffix = f"-{os.getpid()}"
    run = identity.run[: NAME_MAX_BYTES - len(suffix)] + suffix
    return identity._replace(run=run, directory=identity.directory.with_name(run))
