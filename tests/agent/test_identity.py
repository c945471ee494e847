"""Who a process is, by its process group and its environment."""

from pathlib import Path

import pytest

from lockstep.agent.identity import make_header, read_identity, read_run
from lockstep.contracts.errors import ConfigError


def test_torchrun_environment():
    """Rank, local rank, world size, run and directory are what torchrun and `lockstep run` set."""
    environ = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCKSTEP_RUN": "job-1", "LOCKSTEP_DIR": "/shared"}
    identity = read_identity(environ)
    assert (identity.rank, identity.local_rank, identity.world_size) == (5, 1, 8)
    assert identity.directory == Path("/shared/job-1")
    header = make_header(identity)
    assert (header.rank, header.local_rank, header.world_size) == (5, 1, 8)
    assert header.attempt > header.clock_offset_ns > 0


def test_empty_environment():
    """A process of its own is rank 0 of 1, in the default run and directory."""
    identity = read_identity({})
    assert (identity.rank, identity.local_rank, identity.world_size) == (0, 0, 1)
    assert identity.directory == Path("/dev/shm/lockstep/default")


def test_process_group_overrules_the_environment():
    """The rank is the group's; run and directory stay the environment's."""
    identity = read_identity({"RANK": "0", "WORLD_SIZE": "2", "LOCKSTEP_RUN": "job-1"}, group=(5, 8))
    assert (identity.rank, identity.world_size, identity.run) == (5, 8, "job-1")


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"LOCKSTEP_RUN": "a", "TORCHELASTIC_RUN_ID": "b"}, "a"),
        ({"TORCHELASTIC_RUN_ID": "b", "SLURM_JOB_ID": "7"}, "b"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "default"),
        ({"TORCHELASTIC_RUN_ID": "../b"}, "b"),
        ({"TORCHELASTIC_RUN_ID": "llama:7b/2"}, "llama-7b-2"),
        ({"TORCHELASTIC_RUN_ID": "7" * 200}, "7" * 128),
        ({"TORCHELASTIC_RUN_ID": "/", "SLURM_JOB_ID": "7"}, "job-7"),
        ({"LOCKSTEP_RUN": ""}, "default"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "job-7.0"),
        ({"SLURM_JOB_ID": "7"}, "job-7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"}, "job-7"),
        ({"PMIX_NAMESPACE": "2846588929", "OMPI_COMM_WORLD_RANK": "0", "SLURM_JOB_ID": "7"}, "mpi-2846588929"),
        ({"PMIX_NAMESPACE": "prterun-node1-53@1", "OMPI_COMM_WORLD_RANK": "0"}, "mpi-prterun-node1-53-1"),
        ({"PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "job-7.0"),
    ],
)
def test_name_of_the_run(environ, run):
    """Ours wins over the launchers' names; what these cannot have in a path is replaced, and all ranks have the same one."""
    assert read_run(environ) == run


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "one"}, "RANK: got 'one', expected a number from 0 to 1048576"),
        ({"RANK": "9999999999"}, "RANK: got '9999999999', expected a number from 0 to 1048576"),
        ({"RANK": "9" * 5000}, "RANK: got '9{20}.*, expected a number from 0 to 1048576"),
        ({"RANK": "0", "WORLD_SIZE": "4294967296"}, "WORLD_SIZE: got '4294967296', expected a number from 0"),
        ({"LOCKSTEP_DIR": "lockstep"}, "LOCKSTEP_DIR: got 'lockstep', expected an absolute path"),
        ({"RANK": "0", "LOCKSTEP_RUN": "../x"}, "LOCKSTEP_RUN: got '../x'"),
    ],
)
def test_bad_environment_is_named(environ, message):
    """What cannot be used is named."""
    with pytest.raises(ConfigError, match=message):
        read_identity(environ)
