"""Users of the node as a process sees them."""

import os
from pathlib import Path

import pytest

from lockstep.contracts.ownership import visible_uid

MAPS = {
    "node": "         0          0 4294967295\n",
    "rootless": "         0       1000          1\n         1     100000      65536\n",
    "same user": "      1000       1000          1\n",
}


@pytest.mark.parametrize(
    ("kind", "uid", "seen"),
    [
        ("node", 0, 0),
        ("node", 998, 998),
        ("rootless", 1000, 0),
        ("rootless", 100_003, 4),
        ("rootless", 0, 65534),
        ("rootless", 998, 65534),
        ("same user", 1000, 1000),
        ("same user", 0, 65534),
    ],
)
def test_a_user_of_the_node_has_the_number_that_the_namespace_gives(tmp_path, kind, uid, seen):
    """Those that it does not map are all the overflow user, root among them."""
    (tmp_path / "uid_map").write_text(MAPS[kind])
    (tmp_path / "overflowuid").write_text("65534\n")
    assert visible_uid(uid, uid_map=tmp_path / "uid_map", overflow_uid=tmp_path / "overflowuid") == seen


def test_without_proc_numbers_are_the_nodes(tmp_path):
    """There is no namespace to know of."""
    assert visible_uid(7, uid_map=tmp_path / "none", overflow_uid=tmp_path / "none") == 7


def test_this_process_sees_files_of_root_where_it_may():
    """The map that the kernel gives agrees with the owner of a file that is always root's."""
    assert visible_uid(0) == Path("/proc/sys").stat().st_uid
    assert visible_uid(os.geteuid()) in (os.geteuid(), 65534)
