"""Who this training process is, from the environment that torchrun and its like set."""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.paths import DEFAULT_ROOT, ROOT_VARIABLE, RUN_VARIABLE, check_name, is_name, run_directory
from lockstep.contracts.ring import RingHeader

RANK_VARIABLE = "RANK"
DEFAULT_RUN = "default"


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank of a run, and the directory that it shares with its node's exporter."""

    rank: int
    local_rank: int
    world_size: int
    run: str
    directory: Path


def read_identity(environ: Mapping[str, str]) -> Identity:
    """Return the identity that `environ` describes.

    Raises
    ------
    ConfigError
        RANK is missing, a number is none, or the run has a name that cannot stand in a path.
    """
    rank = _number(environ, RANK_VARIABLE, None)
    world_size = _number(environ, "WORLD_SIZE", rank + 1)
    if rank >= world_size:
        raise ConfigError(f"RANK: got {rank}, expected less than WORLD_SIZE={world_size}")
    run = read_run(environ)
    root = Path(environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)
    return Identity(rank, _number(environ, "LOCAL_RANK", 0), world_size, run, run_directory(root, run))


def read_run(environ: Mapping[str, str]) -> str:
    """Return the run's name: LOCKSTEP_RUN, else torchrun's id if it was given one, else `default`.

    Raises
    ------
    ConfigError
        LOCKSTEP_RUN is no name.
    """
    given = environ.get(RUN_VARIABLE)
    if given:
        return check_name(given, RUN_VARIABLE)
    torchrun = environ.get("TORCHELASTIC_RUN_ID", "none")
    return torchrun if torchrun != "none" and is_name(torchrun) else DEFAULT_RUN


def make_header(identity: Identity) -> RingHeader:
    """Return the ring header of a new attempt of this rank, now."""
    wall_ns = time.time_ns()
    return RingHeader(
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        pid=os.getpid(),
        attempt=wall_ns,
        clock_offset_ns=wall_ns - time.monotonic_ns(),
        hostname=socket.gethostname(),
    )


def _number(environ: Mapping[str, str], name: str, default: int | None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise ConfigError(f"{name}: got {text!r}, expected a number")
    return int(text)
