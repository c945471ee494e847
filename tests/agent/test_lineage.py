"""Who may be a rank, by who started it."""

import os

import pytest

from lockstep.agent.lineage import OWNER_VARIABLE, may_be_rank, may_become_rank, note_rank

PIDS = {"own": str(os.getpid()), "other": str(os.getppid())}


@pytest.mark.parametrize(
    ("owner", "world_size", "may_be", "may_become"),
    [
        ("", None, True, True),
        ("own/8", 2, True, True),
        ("other/8", None, False, False),
        ("other/8", 8, False, False),
        ("other/1", None, False, True),
        ("other/1", 1, False, True),
        ("other/1", 2, True, True),
        ("other", 2, False, False),
        ("other/x", 2, False, False),
    ],
)
def test_what_a_rank_starts_is_no_rank(owner, world_size, may_be, may_become):
    """But for ranks of a larger world, which a process that trained alone may start."""
    who, slash, world = owner.partition("/")
    environ = {OWNER_VARIABLE: PIDS[who] + slash + world} if owner else {}
    assert may_be_rank(environ, world_size) == may_be
    assert may_become_rank(environ) == may_become


def test_a_rank_is_its_own():
    """The mark that a rank leaves keeps its children out, not itself."""
    environ = {}
    note_rank(environ, 4)
    assert may_be_rank(environ, None)
    assert environ == {OWNER_VARIABLE: f"{os.getpid()}/4"}
