"""Run names of trainings that share a node."""

import os
from pathlib import Path

import pytest

from lockstep.agent.identity import make_header, read_identity
from lockstep.agent.ring import RingWriter
from lockstep.agent.run_claim import claim_run
from lockstep.contracts.limits import NAME_MAX_BYTES
from tests.support.users import OTHER, run_as


@pytest.fixture
def environ(tmp_path):
    return {"LOCKSTEP_DIR": str(tmp_path), "LOCKSTEP_RUN": "job"}


def claimed(environ, group=None):
    """Return the run that this process gets, whose ring it then makes and holds."""
    with claim_run(read_identity(environ, group), environ) as identity:
        global ring  # noqa: PLW0603  (the lock lives as long as the ring)
        ring = RingWriter(identity.directory, make_header(identity))
        return identity.run


def in_other_process(function):
    return run_as(os.getuid(), function, gid=os.getgid())


def test_a_free_name_is_taken(environ):
    """A first training, and one after another that has ended, has the name that the environment gives."""
    assert in_other_process(lambda: claimed(environ)) == "job"
    assert in_other_process(lambda: claimed(environ)) == "job"


def test_a_training_next_to_another_one_is_a_run_of_its_own(environ):
    """The second process of its own takes a name with its pid; the first one's ring stays."""
    assert claimed(environ) == "job"
    inode = (Path(environ["LOCKSTEP_DIR"]) / "job" / "0.ring").stat().st_ino
    run, pid = in_other_process(lambda: (claimed(environ), os.getpid()))
    assert run == f"job-{pid}"
    assert (Path(environ["LOCKSTEP_DIR"]) / "job" / "0.ring").stat().st_ino == inode


def test_two_that_look_at_once_get_two_names(environ):
    """While one process has the name and no ring yet, another one does not find it free."""
    with claim_run(read_identity(environ), environ) as identity:
        run, pid = in_other_process(lambda: (claimed(environ), os.getpid()))
    assert (identity.run, run) == ("job", f"job-{pid}")


def test_a_name_of_another_user_is_not_taken(shared_root):
    """Where another user has the run's directory, the training is a run of its own all the same."""
    shared_root.mkdir(mode=0o1777)
    shared_root.chmod(0o1777)
    environ = {"LOCKSTEP_DIR": str(shared_root), "LOCKSTEP_RUN": "job"}
    run_as(OTHER, lambda: claimed(environ))
    assert claimed(environ) == f"job-{os.getpid()}"


def test_ranks_of_a_launcher_keep_their_name(environ):
    """A restarted rank takes the name of its job, whichever process still holds its ring: all ranks have the same one."""
    assert claimed(environ) == "job"
    launched = {**environ, "RANK": "0", "WORLD_SIZE": "2"}
    assert in_other_process(lambda: claimed(launched)) == "job"


def test_a_group_of_one_is_alone(environ):
    """A process group of one process agrees with no one either."""
    assert claimed(environ) == "job"
    run, pid = in_other_process(lambda: (claimed(environ, group=(0, 1)), os.getpid()))
    assert run == f"job-{pid}"


def test_a_long_name_stays_a_name(environ):
    """The pid takes the place of the name's end."""
    environ["LOCKSTEP_RUN"] = "x" * NAME_MAX_BYTES
    assert claimed(environ) == environ["LOCKSTEP_RUN"]
    assert len(in_other_process(lambda: claimed(environ))) == NAME_MAX_BYTES
