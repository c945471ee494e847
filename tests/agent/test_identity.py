"""Who a process is, by its environment."""

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


def test_least_environment():
    """RANK alone is enough."""
    identity = read_identity({"RANK": "0"})
    assert (identity.local_rank, identity.world_size, identity.run) == (0, 1, "default")
    assert identity.directory == Path("/dev/shm/lockstep/default")


@pytest.mark.parametrize(
    ("environ", "run"),
    [
        ({"LOCKSTEP_RUN": "a", "TORCHELASTIC_RUN_ID": "b"}, "a"),
        ({"TORCHELASTIC_RUN_ID": "b"}, "b"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "default"),
        ({"TORCHELASTIC_RUN_ID": "../b"}, "default"),
        ({"LOCKSTEP_RUN": ""}, "default"),
    ],
)
def test_name_of_the_run(environ, run):
    """Ours wins over torchrun's; torchrun's only if it was given one that is a name."""
    assert read_run(environ) == run


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "RANK: got None, expected a number"),
        ({"RANK": "one"}, "RANK: got 'one', expected a number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK: got 4, expected less than WORLD_SIZE=4"),
        ({"RANK": "0", "LOCKSTEP_RUN": "../x"}, "LOCKSTEP_RUN: got '../x'"),
    ],
)
def test_bad_environment_is_named(environ, message):
    """What cannot be used is said by name."""
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read_identity(environ)
