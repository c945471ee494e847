"""The identity of this training process: rank, world size, run, and the directory shared with its node's exporter."""

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.contracts.launchers import TORCHRUN, read_place
from lockstep.contracts.paths import RUN_VARIABLE, check_name, derived_name, root_directory, run_directory
from lockstep.contracts.ring import RingHeader

DEFAULT_RUN = "default"
_NO_STEP = 0xFFFFFFF0
"""From here on Slurm's numbers of steps are its own: batch script, interactive step, and their like."""
_FAKE = "fake"
"""Torch's process group for trials of large worlds in one process."""


class Identity(NamedTuple):
    """A rank of a run, the directory that it shares with its node's exporter, and the source of the rank."""

    rank: int
    local_rank: int
    world_size: int
    run: str
    directory: Path
    source: str = TORCHRUN.rank


def read_identity(environ: Mapping[str, str], group: tuple[int, int] | None = None) -> Identity:
    """Return the identity that `environ` and torch's default process group, as (rank, world size), describe.

    Raises
    ------
    ConfigError
        The environment gives no usable rank or directory, or the run has a name that cannot stand in a path.
    """
    place = read_place(environ, group)
    run = read_run(environ)
    directory = run_directory(root_directory(environ), run)
    return Identity(place.rank, place.local_rank, place.world_size, run, directory, place.source)


def process_group() -> tuple[int, int] | None:
    """Return (rank, world size) of torch's default process group, None where there is none yet or it is a fake."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        if distributed.get_backend() == _FAKE:
            return None
        return distributed.get_rank(), distributed.get_world_size()
    except (KeyError, RuntimeError, ValueError):  # torch's own set-up is still under way
        return None


def read_run(environ: Mapping[str, str]) -> str:
    """Return the run's name: LOCKSTEP_RUN, else a name that all processes of the job can derive, else `default`.

    The derived name is torchrun's id if given, Open MPI's job name, or Slurm's job number and step (`derived_name`).

    Raises
    ------
    ConfigError
        LOCKSTEP_RUN is no name.
    """
    given = environ.get(RUN_VARIABLE)
    if given:
        return check_name(given, RUN_VARIABLE)
    torchrun = environ.get("TORCHELASTIC_RUN_ID", "none")
    ids = ("" if torchrun == "none" else torchrun, _mpi_run(environ), _slurm_run(environ))
    return next(filter(None, map(derived_name, ids)), DEFAULT_RUN)


def _mpi_run(environ: Mapping[str, str]) -> str:
    """Return the name of an Open MPI job, since not all of its nodes know the number of a Slurm step around it."""
    namespace = environ.get("PMIX_NAMESPACE")
    if not namespace or "OMPI_COMM_WORLD_RANK" not in environ:
        return ""
    return f"mpi-{namespace}"


def _slurm_run(environ: Mapping[str, str]) -> str:
    """Return the name of a Slurm job step, since several steps of one job may train at once."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    if not job:
        return ""
    return f"job-{job}.{step}" if step.isdecimal() and int(step) < _NO_STEP else f"job-{job}"


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
