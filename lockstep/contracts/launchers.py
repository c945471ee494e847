"""The environment variables in which launchers pass ranks, and the rank that a given environment implies.

The order is that of nesting: torchrun's workers run inside MPI or Slurm, and processes of mpirun inside a Slurm step,
never the other way round. Then an outer launcher's variables count nodes, and the inner one's count ranks.
"""

from collections.abc import Mapping
from typing import NamedTuple

from lockstep.contracts.environment import whole_number
from lockstep.contracts.errors import ConfigError
from lockstep.contracts.limits import WORLD_SIZE_MAX

LOCAL_RANK, WORLD_SIZE = "LOCAL_RANK", "WORLD_SIZE"
_NODE_RANKS = ("NODE_RANK", "GROUP_RANK")
_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"

PROCESS_GROUP = "torch.distributed"
NODE_AND_LOCAL_RANK = f"{_NODE_RANKS[0]} and {LOCAL_RANK}"
SINGLE_PROCESS = "single process"


class Launcher(NamedTuple):
    """The variables of one kind of launcher; of `local_ranks`, the first that is set is used."""

    name: str
    rank: str
    world_size: str
    local_ranks: tuple[str, ...]


class RankPlace(NamedTuple):
    """The place of a process in its job. `source` is the variable that gave the rank, or one of the constants above."""

    rank: int
    world_size: int
    local_rank: int
    source: str


TORCHRUN = Launcher("torchrun", "RANK", WORLD_SIZE, (LOCAL_RANK,))
LAUNCHERS = (
    TORCHRUN,
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    Launcher("PMI (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")),
    # In a batch script SLURM_NTASKS is the allocation's size and SLURM_PROCID is 0: only a step counts ranks.
    Launcher("Slurm (srun)", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",)),
)
VARIABLES = tuple(
    dict.fromkeys(
        [
            *(name for each in LAUNCHERS for name in (each.rank, each.world_size, *each.local_ranks)),
            *_NODE_RANKS,
            _LOCAL_WORLD_SIZE,
        ]
    )
)
"""All variables that are read."""


def read_place(environ: Mapping[str, str], group: tuple[int, int] | None = None) -> RankPlace:
    """Return the place of a process: that in its process group, otherwise that from its launcher.

    `group` is (rank, world size) of torch's default process group, None if there is none. A group of one process does
    not override a launcher that counts more. A process without group and launcher is rank 0 of 1.

    Raises
    ------
    ConfigError
        A relevant variable is not a number up to WORLD_SIZE_MAX, a rank is not below its world size, or a node's rank
        cannot be computed.
    """
    if group is None:
        return _launched(environ)
    rank, world_size = group
    if world_size == 1:
        try:
            launched = _launched(environ)
        except ConfigError:
            launched = None
        if launched is not None and launched.world_size > 1:
            return launched
    return RankPlace(rank, world_size, _local_rank_in_group(environ, rank, world_size), PROCESS_GROUP)


def gives_rank(environ: Mapping[str, str]) -> bool:
    """Whether a launcher has set a rank, usable or not."""
    return LOCAL_RANK in environ or any(_has_set(environ, launcher) for launcher in LAUNCHERS)


def _launched(environ: Mapping[str, str]) -> RankPlace:
    for launcher in LAUNCHERS:
        if _has_set(environ, launcher):
            return _place_by(environ, launcher)
    if LOCAL_RANK in environ:
        return _place_on_node(environ)
    return RankPlace(0, 1, 0, SINGLE_PROCESS)


def _has_set(environ: Mapping[str, str], launcher: Launcher) -> bool:
    """Whether the launcher started this process; RANK alone is enough, for a job of unknown size."""
    return launcher.rank in environ and (launcher is TORCHRUN or launcher.world_size in environ)


def _place_by(environ: Mapping[str, str], launcher: Launcher) -> RankPlace:
    rank = _number(environ, launcher.rank)
    world_size = _number(environ, launcher.world_size, rank + 1)
    if rank >= world_size:
        raise ConfigError(f"{launcher.rank}: got {rank}, expected less than {launcher.world_size}={world_size}")
    local = next((name for name in launcher.local_ranks if name in environ), None)
    return RankPlace(rank, world_size, rank if local is None else _number(environ, local), launcher.rank)


def _place_on_node(environ: Mapping[str, str]) -> RankPlace:
    """Return the place from the ranks of node and process that Lightning passes to the processes that it starts."""
    local_rank = _number(environ, LOCAL_RANK)
    name = next((name for name in _NODE_RANKS if name in environ), _NODE_RANKS[0])
    node_rank = _number(environ, name, 0)
    if node_rank > 0 and _LOCAL_WORLD_SIZE not in environ:
        got = f"{name}={node_rank}, {LOCAL_RANK}={local_rank} and no {_LOCAL_WORLD_SIZE}"
        raise ConfigError(f"rank: got {got}, expected {TORCHRUN.rank}, or an initialised process group")
    rank = node_rank * _number(environ, _LOCAL_WORLD_SIZE, 0) + local_rank
    world_size = _number(environ, WORLD_SIZE, rank + 1)
    if rank >= world_size:
        raise ConfigError(f"{LOCAL_RANK}: got rank {rank}, expected less than {WORLD_SIZE}={world_size}")
    return RankPlace(rank, world_size, local_rank, NODE_AND_LOCAL_RANK)


def _local_rank_in_group(environ: Mapping[str, str], rank: int, world_size: int) -> int:
    """Return the local rank of a launcher whose counts match the group's; otherwise the rank, which is as unique."""
    candidates = [each for each in LAUNCHERS if _has_set(environ, each)]
    for launcher in candidates:
        try:
            place = _place_by(environ, launcher)
        except ConfigError:
            continue
        if (place.rank, place.world_size) == (rank, world_size):
            return place.local_rank
    text = environ.get(LOCAL_RANK, "")
    return int(text) if TORCHRUN not in candidates and text.isdecimal() else rank


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    return whole_number(text, name, most=WORLD_SIZE_MAX)
