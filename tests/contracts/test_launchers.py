"""The rank that an environment gives, by launcher."""

import pytest

from lockstep.contracts.errors import ConfigError
from lockstep.contracts.launchers import LAUNCHERS, RankPlace, gives_rank, read_place

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_NTASKS": "64"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
LIGHTNING = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, RankPlace(5, 8, 1, "RANK")),
        ({"RANK": "3"}, RankPlace(3, 4, 3, "RANK")),
        (SLURM, RankPlace(3, 4, 1, "SLURM_PROCID")),
        (OPEN_MPI, RankPlace(2, 6, 0, "OMPI_COMM_WORLD_RANK")),
        (PMI, RankPlace(1, 2, 1, "PMI_RANK")),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}, RankPlace(3, 4, 1, "PMI_RANK")),
        (LIGHTNING, RankPlace(1, 2, 1, "NODE_RANK and LOCAL_RANK")),
        ({"LOCAL_RANK": "1"}, RankPlace(1, 2, 1, "NODE_RANK and LOCAL_RANK")),
        ({**LIGHTNING, "NODE_RANK": "2", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "12"}, RankPlace(9, 12, 1, "NODE_RANK and LOCAL_RANK")),
        ({"GROUP_RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, RankPlace(4, 5, 0, "NODE_RANK and LOCAL_RANK")),
        ({}, RankPlace(0, 1, 0, "single process")),
        ({"WORLD_SIZE": "8"}, RankPlace(0, 1, 0, "single process")),
    ],
)  # fmt: skip
def test_each_launcher_gives_its_rank(environ, place):
    """Rank, world size and local rank come from the variables of one launcher."""
    assert read_place(environ) == place
    assert gives_rank(environ) == (place.source != "single process")


def test_inner_launcher_wins():
    """RANK wins under srun and mpirun, Open MPI in a step of Slurm: what counts processes, not nodes."""
    assert read_place({**SLURM, **OPEN_MPI, **PMI, **TORCHRUN}).source == "RANK"
    assert read_place({**SLURM, **OPEN_MPI}).source == "OMPI_COMM_WORLD_RANK"
    assert read_place({**SLURM, **PMI}) == RankPlace(1, 2, 1, "PMI_RANK")


def test_batch_script_is_no_rank():
    """Slurm gives a batch script SLURM_PROCID=0 and the tasks of the whole job: a training in it is alone."""
    assert read_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}) == RankPlace(
        0, 1, 0, "single process"
    )


@pytest.mark.parametrize(
    ("environ", "local_rank"),
    [
        ({}, 5),
        (TORCHRUN, 1),
        ({"LOCAL_RANK": "2"}, 2),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, 5),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, 5),
        ({"RANK": "none"}, 5),
    ],
)
def test_process_group_counts_most(environ, local_rank):
    """In a group of several the rank is the group's; the local rank is a launcher's only where that counts alike."""
    assert read_place(environ, group=(5, 8)) == RankPlace(5, 8, local_rank, "torch.distributed")


def test_group_of_one_overrules_no_launcher():
    """Eight processes that torchrun started and that each make a group of their own stay eight ranks."""
    assert read_place(TORCHRUN, group=(0, 1)) == RankPlace(5, 8, 1, "RANK")
    assert read_place({}, group=(0, 1)) == RankPlace(0, 1, 0, "torch.distributed")
    assert read_place({"RANK": "none"}, group=(0, 1)) == RankPlace(0, 1, 0, "torch.distributed")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "one"}, "RANK: got 'one', expected a number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK: got 4, expected less than WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "-1"}, "WORLD_SIZE: got '-1', expected a number"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID: got 3, expected less than SLURM_STEP_NUM_TASKS=2"),
        (
            {**LIGHTNING, "NODE_RANK": "1"},
            "rank: got NODE_RANK=1, LOCAL_RANK=1 and no LOCAL_WORLD_SIZE, expected RANK, or",
        ),
        ({**LIGHTNING, "WORLD_SIZE": "1"}, "LOCAL_RANK: got rank 1, expected less than WORLD_SIZE=1"),
    ],
)
def test_bad_variables_are_named(environ, message):
    """What cannot be used is named, with what was expected."""
    with pytest.raises(ConfigError, match=message):
        read_place(environ)
    assert gives_rank(environ)


def test_each_launcher_needs_its_world_size():
    """A rank without a world size belongs to a launcher that we do not know, but for RANK."""
    for launcher in LAUNCHERS[1:]:
        assert read_place({launcher.rank: "1"}).source == "single process"
